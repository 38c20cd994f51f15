"""The benchmark of recorded collectives: its figures belong to calls that were made, and to a way that there is."""

from __future__ import annotations

from pathlib import Path

from benchmarks import collectives
from megascope.profiler.box.box import BoxReader
from support.forkrun import run_ranks


def test_recorded_calls_are_recorded_and_bare_ones_are_not(tmp_path: Path) -> None:
    def measured() -> tuple[list[str], int]:
        calls = collectives.calls_to_measure()
        cost = collectives.measure(calls["all_reduce"], tmp_path, rounds=2, calls=5)
        assert cost.bare_cpu_us > 0
        assert (cost.rounds, cost.calls) == (2, 5)
        reader = BoxReader(next(tmp_path.glob("*/*/*.box")))
        return sorted(calls), sum(reader.head(ring) for ring in range(reader.layout.rings))

    ((names, spans),) = run_ranks(1, measured)
    assert names == ["all_reduce", "all_reduce_async", "barrier"]
    assert spans == 2 * (5 + 1)  # one more in each round, to warm up
