"""Hangs that people met and told of in public, built from their description: each must get the answer that was found,
or none where none was. From a job's own evidence and from dumps; what logs tell is in `test_reported_logs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.pace import KnownPace
from megascope.viz3d.verdict import HangVerdict, State
from support.dumps import Call, Job, Message, absent_member
from support.hang_scenes import Scene


def accused(verdict: HangVerdict | Diagnosis) -> dict[tuple[int, ...], str]:
    roots = verdict.culprits if isinstance(verdict, HangVerdict) else verdict.roots
    return {one.ranks: str(one.kind) for one in roots}


def look(scene: Scene, *, step_s: float | None = 1.0, moved: Iterable[int] = (), apart_s: float = 40) -> Diagnosis:
    earlier, later = scene.looks(moved, apart_s)
    return compare_looks(earlier, later, pace=KnownPace(step=step_s))


def test_megatron_lm_5100_a_fixed_order_of_sends_and_receives() -> None:
    """PP4: in a ring of messages each stage receives first, and nobody has sent."""
    scene = Scene(Topology.of(pp=4))
    for rank in range(4):
        scene.message(rank, "recv", (rank - 1) % 4, 5, kind="pp")
    diagnosis = look(scene)
    assert diagnosis.state == State.HANG
    assert accused(diagnosis) == {(0, 1, 2, 3): "p2p-cycle"}


def test_pytorch_172668_both_ranks_send_before_they_receive() -> None:
    """PP2, four stages, two nodes: rank 0 waits in the send of stage 0, rank 1 in that of stage 1; neither receives."""
    scene = Scene(Topology.of(pp=2))
    scene.message(0, "send", 1, 2, kind="pp", waiting=True)
    scene.message(1, "send", 0, 1, kind="pp", waiting=True)
    diagnosis = look(scene)
    assert diagnosis.state == State.HANG
    assert accused(diagnosis) == {(0, 1): "p2p-cycle"}


def test_pytorch_172668_the_same_from_dumps(tmp_path: Path) -> None:
    """A dump does not tell if a rank waits for its send or works on: the circle is suspected, and no rank alone."""
    job = Job({"0": ("pp", (0, 1))})
    job.calls = {rank: [Call("0", 1), Message("0", "send", 1 - rank)] for rank in (0, 1)}
    verdict = judge_dumps([read_folder(job.write(tmp_path))]).verdict
    assert verdict.verdict == State.INCONCLUSIVE
    assert accused(verdict) == {(0, 1): "p2p-cycle"}
    assert "rank 0 waits in send #1 for rank 1; rank 1 waits in send #1" in verdict.culprits[0].evidence[0].statement


@pytest.mark.parametrize("step", [None, 12])
def test_megatron_lm_5240_two_ranks_set_up_their_communicator_in_another_order(step: int | None) -> None:
    """PP4, VP2: each of two neighbours receives from the other in what should have been made by both first. Before the
    first step, and in a later one in which another pair meets for the first time. That it is a communicator's first use
    that hangs is not told: nothing in the evidence is of how it was set up."""
    scene = Scene(Topology.of(pp=4))
    scene.states = {rank: replace(state, step=step) for rank, state in scene.states.items()}
    scene.message(1, "recv", 2, 1, kind="pp")
    scene.message(2, "recv", 1, 1, kind="pp")
    for rank in (0, 3):
        scene.message(rank, "recv", 1 if rank == 0 else 2, 1, kind="pp")
    diagnosis = look(scene, step_s=None if step is None else 1.0)
    assert diagnosis.state == State.HANG
    assert accused(diagnosis) == {(1, 2): "p2p-cycle"}
    assert len(diagnosis.explained) == 2


def test_deepspeed_5066_an_expert_without_tokens() -> None:
    """ZeRO-3 with experts: rank 2 has gone on to the loss while its partners gather its expert's weights. One look
    tells where it is and that it is a call behind; that it left that out, and in which line, past and stack tell."""
    scene = Scene(Topology.of(dp=4))
    for rank in (0, 1, 3):
        scene.collective(rank, "dp", 40, "all_gather")
    scene.progress(2, scene.of("dp", 2), 39, 39)
    scene.work(2, "loss")
    diagnosis = look(scene)
    assert diagnosis.state == State.HANG
    assert accused(diagnosis) == {(2,): "host-stuck"}
    assert diagnosis.roots[0].segment == "loss"


def test_automodel_2748_a_checkpoint_that_takes_longer_than_the_barriers_limit() -> None:
    """Rank 0 writes for 98 s, the barrier gives up after 60: slow, with rank 0 named for it, and no hang."""
    scene = Scene(Topology.of(dp=8))
    scene.work(0, "save_checkpoint", since_s=25, kind="checkpoint")
    for rank in range(1, 8):
        scene.collective(rank, "world", 2, "barrier", since_s=24)
    diagnosis = look(scene, step_s=10.0, apart_s=20)
    assert diagnosis.state == State.SLOW
    assert accused(diagnosis) == {(0,): "host-stuck"}
    assert diagnosis.roots[0].segment == "save_checkpoint"


def test_megatron_bridge_5377_rank_0_prints_a_table() -> None:
    scene = Scene(Topology.of(dp=8))
    scene.work(0, "print_table", since_s=300, kind="host")
    for rank in range(1, 8):
        scene.collective(rank, "world", 2, "barrier", since_s=299)
    diagnosis = look(scene)
    assert diagnosis.state == State.HANG
    assert accused(diagnosis) == {(0,): "host-stuck"}
    assert diagnosis.roots[0].segment == "print_table"


def test_axolotl_921_data_is_prepared_for_half_an_hour() -> None:
    """Before the first step one rank prepares the data, and the others wait at a barrier."""
    scene = Scene(Topology.of(dp=4))
    scene.work(0, "prepare_data", since_s=1900, kind="data")
    for rank in (1, 2, 3):
        scene.collective(rank, "world", 1, "barrier", since_s=1890)
    diagnosis = look(scene, step_s=None)
    assert diagnosis.state == State.HANG
    assert accused(diagnosis) == {(0,): "host-stuck"}
    assert diagnosis.roots[0].segment == "prepare_data"


def test_nccl_2353_one_rank_spins_inside_the_library() -> None:
    """All have joined; one process works while the others sleep: suspected to be in the library, and no more."""
    scene = Scene(Topology.of(tp=4))
    for rank in range(4):
        scene.collective(rank, "tp", 9)
        scene.process(rank, "running" if rank == 1 else "sleeping")
    diagnosis = look(scene)
    assert diagnosis.state == State.INCONCLUSIVE
    assert accused(diagnosis) == {(1,): "library"}


def test_pytorch_196968_the_rank_whose_dump_is_missing_beside_the_dumps_of_all_others(tmp_path: Path) -> None:
    """Its traceback is lost: that it alone left no dump, and all others wait for it, says that it is gone."""
    dumps = absent_member(range(8), 5).write(tmp_path, [rank for rank in range(8) if rank != 5])
    verdict = judge_dumps([read_folder(dumps)]).verdict
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(5,): "dead"}
    assert verdict.missing == (5,)
    assert (verdict.victims, verdict.explained) == (7, 7)
    assert "no dump of rank 5" in verdict.abstained[0].reason


def test_art_840_context_parallel_ranks_disagree() -> None:
    """cp=4: rank 2 is one all-to-all behind, in a plan of its own; axes have any names. That plans differ is not told:
    it has not come to a call in which that would show, so that it is stuck in its own work and not diverged."""
    scene = Scene(Topology.of(dp=2, cp=4))
    for rank in (0, 1, 3):
        scene.work(rank, "attention")
        scene.collective(rank, "cp", 18, "all_to_all", since_s=49)
    scene.progress(2, scene.of("cp", 2), 17, 17)
    scene.work(2, "plan")
    for rank in range(4, 8):
        scene.collective(rank, "dp", 3, "all_reduce", since_s=40)
    diagnosis = look(scene)
    assert diagnosis.state == State.HANG
    assert accused(diagnosis) == {(2,): "host-stuck"}
    assert diagnosis.roots[0].segment == "plan"
    assert len(diagnosis.explained) == 7
