"""A warm-up that costs much is reported; a delay that begins with the job is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.heatmap.jobwide.find import find_jobwide
from megascope.heatmap.jobwide.warm_up import find_warm_up, warm_up
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, describe
from support.faulty_job import check_evidence
from support.span_store import Span, meeting, write_spans

STEPS = np.arange(60)


def _times(*first_ms: float) -> np.ndarray:
    times = np.full(60, 100.0)
    times[: len(first_ms)] = first_ms
    return times


def test_a_long_and_costly_warm_up() -> None:
    found = warm_up(STEPS, _times(1500, 700, 400, 250))
    assert found is not None
    assert (found.first, found.last, found.usual_ms) == (0, 3, 100.0)
    assert found.ratio == pytest.approx(7.125)
    assert found.lost_share == pytest.approx(2450 / 8450)


@pytest.mark.parametrize(
    "times",
    [
        _times(),
        _times(3000, 150),  # one slow first step
        _times(*[300.0] * 12),  # a delay that ended
        _times(230, 215, 205),  # cheap
        np.linspace(4000, 100, 60),  # never warm
    ],
    ids=["none", "first", "plateau", "cheap", "all"],
)
def test_what_is_no_warm_up(times: np.ndarray) -> None:
    assert warm_up(STEPS, times) is None


@given(st.lists(st.floats(80.0, 190.0), min_size=0, max_size=80))
def test_usual_steps_are_never_a_warm_up(times: list[float]) -> None:
    assert warm_up(np.arange(len(times)), np.array(times)) is None


def test_from_a_store(tmp_path: Path) -> None:
    times = _times(1500, 700, 400, 250)
    rows = {
        "rank": [rank for rank in (0, 1) for _ in STEPS],
        "step": [*STEPS.tolist(), *STEPS.tolist()],
        "start_ns": [int(step) * 10**9 for _ in (0, 1) for step in STEPS],
        "duration_ns": [int(ms * 1e6) for _ in (0, 1) for ms in times],
    }
    spans: list[Span] = meeting(2, 60, lambda rank, step: 50.0)
    with write_spans(tmp_path / "s", spans, layout={"dp": 2}, more={"steps": rows}) as store:
        attempt = store.attempt()
        (one,) = find_warm_up(store, attempt, observe(store, attempt)).culprits
        assert (one.kind, one.cause, one.ranks, one.steps) == (CulpritKind.JOB, Cause.WARM_UP, (), (0, 3))
        check_evidence(store, one.evidence)
        assert "took long to warm up" in describe(one)
        later = observe(store, attempt, steps=(20, 59))
        assert find_jobwide(store, attempt, later).culprits == ()


@pytest.mark.parametrize("unequal", [0.0, 0.3], ids=["alike", "unequal"])
def test_warming_again_after_an_evaluation_or_a_checkpoint_accuses_nobody(tmp_path: Path, unequal: float) -> None:
    """Three steps after every twentieth are long, on some ranks by more."""

    def work_ms(rank: int, step: int) -> float:
        since = step % 20
        again = (2.0, 1.0, 0.4)[since] if step >= 20 and since < 3 else 0.0
        return 50.0 * (1 + again * (1 + unequal * (rank % 4)))

    spans = meeting(8, 100, work_ms)
    for step in range(20, 100, 20):
        for rank in range(8):
            spans.append(Span(rank, step, "evaluate", step * 200.0 - 40, 30.0, kind="eval"))
    with write_spans(tmp_path / "s", spans, layout={"dp": 8}) as store:
        assert find_stragglers(store, store.attempt()).culprits == ()
