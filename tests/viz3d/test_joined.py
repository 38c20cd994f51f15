"""Operations that all members have joined: whose device, which links, or ranks that are elsewhere in the program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.history import NoHistory
from megascope.viz3d.looks import compare_looks
from megascope.viz3d.states import Snapshot
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import STEP, Scene

MESH = Topology.of(pp=2, dp=2, tp=4)
GROUP = (0, 1, 2, 3)


def stopped_inside(segment: str = "tp_all_gather", *, work: str = "forward") -> Scene:
    """Everybody waits in the world group for one tensor group, all of which is inside its work in number 7."""
    scene = Scene(MESH)
    for rank in range(MESH.world_size):
        if rank in GROUP:
            scene.work(rank, work)
            scene.collective(rank, "tp", 7, segment)
        else:
            scene.collective(rank, "world", 2, since_s=40)
    return scene


def completed(scene: Scene, ranks: tuple[int, ...]) -> None:
    """These ranks have completed number 7 and gone on to wait with the others."""
    for rank in ranks:
        scene.states[rank] = replace(scene.states[rank], flights=())
        scene.progress(rank, scene.of("tp", rank), 7, 7)
        scene.collective(rank, "world", 2, since_s=40)


def test_nobody_completes_it_so_no_rank_is_accused_and_the_group_is_suspected_once() -> None:
    diagnosis = compare_looks(*stopped_inside().looks())
    assert diagnosis.state == State.INCONCLUSIVE
    [root] = diagnosis.roots
    assert (root.ranks, root.kind, root.segment, root.sequence) == (GROUP, CulpritKind.NETWORK, "tp_all_gather", 7)
    assert root.confidence < 0.5
    assert root.waiters == MESH.world_size - len(GROUP)


def test_most_have_completed_it_so_the_device_of_the_others_is_stuck() -> None:
    scene = stopped_inside()
    completed(scene, (0, 1, 3))
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.HANG
    [root] = diagnosis.roots
    assert (root.ranks, root.kind, root.segment) == ((2,), CulpritKind.DEVICE_STUCK, "tp_all_gather")


def test_two_that_do_not_complete_the_same_are_one_root() -> None:
    scene = stopped_inside()
    completed(scene, (0, 3))
    [root] = compare_looks(*scene.looks()).roots
    assert (root.ranks, root.kind) == ((1, 2), CulpritKind.DEVICE_STUCK)


def test_a_broadcast_that_some_have_completed_accuses_no_device() -> None:
    scene = stopped_inside("tp_broadcast")
    completed(scene, (0, 1, 3))
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.INCONCLUSIVE
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((2,), CulpritKind.NETWORK)]


def test_an_operation_from_before_the_work_does_not_hold_the_rank_up() -> None:
    scene = stopped_inside()
    completed(scene, (0, 1, 3))
    scene.work(2, "optimizer", since_s=20)
    [root] = compare_looks(*scene.looks()).roots
    assert (root.ranks, root.kind, root.segment) == ((2,), CulpritKind.HOST_STUCK, "optimizer")


def test_one_that_works_on_inside_it_while_all_others_sleep_is_the_suspect() -> None:
    scene = stopped_inside()
    scene.process(3, "running")
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.INCONCLUSIVE
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((3,), CulpritKind.LIBRARY)]
    scene.process(1, "running")
    assert [root.kind for root in compare_looks(*scene.looks()).roots] == [CulpritKind.NETWORK]


def reducing(dp: int, silent: Iterable[int] = (), mesh: Topology | None = None) -> Scene:
    """All replicas stand in one reduction; of the silent ones nothing was ever heard."""
    scene = Scene(mesh or Topology.of(dp=dp))
    for rank in range(scene.mesh.world_size):
        scene.collective(rank, "dp", 4, "dp_reduce_scatter")
    for rank in silent:
        scene.lose(rank)
    return scene


def looks(scene: Scene) -> tuple[Snapshot, Snapshot]:
    """Two looks at ranks of which those without data have never had any."""
    earlier, later = scene.looks()
    return tuple(replace(one, never_heard=frozenset(one.missing)) for one in (earlier, later))  # type: ignore[return-value]


@pytest.mark.parametrize(("dp", "silent", "suspected"), [(32, 1, True), (31, 1, False), (64, 2, True), (64, 3, False)])
def test_links_are_suspected_beside_few_members_that_are_not_heard_of(dp: int, silent: int, *, suspected: bool) -> None:
    diagnosis = compare_looks(*looks(reducing(dp, range(2, 2 + silent))))
    assert diagnosis.state == State.INCONCLUSIVE
    heard = tuple(rank for rank in range(dp) if not 2 <= rank < 2 + silent)
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == (
        [(heard, CulpritKind.NETWORK)] if suspected else []
    )
    told = [root.why for root in diagnosis.roots] or [one.reason for one in diagnosis.abstained]
    silent_ranks = ", ".join(str(rank) for rank in range(2, 2 + silent))
    assert any(f"nothing is heard of rank {silent_ranks}, and" in one for one in told)


def test_the_one_that_works_on_is_the_suspect_beside_a_member_that_is_not_heard_of() -> None:
    scene = reducing(16, [5])
    scene.process(3, "running")
    [root] = compare_looks(*looks(scene)).roots
    assert (root.ranks, root.kind) == ((3,), CulpritKind.LIBRARY)
    assert "nothing is heard of rank 5" in root.why


@pytest.mark.parametrize(("lost", "suspected"), [(1, True), (4, False)])
def test_lost_records_and_members_that_are_not_heard_of_count_together(lost: int, *, suspected: bool) -> None:
    scene = reducing(32, [5])
    for rank in range(6, 6 + lost):
        scene.states[rank] = replace(scene.states[rank], flights=())
    kinds = [root.kind for root in compare_looks(*looks(scene)).roots]
    assert kinds == ([CulpritKind.NETWORK] if suspected else [])


def missed(*, in_step: bool) -> Scene:
    """Ranks 5, 13, 21, ... stand in their gather, and their tensor-parallel peers wait for them in the call after it.
    Rank 5 was never heard of; not ``in_step``, its peers wait for it in an earlier call than the others do."""
    scene = Scene(Topology.of(dp=32, tp=8))
    for rank in range(scene.mesh.world_size):
        if rank % 8 == 5:
            scene.collective(rank, "dp", 4, "dp_all_gather")
        else:
            scene.collective(rank, "tp", 7 if in_step or rank >= 8 else 6, "tp_all_gather", since_s=40)
    scene.lose(5)
    return scene


@pytest.mark.parametrize("in_step", [True, False])
def test_a_silent_member_is_in_the_gather_if_it_is_missed_where_the_others_are(*, in_step: bool) -> None:
    diagnosis = compare_looks(*looks(missed(in_step=in_step)))
    assert diagnosis.state == State.INCONCLUSIVE
    links = [root.ranks for root in diagnosis.roots if root.kind == CulpritKind.NETWORK]
    assert links == ([tuple(range(13, 256, 8))] if in_step else [])


def test_before_the_first_step_a_rank_that_is_not_heard_of_may_never_have_come() -> None:
    scene = reducing(32, [5])
    scene.states = {rank: replace(state, step=None) for rank, state in scene.states.items()}
    assert CulpritKind.NETWORK not in {root.kind for root in compare_looks(*looks(scene)).roots}


def test_members_in_different_steps_are_no_sign_of_links_though_one_is_not_heard_of() -> None:
    scene = reducing(32, [5])
    scene.states[1] = replace(scene.states[1], step=STEP + 1)
    assert compare_looks(*looks(scene)).roots == ()


def test_the_same_number_from_different_steps_is_a_desync() -> None:
    scene = stopped_inside()
    scene.states[1] = replace(scene.states[1], step=STEP + 1)
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.HANG
    [root] = diagnosis.roots
    assert (root.ranks, root.kind, root.sequence) == ((1,), CulpritKind.ITERATION_DESYNC, 7)
    assert f"3 in {STEP}, 1 in {STEP + 1}" in root.why


def test_the_same_call_from_different_parts_of_the_program_has_diverged() -> None:
    scene = Scene(MESH)
    for rank in range(MESH.world_size):
        if rank in GROUP:
            scene.work(rank, "eval_forward" if rank == 2 else "forward")
            scene.collective(rank, "tp", 7, "tp_all_gather")
        else:
            scene.collective(rank, "world", 2, since_s=40)
    [root] = compare_looks(*scene.looks()).roots
    assert (root.ranks, root.kind) == ((2,), CulpritKind.DIVERGED)


@pytest.mark.parametrize(
    ("around", "kind"), [("eval_forward", CulpritKind.DIVERGED), ("forward", CulpritKind.MISMATCH)]
)
def test_another_call_has_diverged_only_where_it_comes_from_another_part(around: str, kind: CulpritKind) -> None:
    scene = Scene(Topology.of(dp=4))
    for rank in range(4):
        scene.work(rank, around if rank == 2 else "forward")
        scene.collective(rank, "dp", 5, "broadcast" if rank == 2 else "dp_all_reduce")
    [root] = compare_looks(*scene.looks()).roots
    assert (root.ranks, root.kind) == ((2,), kind)


def test_a_message_of_a_rank_without_work_that_has_met_its_peer_accuses_nobody() -> None:
    scene = Scene(Topology.of(pp=3))
    scene.message(0, "send", 1, 4)
    scene.message(1, "recv", 0, 4)
    scene.message(2, "recv", 1, 4)
    scene.progress(1, scene.group("pp_forward", (1, 2)), 3, 3)
    diagnosis = compare_looks(*scene.looks())
    assert CulpritKind.HOST_STUCK not in {root.kind for root in diagnosis.roots}
    assert diagnosis.state == State.INCONCLUSIVE


def starting(*, lost: bool, segment_kind: str = "init") -> Scene:
    """Before the first step everybody but rank 5 is in the set-up and waits there; it is lost, or in the set-up too."""
    scene = Scene(MESH)
    for rank in range(MESH.world_size):
        scene.states[rank] = replace(scene.states[rank], step=None)
        scene.work(rank, "setup", kind=segment_kind)
        if rank != 5:
            scene.collective(rank, "world", 1)
    if lost:
        scene.lose(5)
    return scene


@pytest.mark.parametrize("lost", [True, False])
def test_a_rank_that_the_others_wait_for_in_their_set_up(*, lost: bool) -> None:
    [root] = compare_looks(*starting(lost=lost).looks(apart_s=60)).roots
    assert (root.ranks, root.kind) == ((5,), CulpritKind.INIT)


def test_a_job_that_marks_no_steps_is_not_taken_for_one_that_starts() -> None:
    assert [root.kind for root in compare_looks(*starting(lost=True, segment_kind="compute").looks()).roots] == ["dead"]
    stuck = compare_looks(*starting(lost=False, segment_kind="compute").looks()).roots
    assert [root.kind for root in stuck] == [CulpritKind.HOST_STUCK]


def test_a_process_that_went_during_the_set_up_is_dead() -> None:
    scene = starting(lost=False)
    scene.process(5, "gone")
    assert [root.kind for root in compare_looks(*scene.looks()).roots] == [CulpritKind.DEAD]


@dataclass(frozen=True)
class Past(NoHistory):
    """A history in which every rank issues number 7 of its tensor group before it waits for anybody else."""

    scene: Scene

    def asynchronous(self) -> frozenset[str]:
        return frozenset()

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        return 7 if self.scene.groups[other].kind == "tp" else None

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        return None


def test_calls_that_are_missing_crosswise_are_an_inversion() -> None:
    """Ranks 0 and 3 reduce before their last tensor-parallel call, ranks 1 and 2 wait for them there."""
    scene = Scene(Topology.of(dp=2, tp=2))
    for rank in range(4):
        if rank in (0, 3):
            scene.progress(rank, scene.of("tp", rank), 6, 6)
            scene.collective(rank, "dp", 5)
        else:
            scene.progress(rank, scene.of("dp", rank), 4, 4)
            scene.collective(rank, "tp", 7)
    [root] = compare_looks(*scene.looks(), Past(scene)).roots
    assert (root.ranks, root.kind, root.waiters) == ((0, 3), CulpritKind.ORDER_INVERSION, 2)


def test_ranks_that_all_left_out_the_same_call_are_no_inversion() -> None:
    """The first of every tensor group went past its call and waits for the whole job, which waits for them."""
    scene = Scene(Topology.of(dp=2, tp=2))
    for rank in range(4):
        if rank in (0, 2):
            scene.progress(rank, scene.of("tp", rank), 6, 6)
            scene.collective(rank, "world", 5)
        else:
            scene.collective(rank, "tp", 7)
    roots = compare_looks(*scene.looks(), Past(scene)).roots
    assert {(root.ranks, root.kind) for root in roots} == {
        ((0,), CulpritKind.MISSING_CALL), ((2,), CulpritKind.MISSING_CALL),
    }  # fmt: skip


@pytest.mark.parametrize("axis", ["pp", "pipeline", "depth"])
def test_stages_call_it_from_work_of_their_own_whatever_their_axis_is_called(axis: str) -> None:
    """First and last stage share the embedding: the one comes from its backward pass, the other from the loss."""
    mesh = Topology.of(**{axis: 4, "dp": 2})
    scene = Scene(mesh)
    tied = scene.group("embedding", (0, 6))
    for rank in range(8):
        if rank < 6:
            scene.group(f"{axis}_forward", (rank, rank + 2))
        if rank in (0, 6):
            scene.work(rank, "loss" if rank else "backward")
            scene.in_group(rank, tied, 4, "embedding_all_reduce")
        else:
            scene.collective(rank, "world", 2, since_s=40)
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.INCONCLUSIVE
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((0, 6), CulpritKind.NETWORK)]
