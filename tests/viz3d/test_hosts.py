"""Several hosts: their data comes at different times, and their clocks are not one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.clocks.clocks import Clocks, HostClock, load_clocks
from megascope.collectors.reading.store import Store
from megascope.profiler.topology import Topology
from megascope.viz3d.deaths import Death, first_deaths
from megascope.viz3d.hang import diagnose
from megascope.viz3d.looks import compare_looks
from megascope.viz3d.pace import KnownPace
from megascope.viz3d.snapshot import take_looks
from megascope.viz3d.states import RankState, Snapshot
from megascope.viz3d.verdict import HangVerdict, State
from support.hang_scenes import MOMENT_NS, SECOND, Scene
from support.hang_store import steps_done, write_scene

MESH = Topology.of(dp=16)
"""Ranks 0 to 7 on node0, 8 to 15 on node1."""

FAR = range(8, 16)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "data_age_s", lambda *_: 2.0)


def shifted(snapshot: Snapshot, seconds: float, ranks: Iterable[int] = FAR) -> Snapshot:
    """The same look on a clock of node1 that is so far ahead."""
    by = round(seconds * SECOND)

    def moved(state: RankState) -> RankState:
        flights = (replace(one, begun_ns=(one.begun_ns or 0) + by) for one in state.flights)
        return replace(state, moment_ns=state.moment_ns + by, flights=tuple(flights))

    states = {rank: moved(one) if rank in ranks else one for rank, one in snapshot.states.items()}
    return replace(snapshot, states=states)


def running(before_s: float, step: int, waits_for: int) -> Snapshot:
    """One look at a job that moves: all but one wait at this moment, and have done more than in the look before."""
    scene = Scene(MESH)
    for rank in range(16):
        scene.states[rank] = replace(scene.states[rank], spans=1000 + 10 * step, step=step)
        scene.progress(rank, scene.of("dp", rank), step, step)
        if rank != waits_for:
            scene.collective(rank, "dp", step + 1, since_s=before_s + 0.1)
    return scene.snapshot(before_s)


def stuck(before_s: float, culprit: int, sequence: int = 5) -> Snapshot:
    scene = Scene(MESH)
    for rank in range(16):
        if rank != culprit:
            scene.collective(rank, "dp", sequence, since_s=100)
    scene.work(culprit, "forward", since_s=101)
    return scene.snapshot(before_s)


def verdict_of(
    root: Path, looks: Sequence[Snapshot], more: Mapping[str, Mapping[str, Sequence[Any]]] | None = None
) -> HangVerdict:
    known = steps_done(range(16), [0.02] * 6)
    store = write_scene(root / "store", looks, more={**known, **(more or {})})
    return diagnose(store, store.attempt())


@pytest.mark.parametrize("lag_s", [0, 6, 10, 40])
@pytest.mark.parametrize("waits_for", [3, 9])
def test_a_host_whose_data_comes_late_makes_no_hang(tmp_path: Path, lag_s: float, waits_for: int) -> None:
    looks = []
    for step, before in enumerate(range(60, -1, -2)):
        look = running(before, step, waits_for)
        late = {rank: state for rank, state in look.states.items() if rank not in FAR or before >= lag_s}
        looks.append(replace(look, states=late))
    verdict = verdict_of(tmp_path, looks)
    assert verdict.verdict == State.RUNNING
    assert verdict.culprits == ()
    assert verdict.missing == ()


@pytest.mark.parametrize("ahead_s", [-40, -6, 6, 40])
def test_a_clock_that_is_wrong_neither_makes_nor_hides_a_hang(tmp_path: Path, ahead_s: float) -> None:
    looks = [shifted(running(before, 60 - before, 9), ahead_s) for before in range(60, -1, -2)]
    assert verdict_of(tmp_path / "runs", looks).verdict == State.RUNNING
    looks = [shifted(stuck(before, 3), ahead_s) for before in (60, 40, 20, 0)]
    verdict = verdict_of(tmp_path / "hangs", looks)
    assert verdict.verdict == State.HANG
    assert [culprit.ranks for culprit in verdict.culprits] == [(3,)]
    assert (verdict.victims, verdict.explained, verdict.missing) == (15, 15, ())
    assert any("clocks are not aligned" in one.reason for one in verdict.abstained) == (abs(ahead_s) > 30)


def test_a_host_that_fell_silent_is_not_accused_while_its_clock_is_unknown(tmp_path: Path) -> None:
    """It was last seen moving, forty seconds ago by its own clock: dead, or only forty seconds behind."""
    seen = [running(before, 100 - before, 9) for before in (60, 50, 45)]
    looks = [*seen, *(_near(stuck(before, 9, 57)) for before in (40, 20, 0))]
    verdict = verdict_of(tmp_path, looks)
    assert verdict.verdict == State.INCONCLUSIVE
    assert [culprit.ranks for culprit in verdict.culprits] == [(9,)]
    assert any("or it fell silent" in one.reason for one in verdict.abstained)


def _near(look: Snapshot) -> Snapshot:
    return replace(look, states={rank: state for rank, state in look.states.items() if rank not in FAR})


def offsets(seconds: float, uncertainty_ns: int | None = 10**6) -> dict[str, Mapping[str, Sequence[Any]]]:
    return {
        "clock_offsets": {
            "host": ["node0", "node1"],
            "moment_ns": [MOMENT_NS] * 2,
            "offset_ns": [0, -round(seconds * SECOND)],
            "drift_ppb": [0.0, 0.0],
            "uncertainty_ns": [uncertainty_ns] * 2,
        }
    }


def test_with_aligned_clocks_a_silent_host_is_missing(tmp_path: Path) -> None:
    looks = [shifted(stuck(before, 3), 40) for before in (100, 80)]
    looks += [_near(stuck(before, 3)) for before in (60, 40, 20, 0)]
    verdict = verdict_of(tmp_path, looks, offsets(40))
    assert verdict.missing == tuple(FAR)


def test_aligned_moments_bound_a_look_at_the_past(tmp_path: Path) -> None:
    looks = [shifted(stuck(before, 3), 40) for before in (60, 40, 20, 0)]
    store = write_scene(tmp_path / "store", looks, more=offsets(40))
    earlier, later = take_looks(store, store.attempt(), 15 * SECOND, MOMENT_NS - 19 * SECOND)
    assert {rank: later.states[rank].moment_ns - MOMENT_NS for rank in (0, 8)} == {0: -20 * SECOND, 8: 20 * SECOND}
    assert {rank: earlier.states[rank].moment_ns - MOMENT_NS for rank in (0, 8)} == {0: -40 * SECOND, 8: 0}
    assert later.moment_ns == MOMENT_NS - 20 * SECOND


def test_offsets_and_drift_are_applied_and_an_unknown_uncertainty_is_no_clock(tmp_path: Path) -> None:
    clock = HostClock.at(MOMENT_NS, -5 * SECOND, 1000.0, 10)
    assert clock.aligned_ns(MOMENT_NS + 10 * SECOND) == MOMENT_NS + 5 * SECOND + 10_000
    clocks = Clocks({"a": clock, "b": HostClock.at(0, 0, 0.0, 32)})
    assert clocks.uncertainty_ns("a", "b", MOMENT_NS) == 42
    assert clocks.uncertainty_ns("c", "c", MOMENT_NS) == 0
    assert clocks.uncertainty_ns("a", "c", MOMENT_NS) is None
    store = write_scene(tmp_path / "store", [stuck(0, 3)], more=offsets(40, None))
    assert load_clocks(store, store.attempt()).known == {}


def test_ranks_that_were_seen_once_neither_moved_nor_are_stuck() -> None:
    both = stuck(40, 9), stuck(0, 9)
    pace = KnownPace(step=0.02, segments={"forward": 0.02})
    assert compare_looks(*both, None, pace).state == State.HANG
    same = replace(both[0], states={**both[0].states, 9: both[1].states[9]})
    found = compare_looks(same, both[1], None, pace)
    assert found.state == State.SLOW
    assert any("seen only once: 9" in one.reason for one in found.abstained)


def on(host: str, rank: int, second: float, **more: Any) -> Death:
    return Death(rank, more.pop("state", "gone"), round(second * SECOND), host=host, **more)


KNOWN = Clocks({"node0": HostClock.at(0, 0, 0.0, SECOND), "node1": HostClock.at(0, 0, 0.0, SECOND)})
UNKNOWN = Clocks({})


@pytest.mark.parametrize(
    ("clocks", "deaths", "first"),
    [
        (UNKNOWN, [on("node0", 3, 10), on("node0", 5, 20)], [3]),
        (UNKNOWN, [on("node0", 3, 10), on("node1", 12, 20)], [3, 12]),
        (UNKNOWN, [on("node1", 12, 4), on("node0", 3, 10)], [3, 12]),
        (KNOWN, [on("node0", 3, 10), on("node1", 12, 20)], [3]),
        (KNOWN, [on("node0", 3, 10), on("node1", 12, 13)], [3, 12]),
        (KNOWN, [on("node0", 3, 10, active_ns=SECOND), on("node1", 12, 13, active_ns=9 * SECOND)], [3]),
        (KNOWN, [on("node0", 3, 10, active_ns=8 * SECOND), on("node1", 12, 13, active_ns=9 * SECOND)], [3, 12]),
        (UNKNOWN, [on("node1", 12, 4), on("node0", 3, 10, state="exception", type="ValueError")], [3]),
        (KNOWN, [on("node1", 12, 4), on("node0", 3, 10, state="exception", type="ValueError")], [12]),
    ],
)
def test_deaths_on_different_hosts_are_ordered_only_as_far_as_clocks_tell(
    clocks: Clocks, deaths: list[Death], first: list[int]
) -> None:
    assert sorted(death.rank for death in first_deaths(deaths, set(), clocks)) == first
