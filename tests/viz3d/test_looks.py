"""Each kind of hang, made by hand, on several meshes: the root is named, the victims are not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.history import NoHistory
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import Scene, cascade

MESHES = [
    Topology.of(pp=2, dp=2, tp=2),
    Topology.of(pp=8, dp=8, tp=8),
    Topology.of(ep=4, cp=4),
]
MESH_NAMES = ["demo", "512", "ep-cp"]
every_mesh = pytest.mark.parametrize("mesh", MESHES, ids=MESH_NAMES)


@dataclass(frozen=True)
class Past(NoHistory):
    """A history told by hand."""

    beside: frozenset[str] = frozenset()
    issued: dict[tuple[int, int], int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def asynchronous(self) -> frozenset[str]:
        return self.beside

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        return self.issued.get((rank, other))

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        return self.names.get(sequence)


def named(diagnosis: Diagnosis) -> list[tuple[tuple[int, ...], str, str | None]]:
    return [(root.ranks, str(root.kind), root.segment) for root in diagnosis.roots]


def expect_one(scene: Scene, culprit: int, kind: CulpritKind, segment: str | None, past: Past | None = None) -> None:
    diagnosis = compare_looks(*scene.looks(), past)
    assert diagnosis.state == State.HANG
    assert named(diagnosis) == [((culprit,), kind, segment)]
    others = scene.mesh.world_size - 1
    assert len(diagnosis.waiting) == len(diagnosis.explained) == diagnosis.roots[0].waiters == others
    assert culprit not in diagnosis.waiting


@every_mesh
@pytest.mark.parametrize(
    ("segment", "kind", "process"),
    [("data", "data", "disk-sleep"), ("checkpoint_write", "checkpoint", "sleeping"), ("forward", "compute", "stopped")],
)
def test_stuck_on_the_host(mesh: Topology, segment: str, kind: str, process: str) -> None:
    culprit = mesh.world_size - 3
    scene = cascade(mesh, culprit)
    scene.work(culprit, segment, kind=kind)
    scene.process(culprit, process)
    expect_one(scene, culprit, CulpritKind.HOST_STUCK, segment)


@every_mesh
def test_stuck_between_segments(mesh: Topology) -> None:
    expect_one(cascade(mesh, 1), 1, CulpritKind.HOST_STUCK, None)


@every_mesh
@pytest.mark.parametrize("state", ["gone", "zombie"])
def test_a_dead_process_has_no_way_out_whatever_it_had_in_flight(mesh: Topology, state: str) -> None:
    scene = cascade(mesh, 2)
    scene.work(2, "backward")
    scene.collective(2, "world", 99)
    scene.process(2, state)
    expect_one(scene, 2, CulpritKind.DEAD, "backward")


@every_mesh
def test_a_stopped_process_that_had_joined_is_the_root(mesh: Topology) -> None:
    scene = cascade(mesh, 0)
    scene.work(0, "forward")
    scene.collective(0, mesh.names[-1], 7)
    scene.process(0, "stopped")
    expect_one(scene, 0, CulpritKind.HOST_STUCK, "forward")


@every_mesh
def test_a_rank_without_data_that_is_waited_for(mesh: Topology) -> None:
    scene = cascade(mesh, 3)
    scene.lose(3)
    diagnosis = compare_looks(*scene.looks())
    assert named(diagnosis) == [((3,), "dead", None)]
    assert diagnosis.roots[0].confidence <= 0.5
    assert diagnosis.abstained[0].reason.startswith("1 ranks have no fresh heartbeat: 3")


@every_mesh
def test_a_rank_that_ended_while_others_still_call(mesh: Topology) -> None:
    scene = cascade(mesh, 3)
    scene.process(3, "exited")
    diagnosis = compare_looks(*scene.looks())
    [root] = diagnosis.roots
    assert (root.ranks, root.kind) == ((3,), CulpritKind.MISSING_CALL)
    assert root.segment == f"{mesh.names[-1]}_all_reduce"


@every_mesh
def test_a_prefetched_operation_does_not_hide_the_root(mesh: Topology) -> None:
    """The stuck rank has a receive in flight that its victim has not answered: a circle in appearance only."""
    culprit = 0
    scene = cascade(mesh, culprit)
    victim = mesh.group(mesh.names[-1], culprit)[1]
    scene.message(culprit, "recv", victim, 9, since_s=70)
    scene.work(culprit, "forward", since_s=60)
    expect_one(scene, culprit, CulpritKind.HOST_STUCK, "forward")


def test_a_collective_that_runs_beside_work_does_not_hide_the_root() -> None:
    """Rank 2 is stuck in backward after it issued a bucket that rank 3 has not come to, for rank 3 waits for rank 1,
    which waits for rank 0, which waits for rank 2: a circle, but for the bucket that nobody waits for."""
    scene = Scene(Topology.of(pp=2, dp=2))
    scene.work(2, "backward", since_s=60)
    scene.collective(2, "dp", 5, since_s=55)
    scene.message(0, "recv", 2, 8, kind="pp_backward")
    scene.collective(1, "dp", 3)
    scene.message(3, "recv", 1, 9, kind="pp_forward")
    expect_one(scene, 2, CulpritKind.HOST_STUCK, "backward", Past(frozenset({"dp_all_reduce"})))


def skipped(mesh: Topology, culprit: int) -> Scene:
    """The culprit went past number 7 of its inner group and waits for the whole job, which waits for it there."""
    scene = cascade(mesh, culprit)
    outer = mesh.names[-2]
    scene.progress(culprit, scene.of(mesh.names[-1], culprit), 6, 6)
    for rank in mesh.group(outer, culprit):
        scene.states[rank] = replace(scene.states[rank], flights=())
        scene.progress(rank, scene.of(outer, rank), 3, 3)
        scene.collective(rank, "world", 2, since_s=45)
    return scene


@every_mesh
def test_a_skipped_collective_by_the_ranks_own_history(mesh: Topology) -> None:
    inner = mesh.names[-1]
    scene = skipped(mesh, 1)
    past = Past(issued={(1, scene.of(inner, 1)): 7})
    expect_one(scene, 1, CulpritKind.MISSING_CALL, f"{inner}_all_reduce", past)


def test_a_skipped_collective_by_ranks_in_the_same_place() -> None:
    """Without history: in the other tensor groups of the stage everyone is past number 7."""
    mesh = Topology.of(pp=2, dp=4, tp=2)
    scene = Scene(mesh)
    for rank in range(mesh.world_size):
        scene.progress(rank, scene.of("tp", rank), 7, 7)
        if rank not in (2, 3):
            scene.collective(rank, "world", 2, since_s=40)
    scene.collective(3, "tp", 7)
    scene.progress(2, scene.of("tp", 2), 6, 6)
    scene.collective(2, "world", 2, since_s=45)
    expect_one(scene, 2, CulpritKind.MISSING_CALL, "tp_all_reduce")


@every_mesh
def test_one_operation_ahead_at_the_same_number(mesh: Topology) -> None:
    """After a skip the numbers agree again and the names do not: who has the name that comes next left one out."""
    culprit, inner = 0, mesh.names[-1]
    scene = cascade(mesh, culprit)
    scene.work(culprit, "forward")
    scene.collective(culprit, inner, 7, "after_all_gather", since_s=48)
    past = Past(names={7: f"{inner}_all_reduce", 8: "after_all_gather"})
    expect_one(scene, culprit, CulpritKind.MISSING_CALL, f"{inner}_all_reduce", past)


def test_a_mismatch_goes_by_the_majority_and_a_tie_names_both() -> None:
    scene = Scene(Topology.of(dp=4))
    for rank in range(4):
        scene.collective(rank, "dp", 5, "broadcast" if rank == 2 else "dp_all_reduce")
    diagnosis = compare_looks(*scene.looks())
    assert named(diagnosis) == [((2,), "mismatch", "broadcast")]
    assert diagnosis.explained == {0, 1, 3}
    tie = Scene(Topology.of(dp=2))
    for rank in range(2):
        tie.collective(rank, "dp", 5, "broadcast" if rank else "dp_all_reduce")
    [root] = compare_looks(*tie.looks()).roots
    assert (root.ranks, root.kind) == ((0, 1), CulpritKind.MISMATCH)
    assert root.confidence <= 0.5


def test_collectives_in_two_orders_are_a_circle() -> None:
    mesh = Topology.of(dp=2, tp=2)
    scene = Scene(mesh)
    for rank in range(4):
        scene.collective(rank, "tp" if rank in (0, 3) else "dp", 5)
    [root] = compare_looks(*scene.looks()).roots
    assert (root.ranks, root.kind) == ((0, 1, 2, 3), CulpritKind.ORDER_INVERSION)
    assert "rank 0 waits in tp_all_reduce #5 for rank 1" in root.why


def test_two_stages_that_both_receive_first_are_a_circle() -> None:
    scene = Scene(Topology.of(pp=4))
    for rank in range(4):
        scene.message(rank, "recv", (rank + 1) % 4, 1, kind="pp")
    [root] = compare_looks(*scene.looks()).roots
    assert (root.ranks, root.kind) == ((0, 1, 2, 3), CulpritKind.P2P_CYCLE)


def test_a_send_that_never_came() -> None:
    """The silent rank is the root, not the one that receives."""
    scene = Scene(Topology.of(pp=3))
    scene.message(1, "recv", 0, 4)
    scene.message(2, "recv", 1, 4)
    scene.progress(0, scene.group("pp_forward", (0, 1)), 3, 3)
    scene.progress(1, scene.group("pp_forward", (1, 2)), 3, 3)
    expect_one(scene, 0, CulpritKind.HOST_STUCK, None)


@every_mesh
def test_all_joined_and_none_completes_is_inconclusive(mesh: Topology) -> None:
    scene = Scene(mesh)
    for rank in range(mesh.world_size):
        scene.collective(rank, "world", 4)
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.INCONCLUSIVE
    [root] = diagnosis.roots
    assert (root.kind, len(root.ranks)) == (CulpritKind.NETWORK, mesh.world_size)
    assert root.confidence < 0.5


@every_mesh
def test_one_rank_does_not_complete_what_the_others_completed(mesh: Topology) -> None:
    scene = Scene(mesh)
    group = scene.group("world", range(mesh.world_size))
    for rank in range(mesh.world_size):
        scene.progress(rank, group, 4, 4)
    scene.work(1, "backward")
    scene.collective(1, "world", 4)
    diagnosis = compare_looks(*scene.looks())
    assert named(diagnosis) == [((1,), "device-stuck", "world_all_reduce")]


@every_mesh
def test_a_job_that_moves_is_running_and_names_nobody(mesh: Topology) -> None:
    scene = cascade(mesh, 1)
    scene.work(1, "forward", since_s=0.1)
    diagnosis = compare_looks(*scene.looks(moved=range(mesh.world_size)))
    assert diagnosis.state == State.RUNNING
    assert diagnosis.roots == ()


@every_mesh
def test_a_root_that_moves_while_others_wait_long_is_slow_not_stuck(mesh: Topology) -> None:
    scene = cascade(mesh, 1)
    scene.work(1, "checkpoint_write", kind="checkpoint")
    diagnosis = compare_looks(*scene.looks(moved=[1]))
    assert diagnosis.state == State.SLOW
    assert [root.ranks for root in diagnosis.roots] == [(1,)]


def test_one_look_is_not_enough_and_none_is_said_aloud() -> None:
    scene = cascade(MESHES[0], 1)
    diagnosis = compare_looks(scene.snapshot(), scene.snapshot())
    assert diagnosis.state == State.INCONCLUSIVE
    assert "only one look" in diagnosis.abstained[0].reason
    empty = Scene(Topology.of(dp=2))
    empty.lose(0)
    empty.lose(1)
    assert compare_looks(*empty.looks()).abstained[0].signal == "heartbeats"


def test_two_roots_at_once_are_both_named() -> None:
    scene = Scene(Topology.of(dp=4, tp=2))
    for rank in (1, 7):
        scene.work(rank, "data", kind="data")
    for rank in (0, 6):
        scene.collective(rank, "tp", 3)
    for rank in (2, 4):
        scene.collective(rank, "dp", 2)
    diagnosis = compare_looks(*scene.looks())
    assert {root.ranks for root in diagnosis.roots} == {(1,), (7,)}
    assert diagnosis.explained == diagnosis.waiting == {0, 2, 4, 6}
