"""Hard evidence of simulated hangs: hosts ahead of their devices, agents that look at other moments, rows that lack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.profiler.errors import UsageError
from megascope.profiler.topology import group_id
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import HANG_KINDS, FaultKind, parse_fault
from megascope.trainer.simulator.hangs.ahead import Lead
from megascope.trainer.simulator.hangs.closure import outstanding
from megascope.trainer.simulator.hangs.flights import Channels, flights_of, progress_of, sequences_before
from megascope.trainer.simulator.hangs.gaps import Gaps, Hardness
from megascope.trainer.simulator.hangs.hangs import HangScene, hang_scene
from megascope.trainer.simulator.hangs.program import Op
from megascope.trainer.simulator.hangs.tables import seen_ns
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.session import Recording
from megascope.trainer.simulator.writing import simulate

COSTS = Costs(tp_pairs=1, tp_ns=1e5, p2p_network_ns=1e6, reduce_scatter_ns=4e6, all_gather_ns=2e6, norm_ns=1e5)
AHEAD = 20
ON_DEVICE, FAR_AHEAD = Lead(AHEAD), Lead(AHEAD, reads_results=False)
LEADS = st.builds(Lead, st.integers(2, 30), st.booleans())
HARD = Hardness(missing=0.05, lead=Lead(AHEAD), stagger_s=1.0)
RECORDING = Recording(windows=False, heartbeat_s=0)


def job_of(tp: int = 4, pp: int = 2, dp: int = 4, **more: Any) -> SimulatedJob:
    return SimulatedJob(layout={"pp": pp, "dp": dp, "tp": tp}, costs=COSTS, **more)


def scene_of(text: str, job: SimulatedJob | None = None, lead: Lead = ON_DEVICE) -> HangScene:
    return hang_scene(job or job_of(), parse_fault(text), lead=lead)


def text_of(kind: FaultKind, rank: int = 5) -> str:
    return f"{kind}:rank={rank}:step={0 if kind is FaultKind.INIT else 3}"


def flights(scene: HangScene) -> list[list[dict[str, Any]]]:
    rows: list[list[dict[str, Any]]] = (
        flights_of(scene, Channels.of(scene.job), scene.final())
        .lists(np.zeros(scene.job.world_size, np.int64))
        .to_pylist()
    )
    return rows


@given(
    kind=st.sampled_from(HANG_KINDS), rank=st.integers(0, 15), lead=st.builds(Lead, st.integers(2, 30), st.booleans())
)
@settings(max_examples=60, deadline=None)
def test_hosts_are_ahead_as_far_as_they_may_be(kind: FaultKind, rank: int, lead: Lead) -> None:
    """So many operations are begun and not completed at most; a result is not read, nor work begun, before it is
    there."""
    scene, devices = (scene_of(text_of(kind, rank), lead=one) for one in (lead, Lead()))
    np.testing.assert_array_equal(scene.at, devices.at)
    np.testing.assert_array_equal(devices.host, devices.at)
    assert (scene.host >= scene.at).all()
    for place in np.ndindex(*scene.at.shape):
        row, at, host = int(scene.which[place]), int(scene.at[place]), int(scene.host[place])
        calls = scene.programs.calls[row]
        assert sum(one.op != Op.WORK for one in calls[at : host + 1]) <= lead.in_flight
        assert not lead.barriers(calls)[at + 1 : host + 1].any()
        known = int(scene.job.grid.rank[place])
        assert host <= max(scene.plan.stops.get(known, host), at)


@given(kind=st.sampled_from(HANG_KINDS), lead=st.sampled_from([Lead(), ON_DEVICE, FAR_AHEAD]))
@settings(max_examples=40, deadline=None)
def test_time_only_adds_to_what_ranks_did(kind: FaultKind, lead: Lead) -> None:
    scene = scene_of(text_of(kind), lead=lead)
    before: tuple[Any, Any] | None = None
    for moment in np.linspace(0, scene.stall_ns, 23).astype(int).tolist():
        look = scene.look(moment)
        counts = outstanding(scene.programs, look.which, look.at, look.host)
        offset = sequences_before(scene, look)
        issued, completed = (one + offset for one in counts)
        assert (completed <= issued).all()
        if before is not None:
            assert (issued >= before[0]).all()
            assert (completed >= before[1]).all()
        before = issued, completed
    final = scene.final()
    for name in ("at", "host"):
        np.testing.assert_array_equal(getattr(scene.look(scene.stall_ns), name), getattr(final, name))


def test_a_healthy_job_keeps_its_lead_from_step_to_step() -> None:
    scene = hang_scene(job_of(), None, 5, Lead(AHEAD))
    before: Any = None
    for moment in np.linspace(-scene.step_ns, 2 * scene.step_ns, 61).astype(int).tolist():
        look = scene.look(moment)
        issued = outstanding(scene.programs, look.which, look.at, look.host)[0] + sequences_before(scene, look)
        if before is not None:
            assert (issued >= before).all()
        before = issued


def test_victims_have_twenty_operations_under_way_and_a_spinning_rank_none_after_its_own() -> None:
    scene = scene_of(
        "library:rank=5:step=3:segment=tp_all_gather", job_of(microbatches=12), Lead(AHEAD, reads_results=False)
    )
    rows = flights(scene)
    waiting = [sum(one["kind"] in ("collective", "p2p") for one in row) for rank, row in enumerate(rows) if rank != 5]
    assert np.median(waiting) >= AHEAD
    own = [one for one in rows[5] if one["kind"] == "collective"]
    assert [one["segment"] for one in own] == ["tp_all_gather"]
    assert not any(one["waiting"] for one in own)


def test_what_holds_a_device_is_what_was_issued_first() -> None:
    """A stuck device has issued what its peers wait in, and lacks what they completed."""
    job = job_of()
    scene = scene_of("device-stuck:rank=5:step=3:segment=tp_all_gather", job)
    group = group_id("tp", job.topology.group("tp", 5))
    rows, progress = flights(scene), progress_of(scene, Channels.of(job), scene.final()).to_pylist()
    own = [one for one in rows[5] if one["group"] == group]
    peer = [one for one in rows[4] if one["group"] == group]
    assert own[0]["sequence"] == peer[0]["sequence"] - 1
    assert {one["sequence"] for one in peer} & {one["sequence"] for one in own}
    done = {one["group"]: one["completed"] for one in progress[4]}
    assert done[group] == own[0]["sequence"]


def test_half_the_bytes_at_one_number_hold_a_group() -> None:
    job = SimulatedJob(layout={"pp": 2, "dp": 4, "tp": 4}, costs=Costs(tp_pairs=1, tp_bytes=1000))
    scene = scene_of("mismatch:rank=5:step=3:segment=tp_all_gather:differs=size", job)
    group = group_id("tp", job.topology.group("tp", 5))
    first = {
        rank: next(one for one in flights(scene)[rank] if one["group"] == group) for rank in job.topology.group("tp", 5)
    }
    assert {rank: one["size_bytes"] for rank, one in first.items()} == {4: 1000, 5: 500, 6: 1000, 7: 1000}
    assert len({(one["segment"], one["sequence"]) for one in first.values()}) == 1


@pytest.mark.parametrize(
    ("segment", "receives", "to"), [("send_forward", "recv_forward", 21), ("send_backward", "recv_backward", 5)]
)
def test_a_receive_waits_for_a_send_that_never_comes(segment: str, receives: str, to: int) -> None:
    giver = 26 - to
    scene = scene_of(f"missing-call:rank={giver}:step=3:segment={segment}", lead=Lead())
    assert scene.plan.truth == (giver,)
    [wanted] = [one for one in flights(scene)[to] if one["segment"] == receives and one["waiting"]]
    own = progress_of(scene, Channels.of(scene.job), scene.final()).to_pylist()[giver]
    sent = next(one["issued"] for one in own if one["group"] == wanted["group"])
    assert wanted["peer"] == giver
    assert wanted["sequence"] == sent + 1


def test_a_job_that_crawls_moves_and_waits_for_one() -> None:
    scene = scene_of("crawling:rank=5:step=3:factor=40", lead=Lead())
    place = (0, 1, 1)
    assert int(scene.job.grid.rank[place]) == 5
    looks = [scene.look(moment) for moment in np.linspace(0, scene.step_ns, 400).astype(int).tolist()]

    def share_in_work(where: tuple[int, int, int]) -> float:
        return float(np.mean([scene.programs.op[one.which[where], one.at[where]] == Op.WORK for one in looks]))

    assert share_in_work(place) > 0.8
    assert max(share_in_work((0, 0, 1)), share_in_work((0, 1, 0)), share_in_work((1, 1, 1))) < 0.2
    progress = [int(one.at[place]) for one in looks]
    assert len(set(progress)) > 12


@given(share=st.floats(0.01, 0.3), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_so_much_is_lost_and_always_the_same(share: float, seed: int) -> None:
    gaps = Gaps.of(job_of(seed=seed), Hardness(missing=share))
    rows = np.arange(20_000)
    lost = gaps.lost("in_flight", rows, 7)
    assert abs(lost.mean() - share) < 5 * np.sqrt(share / len(rows))
    np.testing.assert_array_equal(lost, Gaps.of(job_of(seed=seed), Hardness(missing=share)).lost("in_flight", rows, 7))
    assert (lost != gaps.lost("progress", rows, 7)).any()
    assert not gaps.unheard.all()


def test_complete_evidence_lacks_nothing() -> None:
    gaps = Gaps.of(job_of(), Hardness())
    assert not gaps.lost("in_flight", np.arange(100)).any()
    assert not gaps.unheard.any()
    assert not gaps.phase_ns.any()


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[str, SimulatedJob], Store]:
    """Simulates a job up to a hang, with hard evidence."""

    def store_of(text: str, job: SimulatedJob) -> Store:
        simulate(job, tmp_path / "store", RECORDING, faults=[parse_fault(text)], hardness=HARD)
        return Store(tmp_path / "store")

    return store_of


def test_lost_evidence_is_not_in_the_store(stored: Callable[[str, SimulatedJob], Store]) -> None:
    job = job_of(dp=16, steps=3, first_step=1, seed=5)
    unheard = set(np.flatnonzero(Gaps.of(job, HARD).unheard).tolist())
    assert unheard
    store = stored("host-stuck:rank=5:step=4", job)
    for table in ("heartbeats", "in_flight"):
        heard = set(store.query(f"SELECT DISTINCT rank FROM {table}")["rank"].to_pylist())
        assert heard == set(range(job.world_size)) - unheard
    assert store.query("SELECT count(*) AS n FROM ranks")["n"].to_pylist() == [job.world_size]
    looks = store.query("SELECT count(*) AS n, count(DISTINCT (rank, moment_ns)) AS looks FROM heartbeats").to_pylist()[
        0
    ]
    expected = (job.world_size - len(unheard)) * len(seen_ns(scene_of("host-stuck:rank=5:step=4", job)))
    assert looks["n"] == looks["looks"]
    assert 0.9 * expected < looks["n"] < expected


def test_agents_look_at_moments_of_their_own(stored: Callable[[str, SimulatedJob], Store]) -> None:
    store = stored("host-stuck:rank=5:step=4", job_of(steps=3, first_step=1))
    rows = store.query(
        "SELECT host, max(moment_ns) AS last FROM heartbeats JOIN ranks USING (rank) GROUP BY host"
    ).to_pylist()
    last = [row["last"] for row in rows]
    assert len(set(last)) == len(last) == 4
    assert max(last) - min(last) < 2 * 10**9


def test_a_host_that_dies_takes_its_agent_with_it(stored: Callable[[str, SimulatedJob], Store]) -> None:
    store = stored("dead:host=1:step=4", job_of(steps=3, first_step=1))
    [truth] = store.query("SELECT kind, ranks, host FROM faults").to_pylist()
    assert (truth["kind"], truth["ranks"], truth["host"]) == ("dead", list(range(8, 16)), "node0001")
    incidents = store.query("SELECT incident, kind FROM incidents").to_pylist()
    assert {one["kind"] for one in incidents} == {"stalled"}
    assert not [one for one in incidents if "node0001" in one["incident"]]
    last = store.query(
        "SELECT rank BETWEEN 8 AND 15 AS dead, max(moment_ns) AS last FROM heartbeats GROUP BY ALL ORDER BY dead"
    )["last"].to_pylist()
    assert last[0] - last[1] > 60 * 10**9
    assert store.query("SELECT count(*) AS n FROM in_flight WHERE rank BETWEEN 8 AND 15")["n"][0].as_py() == 0


def test_a_rank_that_never_came_never_said_where_it_is(stored: Callable[[str, SimulatedJob], Store]) -> None:
    store = stored("init:rank=9:step=1", job_of(steps=3, first_step=1))
    assert 9 not in store.query("SELECT rank FROM ranks")["rank"].to_pylist()
    assert store.query("SELECT count(*) AS n FROM groups WHERE list_contains(ranks, 9)")["n"][0].as_py() > 0


@pytest.mark.parametrize("segment", ["checkpoint", "evaluation", "compile"])
def test_what_takes_long_is_heard_of_only_while_it_does(
    segment: str, stored: Callable[[str, SimulatedJob], Store]
) -> None:
    store = stored(f"long-phase:rank=5:step=4:segment={segment}:delay_ms=20000", job_of(steps=3, first_step=1))
    assert store.query("SELECT count(*) AS n FROM incidents")["n"][0].as_py() == 0
    [held] = store.query(
        """SELECT (max(moment_ns) - arg_max(list_last(in_flight).begun_ns, moment_ns)) / 1e9 AS age,
               arg_max(list_last(in_flight).segment, moment_ns) AS segment
           FROM heartbeats WHERE rank = 5"""
    ).to_pylist()
    assert held["segment"] == segment
    assert 19 < held["age"] < 22.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dead:step=3", "must say where it is"),
        ("dead:rank=3:host=0:step=3", "must say where it is"),
        ("host-stuck:rank=3:step=3:state=asleep", "no such state: use sleeping"),
        ("mismatch:rank=3:step=3:differs=colour", "no such differs: use type, size"),
        ("missing-call:rank=3:step=3:differs=size", "does not take"),
        ("crawling:rank=3:step=3", "lacks factor"),
        ("long-phase:rank=3:step=3:segment=forward:delay_ms=9", "takes long by nature"),
        (
            "missing-call:rank=17:step=3:segment=send_forward",
            "leaves out no send of its rank: use one of send_backward",
        ),
        ("crawling:rank=3,4:step=3:factor=20", "names several ranks"),
    ],
)
def test_faults_that_cannot_be_are_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        scene_of(text)
