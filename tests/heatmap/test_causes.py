"""A device that is throttled is slow in all its compute, for some steps, again and again; else it is slow compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, Pattern, StragglerVerdict
from support.span_store import Span, write_spans

RANKS, STEPS, SLOW_RANK = 8, 120, 3


def verdict_of(root: Path, factor: Callable[[str, int], float]) -> StragglerVerdict:
    """Forward and backward of 20 and 40 ms and a meeting; the slow rank takes ``factor(segment, step)`` times that."""
    noise = np.exp(0.02 * np.random.default_rng(3).standard_normal((2, RANKS, STEPS)))
    spans = []
    for step in range(STEPS):
        work = [
            [
                (20.0, 40.0)[at] * noise[at, rank, step] * (factor(name, step) if rank == SLOW_RANK else 1.0)
                for at, name in enumerate(("forward", "backward"))
            ]
            for rank in range(RANKS)
        ]
        for rank, (forward, backward) in enumerate(work):
            start, took = step * 300.0, forward + backward
            waits = max(map(sum, work)) - took + 1.0
            spans += [
                Span(rank, step, "forward", start, forward),
                Span(rank, step, "backward", start + forward, backward),
                Span(rank, step, "all_reduce", start + took, waits, exposed_ms=waits, kind="collective"),
            ]
    store = write_spans(root, spans, layout={"dp": RANKS})
    return find_stragglers(store, store.attempt())


@pytest.mark.parametrize(("period", "length"), [(15, 4), (10, 5), (8, 3)])
def test_bursts_in_all_compute_are_throttling(tmp_path: Path, period: int, length: int) -> None:
    verdict = verdict_of(tmp_path, lambda _, step: 1.8 if step % period < length else 1.0)
    [culprit] = verdict.culprits
    assert (culprit.ranks, culprit.cause, culprit.pattern) == ((SLOW_RANK,), Cause.THROTTLING, Pattern.INTERMITTENT)
    assert culprit.ratio == pytest.approx(1.8, rel=0.05)
    own, ratio = culprit.evidence[:2]
    assert own.value is not None
    assert own.peers is not None
    assert own.value > 1.15 * own.peers
    assert "mean over steps" in own.statement
    assert ratio.value == pytest.approx(np.exp(length / period * np.log(1.8)), rel=0.06)


def test_bursts_in_one_segment_alone_are_slow_compute(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, lambda name, step: 1.8 if name == "backward" and step % 10 < 4 else 1.0)
    assert [(one.ranks, one.cause) for one in verdict.culprits] == [((SLOW_RANK,), Cause.SLOW_COMPUTE)]


def test_what_is_slow_all_the_time_is_slow_compute(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, lambda _, step: 1.4)
    assert [(one.ranks, one.cause) for one in verdict.culprits] == [((SLOW_RANK,), Cause.SLOW_COMPUTE)]
