"""Simulated hangs: everybody stands where a slow walk of the programs puts them, and the evidence says so."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.profiler.topology import group_id
from megascope.profiler.vocabulary import SegmentKind
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import HANG_KINDS, Fault, FaultKind, parse_fault
from megascope.trainer.simulator.hangs.flights import Channels, flights_of, progress_of, steps_of
from megascope.trainer.simulator.hangs.hangs import HangScene, hang_scene
from megascope.trainer.simulator.hangs.program import Op
from megascope.trainer.simulator.job import SimulatedJob
from support.slow_hang import Place, SlowJob

COSTS = Costs(tp_pairs=1, tp_ns=1e5)
OF_THEMSELVES = {FaultKind.ORDER_INVERSION, FaultKind.P2P_CYCLE}
"""Kinds that must come to a stand by their programs alone."""


def job_of(tp: int, pp: int, dp: int, microbatches: int = 4, **more: Any) -> SimulatedJob:
    return SimulatedJob(layout={"pp": pp, "dp": dp, "tp": tp}, microbatches=microbatches, costs=COSTS, **more)


def slowly(scene: HangScene) -> Any:
    """Where the ranks end up by the slow walk, without what the plan shortens."""
    kind = scene.fault.kind if scene.fault else None
    cut = {} if kind in OF_THEMSELVES else dict(scene.plan.limits)
    frozen = set[tuple[int, int, frozenset[Place]]]()
    if kind in {FaultKind.NETWORK, FaultKind.LIBRARY}:
        for one in scene.plan.frozen:
            members = frozenset((stage, tp, replica) for stage, tp, replica in np.argwhere(one.members).tolist())
            frozen.add((one.op, one.number, members))
    return SlowJob(scene, cut, frozen).run()


@given(
    kind=st.sampled_from(HANG_KINDS),
    sizes=st.tuples(st.integers(2, 3), st.integers(2, 3), st.integers(2, 3)),
    rank=st.integers(0, 26),
    microbatches=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_everybody_stands_where_a_slow_walk_puts_them(
    kind: FaultKind, sizes: tuple[int, int, int], rank: int, microbatches: int
) -> None:
    job = job_of(*sizes, microbatches)
    rank %= job.world_size
    if kind is FaultKind.P2P_CYCLE:  # needs a stage after it
        rank = int(job.grid.rank[0, job.grid.tp[rank], job.grid.replica[rank]])
    scene = hang_scene(job, parse_fault(f"{kind}:rank={rank}:step={0 if kind is FaultKind.INIT else 3}"))
    np.testing.assert_array_equal(scene.at, slowly(scene))
    assert (scene.programs.calls[0][scene.at[0, 0, 0]].name) != "end"


@pytest.mark.parametrize("kind", [FaultKind.HOST_STUCK, FaultKind.MISMATCH, FaultKind.DEVICE_STUCK])
def test_interleaved_stages_stand_where_a_slow_walk_puts_them(kind: FaultKind) -> None:
    job = job_of(2, 2, 2, microbatches=4, chunks=2)
    for rank in range(8):
        scene = hang_scene(job, parse_fault(f"{kind}:rank={rank}:step=3"))
        np.testing.assert_array_equal(scene.at, slowly(scene))


def test_a_healthy_job_comes_to_the_end_of_its_programs() -> None:
    scene = hang_scene(job_of(2, 3, 2), None, step=5)
    ends = np.array([len(calls) - 1 for calls in scene.programs.calls])
    np.testing.assert_array_equal(scene.at, ends[scene.which])
    earlier, later = scene.look(-scene.step_ns // 2), scene.look(scene.step_ns * 3 // 2)
    assert set(steps_of(scene, earlier).flat) == {4}
    assert set(steps_of(scene, later).flat) == {6}


def flight_rows(scene: HangScene) -> list[list[dict[str, Any]]]:
    origin = np.zeros(scene.job.world_size, np.int64)
    lists: list[list[dict[str, Any]]] = (
        flights_of(scene, Channels.of(scene.job), scene.final()).lists(origin).to_pylist()
    )
    return lists


def progress_rows(scene: HangScene) -> list[dict[int, tuple[int, int]]]:
    rows = progress_of(scene, Channels.of(scene.job), scene.final()).to_pylist()
    return [{one["group"]: (one["issued"], one["completed"]) for one in row} for row in rows]


def scene_of(text: str, job: SimulatedJob | None = None) -> HangScene:
    return hang_scene(job or job_of(4, 4, 4), parse_fault(text))


@pytest.mark.parametrize("verb", ["send_forward", "send_backward"])
@pytest.mark.parametrize("microbatch", [0, 2, 3])
def test_a_send_that_is_left_out_is_not_made_good_by_one_of_the_next_step(verb: str, microbatch: int) -> None:
    """Nobody gets to that one: the norm of the step before has the partner in it, which still waits for a message."""
    rank = 17 if verb == "send_forward" else 33
    scene = scene_of(f"missing-call:rank={rank}:segment={verb}:microbatch={microbatch}:step=12")
    assert np.array_equal(scene.at, slowly(scene))
    calls = [scene.programs.calls[which][at] for which, at in zip(scene.which.flat, scene.at.flat, strict=True)]
    assert {one.step for one in calls} == {0}


def test_a_rank_stuck_in_its_own_work_shows_it_and_its_partners_wait() -> None:
    scene = scene_of("host-stuck:rank=1:step=12:segment=backward:microbatch=2")
    flights = flight_rows(scene)
    assert [(one["segment"], one["kind"], one["microbatch"]) for one in flights[1]][-1] == ("backward", "compute", 2)
    group = group_id("tp", (0, 1, 2, 3))
    for partner in (0, 2, 3):
        names = {one["segment"]: one for one in flights[partner]}
        assert names["tp_all_gather"]["group"] == group
        assert names["tp_all_gather"]["sequence"] == progress_rows(scene)[1][group][0] + 1
        assert names["backward"]["begun_ns"] < names["tp_all_gather"]["begun_ns"]
    assert all(row for row in flights)


def test_peers_have_completed_what_a_stuck_device_has_not() -> None:
    scene = scene_of("device-stuck:rank=5:step=12:segment=tp_reduce_scatter")
    [flight] = [one for one in flight_rows(scene)[5] if one["segment"] == "tp_reduce_scatter"]
    progress = progress_rows(scene)
    assert progress[5][flight["group"]] == (flight["sequence"], flight["sequence"] - 1)
    members = job_of(4, 4, 4).topology.group("tp", 5)
    assert all(progress[rank][flight["group"]][1] >= flight["sequence"] for rank in members if rank != 5)


def test_another_call_has_another_name_at_the_same_number() -> None:
    scene = scene_of("mismatch:rank=21:step=12")
    by_rank = {rank: rows[-1] for rank, rows in enumerate(flight_rows(scene))}
    members = job_of(4, 4, 4).topology.group("dp", 21)
    assert {by_rank[rank]["segment"] for rank in members} == {"dp_reduce_scatter", "dp_all_reduce"}
    assert by_rank[21]["segment"] == "dp_all_reduce"
    assert len({by_rank[rank]["sequence"] for rank in members}) == 1


def test_a_branch_that_diverged_shows_in_the_work_around_it() -> None:
    scene = scene_of("diverged:rank=21:step=12")
    assert [one["segment"] for one in flight_rows(scene)[21]][-2:] == ["eval_forward", "tp_broadcast"]


def test_a_left_out_call_leaves_a_rank_one_number_behind() -> None:
    scene = scene_of("missing-call:rank=21:step=12")
    job = scene.job
    group, progress = group_id("dp", job.topology.group("dp", 21)), progress_rows(scene)
    others = {progress[rank][group][0] for rank in job.topology.group("dp", 21) if rank != 21}
    assert others == {progress[21][group][0] + 1}
    assert flight_rows(scene)[21][-1]["segment"] == "world_all_reduce"


def test_a_replica_ahead_by_a_step_waits_in_another_collective() -> None:
    scene = scene_of("iteration-desync:rank=4:step=12")
    assert scene.plan.truth == tuple(sorted(scene.job.grid.rank[:, :, 1].flat))
    inside = {rows[-1]["segment"] for rank, rows in enumerate(flight_rows(scene)) if rank in scene.plan.truth}
    assert inside == {"world_all_reduce"}


def test_messages_under_way_are_in_flight_at_one_end_only() -> None:
    """A receive that was posted ahead waits for its send; a send for its receive; one that met is gone."""
    scene = scene_of("host-stuck:rank=0:step=12:segment=forward:microbatch=2", job_of(1, 3, 1, microbatches=6))
    flights = flight_rows(scene)
    waiting = [one for one in flights[1] if one["segment"] == "recv_forward"]
    assert [one["peer"] for one in waiting] == [0] * len(waiting)
    assert waiting[0]["microbatch"] == 2
    assert [one["waiting"] for one in waiting] == [True] + [False] * (len(waiting) - 1)
    assert not [one for one in flights[0] if one["segment"] == "send_forward"]
    assert {one["group"] for one in waiting} == {group_id("pp_forward", (0, 1))}


def test_sequence_numbers_go_on_from_the_steps_before() -> None:
    job = job_of(4, 4, 4)
    counts = [progress_rows(scene_of(f"host-stuck:rank=5:step={step}", job))[9] for step in (0, 7)]
    world = group_id("world", range(64))
    assert world not in counts[0]
    assert counts[1][world] == (7, 7)


def test_an_initialisation_hang_has_no_step() -> None:
    scene = scene_of("init:rank=9:step=0")
    assert scene.is_starting
    assert scene.plan.absent == (9,)
    assert {tuple(one["segment"] for one in rows) for rank, rows in enumerate(flight_rows(scene)) if rank != 9} == {
        ("setup", "world_all_reduce")
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host-stuck:rank=99:step=3", "only ranks 0 to 63"),
        ("host-stuck:rank=3:step=3:segment=tp_all_gather", "none of the segments"),
        ("device-stuck:rank=3:step=3:segment=forward", "use one of"),
        ("host-stuck:rank=3:step=3:segment=forward:microbatch=9", "for micro-batch 9"),
        ("mismatch:rank=3,4:step=3", "name one"),
        ("p2p-cycle:rank=63:step=3", "before the last stage"),
        ("init:rank=3:step=0:segment=data", "before the first step"),
        ("init:rank=3:step=3", "give step=0"),
        ("host-stuck:rank=3:step=101", "acts in no step of 0 to 100"),
    ],
)
def test_a_hang_without_a_place_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        scene_of(text)


def test_ten_thousand_ranks_are_closed_over() -> None:
    job = job_of(8, 8, 192)
    scene = scene_of("host-stuck:rank=4096:step=5", job)
    waits = {call.kind for calls in scene.programs.calls for call in calls}
    assert SegmentKind.COLLECTIVE in waits
    assert (scene.programs.op[scene.which, scene.at] != int(Op.WORK)).sum() == job.world_size - 1


def test_what_is_true_of_a_fault_is_its_row() -> None:
    fault = parse_fault("host-stuck:rank=3,7:step=12:segment=backward")
    assert isinstance(fault, Fault)
    assert (fault.ranks, fault.first_step, fault.last_step, fault.is_hang) == ((3, 7), 12, 12, True)
