"""Goodput: every step once, no second twice, and the same for whoever opens the store, whatever supervisor ran it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.goodput import StepSpan, goodput_of, run_goodput
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter

SECOND = 10**9
BEGIN = 10**18


def test_goodput_counts_every_step_once() -> None:
    spans = [StepSpan(0, step, 1.0) for step in range(10)] + [StepSpan(1, step, 2.0) for step in range(8, 12)]
    good = goodput_of(spans, 40.0)
    assert (good.useful_s, good.repeated_s, good.other_s, good.steps) == (16.0, 2.0, 22.0, 12)
    assert good.goodput == 0.4
    assert goodput_of([], 0.0).goodput is None


@given(st.lists(st.builds(StepSpan, st.integers(0, 3), st.integers(0, 9), st.floats(0, 10)), max_size=30))
def test_no_time_is_counted_twice(spans: list[StepSpan]) -> None:
    total = sum(span.duration_s for span in spans) + 5
    good = goodput_of(spans, total)
    assert good.useful_s + good.repeated_s + good.other_s == pytest.approx(total)
    assert good.goodput is not None
    assert 0 <= good.goodput <= 1


def write(
    root: Path, run: str, attempt: int, steps: range, *, at_s: float, end_s: float | None, every: int = 1
) -> None:
    """An attempt of two ranks that begins so late; its steps take a second each; every so many have a loss, not the
    last one. 0: none."""
    with TableWriter(root, f"{run}-{attempt}") as writer:
        start_ns = BEGIN + int(at_s * SECOND)
        places = [(rank, step) for rank in range(2) for step in steps]
        columns: dict[str, list[Any]] = {
            "rank": [rank for rank, _ in places],
            "step": [step for _, step in places],
            "start_ns": [start_ns + (step - steps[0]) * SECOND for _, step in places],
            "duration_ns": [SECOND for _ in places],
            "loss": [3.0 if every and step % every == 0 and step != steps[-1] else None for _, step in places],
        }
        writer.write("steps", run, attempt, columns)
        end_ns = None if end_s is None else BEGIN + int(end_s * SECOND)
        reason = None if end_s is None else "exited"
        run_row = {"world_size": [2], "start_ns": [start_ns], "end_ns": [end_ns], "exit_reason": [reason]}
        writer.write("runs", run, attempt, run_row, replace=True)
        writer.commit()


def test_it_is_that_of_all_attempts_and_of_one_run(tmp_path: Path) -> None:
    write(tmp_path, "run", 0, range(0, 7), at_s=0, end_s=None)  # six steps that were completed, 0 to 5
    write(tmp_path, "run", 1, range(4, 9), at_s=16, end_s=24)  # four, of which two are made again
    write(tmp_path, "other", 0, range(0, 9), at_s=100, end_s=200)
    with Store(tmp_path) as store:
        good = run_goodput(store, "run")
        later = run_goodput(store, "run", BEGIN - 8 * SECOND, BEGIN + 32 * SECOND)
        assert run_goodput(store, "none") is None
    assert good is not None
    assert (good.steps, good.useful_s, good.repeated_s, good.total_s) == (8, 8.0, 2.0, 24.0)
    assert good.goodput == pytest.approx(1 / 3)
    assert later is not None
    assert (later.total_s, later.other_s, later.goodput) == (40.0, 30.0, 0.2)


def test_a_run_that_goes_on_ends_with_its_last_step(tmp_path: Path) -> None:
    write(tmp_path, "run", 0, range(0, 6), at_s=0, end_s=None)
    with Store(tmp_path) as store:
        good = run_goodput(store, "run")
    assert good is not None
    assert (good.total_s, good.useful_s, good.goodput) == (5.0, 5.0, 1.0)


@pytest.mark.parametrize("every", [0, 3])
def test_a_step_without_loss_counts_if_a_later_one_of_its_attempt_ended(tmp_path: Path, every: int) -> None:
    write(tmp_path, "run", 0, range(0, 7), at_s=0, end_s=None, every=every)
    write(tmp_path, "run", 1, range(4, 9), at_s=16, end_s=24, every=every)
    write(tmp_path, "one", 0, range(0, 1), at_s=0, end_s=None, every=every)
    with Store(tmp_path) as store:
        good = run_goodput(store, "run")
        assert run_goodput(store, "one") is None, "nothing tells whether its only step was completed"
    assert good is not None
    assert (good.steps, good.useful_s, good.repeated_s, good.total_s) == (8, 8.0, 2.0, 24.0)
