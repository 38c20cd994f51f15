"""Steps without timings, on purpose and on all ranks: verdicts and matrices are what they are without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.stragglers import find_stragglers
from megascope.profiler.cadence import Cadence
from support.synthetic_store import Slow, SyntheticJob, write_synthetic_store

RANKS = range(8)


def _store(folder: Path, cadence: Cadence, slow: Slow | None, steps: int) -> Store:
    missing = [(rank, step) for rank in RANKS for step in range(steps) if not cadence.is_timed(step)]
    write_synthetic_store(folder, SyntheticJob(steps=steps, slow=slow, missing=missing))
    return Store(folder)


@pytest.mark.parametrize(
    ("cadence", "slow"),
    [
        (Cadence("synthetic", 1, 5), Slow(5, 1.5, 25)),
        (Cadence("synthetic", 2), Slow(5, 1.5, 25)),
        (Cadence("synthetic", 1, 5), None),
    ],
)
def test_the_verdict_does_not_notice(tmp_path: Path, cadence: Cadence, slow: Slow | None) -> None:
    found = []
    for name, each in (("all", Cadence()), ("some", cadence)):
        with _store(tmp_path / name, each, slow, 90) as store:
            found.append(find_stragglers(store, store.attempt()))
    everything, some = found
    assert some.verdict == everything.verdict
    assert [(one.ranks, one.cause, one.segment, one.pattern) for one in some.culprits] == [
        (one.ranks, one.cause, one.segment, one.pattern) for one in everything.culprits
    ]
    for one, other in zip(some.culprits, everything.culprits, strict=True):
        assert one.ratio == pytest.approx(other.ratio, rel=0.05)
        assert one.steps[0] == pytest.approx(25, abs=2)
        assert one.lost_share == pytest.approx(other.lost_share, rel=0.15)
    assert {one.signal for one in some.abstained} == {one.signal for one in everything.abstained}
