"""Whether a job declined: noise, slow beginnings and slow whiles do not count; attempts, windows, missing dates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.mfu.analysis import find_mfu
from megascope.heatmap.mfu.result import Trend
from megascope.heatmap.mfu.stretch import find_course
from megascope.heatmap.peers import FloatArray
from support.mfu_reports import START_NS, assert_adds_up, log_store, printed
from support.span_store import meeting, write_spans


def jitter(count: int, seed: int, *, share: float = 0.04, correlation: float = 0.6) -> FloatArray:
    """Factors of steps that vary by some percent and are like their neighbours."""
    noise = np.random.default_rng(seed).standard_normal(count + 50)
    for step in range(1, len(noise)):
        noise[step] = correlation * noise[step - 1] + np.sqrt(1 - correlation**2) * noise[step]
    factors: FloatArray = np.exp(share * noise[50:])
    return factors


def test_jitter_of_neighbouring_steps_is_no_decline() -> None:
    found = [find_course(500 * jitter(118, seed)).stretch for seed in range(60)]
    assert sum(one is not None and one.lasts for one in found) <= 1
    assert sum(one is not None for one in found) <= 3


@pytest.mark.parametrize("kind", ["step", "growth", "stalls"])
def test_a_decline_is_found_in_jitter(kind: str) -> None:
    for seed in range(10):
        ms = 500 * jitter(200, seed, share=0.02)
        if kind == "step":
            ms[120:] *= 1.12
        elif kind == "growth":
            ms *= np.linspace(1, 1.3, 200)
        else:
            ms[100::4] *= 1.6
        stretch = find_course(ms).stretch
        assert stretch is not None
        assert stretch.lasts
        assert abs(stretch.first - (120 if kind == "step" else 100)) <= 20


def test_a_slow_beginning_and_a_slow_while_are_no_decline(tmp_path: Path) -> None:
    base = 500 * jitter(120, 1, share=0.01)
    for name, slow, word in (("first", slice(0, 40), "became faster"), ("while", slice(40, 70), "for a while")):
        ms = base.copy()
        ms[slow] *= 1.3
        with log_store(tmp_path / name, dict(enumerate(ms.tolist()))) as store:
            report = find_mfu(store, store.attempts())
        assert report.verdict == Trend.VARIES
        assert word in report.sentence
        assert report.lost_share > 0.05
        reference = next(one for one in report.bins if one.is_reference)
        assert reference.step_ms == pytest.approx(500, rel=0.03)
        assert_adds_up(report)


def test_noise_gets_no_shares(tmp_path: Path) -> None:
    with log_store(tmp_path, dict(enumerate((500 * jitter(120, 3)).tolist()))) as store:
        report = find_mfu(store, store.attempts())
    assert (report.verdict, report.growth) == (Trend.STEADY, ())
    assert not any(one.growth for one in report.bins)


def test_the_first_steps_of_an_attempt_are_left_out_of_any_window(tmp_path: Path) -> None:
    with log_store(tmp_path, {step: 5000.0 if step < 2 else 500.0 for step in range(60)}) as store:
        for steps in (None, (0, 40)):
            report = find_mfu(store, store.attempts(), steps=steps)
            assert report.bins[0].steps[0] == 2
            assert report.long_steps == ()


def test_steps_of_each_attempt_may_be_asked_for(tmp_path: Path) -> None:
    took = dict.fromkeys(range(60), 500.0)
    log_store(tmp_path, took).close()
    with log_store(tmp_path, took, attempt=1) as store:
        report = find_mfu(store, store.attempts(), steps={0: (40, 59), 1: (0, 19)})
    found = {number: [one.steps for one in report.bins if one.attempt == number] for number in (0, 1)}
    assert (found[0][0][0], found[0][-1][1]) == (40, 59)
    assert (found[1][0][0], found[1][-1][1]) == (2, 19)


def test_a_step_that_several_attempts_repeat_is_lost_once(tmp_path: Path) -> None:
    for attempt, steps in enumerate((range(100), range(80, 90), range(50, 100))):
        log_store(tmp_path, dict.fromkeys(steps, 500.0), attempt=attempt).close()
    with Store(tmp_path) as store:
        report = find_mfu(store, store.attempts())
    assert [one.lost_steps for one in report.restarts] == [20, 40]
    assert "2 restarts repeated 60 steps" in report.sentence


def test_a_trace_without_a_date_has_no_moments(tmp_path: Path) -> None:
    took = dict.fromkeys(range(60), 500.0) | {30: 5000.0}
    with log_store(tmp_path, took, start_ns=0) as store:
        report = find_mfu(store, store.attempts())
    assert all(one.start_ns is None and one.end_ns is None for one in report.bins)
    assert report.long_steps[0].start_ns is None
    assert "1970" not in printed(report, tmp_path)
    assert "from (UTC)" not in printed(report, tmp_path)


def test_why_nobody_was_named_is_said(tmp_path: Path) -> None:
    wild = np.random.default_rng(0)
    spans = meeting(4, 60, lambda rank, step: float(20 * np.exp(wild.normal(0, 0.6))))
    with write_spans(tmp_path, spans, layout={"dp": 4}) as store:
        report = find_mfu(store, store.attempts())
    assert any(one.signal == "stragglers" and "insufficient-evidence" in one.reason for one in report.abstained)


def test_parts_add_up_where_some_steps_are_not_timed(tmp_path: Path) -> None:
    """Every second step has no spans and takes less; from step 60 on work takes 30 ms instead of 20."""
    spans = [one for one in meeting(4, 120, lambda rank, step: 20.0 if step < 60 else 30.0) if not (one.step or 0) % 2]
    steps: dict[str, list[Any]] = {
        "rank": [0] * 120,
        "step": list(range(120)),
        "start_ns": [START_NS + step * 200 * 10**6 for step in range(120)],
        "duration_ns": [
            (22 + 10 * (step >= 60) - (8 if step >= 60 else 1) * (step % 2)) * 10**6 for step in range(120)
        ],
        "shadow": [step % 2 == 1 for step in range(120)],
    }
    with write_spans(tmp_path, spans, layout={"dp": 4}, more={"steps": steps}) as store:
        report = find_mfu(store, store.attempts(), bins=6)
    assert report.verdict == Trend.DECLINED
    assert report.growth_ms == pytest.approx(10, abs=0.5)
    assert sum(row.share or 0.0 for row in report.growth) == pytest.approx(1)
    assert_adds_up(report)
    last = report.bins[-1]
    assert sum(row.growth_ms for row in last.growth) == pytest.approx(last.step_ms - report.bins[0].step_ms, abs=0.2)
