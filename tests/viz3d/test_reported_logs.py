"""Hangs that people met and told of in public, as their logs tell them: each must get the answer that was found, or
none where none was. The lines and the numbers around what a report states are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from megascope.viz3d.logs.reading import read_logs
from megascope.viz3d.logs.verdict import judge_logs
from megascope.viz3d.verdict import HangVerdict, State
from support.job_logs import UNKNOWN, JobLog

Judge = Callable[[JobLog], HangVerdict]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    def _judge(log: JobLog) -> HangVerdict:
        return judge_logs(read_logs([log.write(tmp_path / "job.log")])).verdict

    return _judge


def accused(verdict: HangVerdict) -> dict[tuple[int, ...], str]:
    return {one.ranks: str(one.kind) for one in verdict.culprits}


def everybody_named(verdict: HangVerdict) -> set[int]:
    return {rank for ranks in accused(verdict) for rank in ranks}


def test_megatron_bridge_5283_the_first_stage_ran_out_of_memory(judge: Judge) -> None:
    """TP4, PP2: only the last stage alarms, in point to point; all ranks of the first had an exception before."""
    log = JobLog()
    log.has_size(8)
    for rank in range(4):
        log.raises(rank, f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {20 + rank}.00 MiB.")
    for rank in range(4, 8):
        log.times_out(
            rank, 7, "COALESCED", group=f"PG ID 3 PG GUID {20 + rank}(PIPELINE)", group_rank=1, elements=UNKNOWN
        )
    verdict = judge(log)
    assert verdict.verdict == State.CRASHED
    assert accused(verdict) == {(0, 1, 2, 3): "exception"}
    assert "OutOfMemory" in verdict.culprits[0].evidence[0].statement
    assert verdict.victims == 4


def test_notes_of_192_gpus_nan_on_four_ranks_and_another_one_alarms(judge: Judge) -> None:
    """TP2, PP12, EP4: everybody is told that rank 63 timed out; ranks 188 to 191 found a NaN and left before that."""
    log = JobLog()
    log.has_size(192)
    for rank in range(188, 192):
        log.raises(rank, f"AssertionError: Rank {rank}: found NaN in local grad norm. Device: {rank % 8}, node: h23")
    log.times_out(63, 91, "ALLGATHER", group="PG ID 9 PG GUID 88(EXPERT)", group_rank=3)
    for rank in range(0, 188, 7):
        log.is_asked(rank, 63, 30, 30)
    verdict = judge(log)
    assert verdict.verdict == State.CRASHED
    assert accused(verdict) == {(188, 189, 190, 191): "exception"}
    assert "NaN" in verdict.culprits[0].evidence[0].statement
    assert verdict.unexplained == (63,)


def test_pytorch_152623_ranks_at_two_numbers_and_one_that_did_not_join(judge: Judge) -> None:
    """Ranks 0-2 are at 315, 3-6 at 317; the desync report says of rank 7 that it did not join 183."""
    log = JobLog()
    log.has_size(8)
    for rank in range(7):
        log.times_out(rank, 315 if rank < 3 else 317)
    unknown = judge(log)
    assert unknown.verdict == State.INCONCLUSIVE
    assert everybody_named(unknown) <= {7}
    log.say("\t     [7] finished collective #182, but didn't join collective #183 (count from 1)", 0)
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(7,): "missing-call"}
    assert verdict.victims == 7


def test_ms_swift_10183_one_rank_broadcasts_another_size(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank in range(4):
        log.times_out(rank, 7219, "BROADCAST", elements=24_084_544 if rank == 2 else 64)
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(2,): "mismatch"}
    assert "24084544" in verdict.culprits[0].evidence[0].statement


def test_pytorch_140563_one_of_117_brings_1025_elements(judge: Judge) -> None:
    log = JobLog()
    log.has_size(117)
    for rank in range(117):
        log.times_out(rank, 88, elements=1025 if rank == 58 else 262_144)
    assert accused(judge(log)) == {(58,): "mismatch"}


def test_axolotl_1495_rank_7_alone_has_another_size(judge: Judge) -> None:
    """Only some ranks are quoted, and why is not known: the size that differs is all that can be said."""
    log = JobLog()
    log.has_size(8)
    for rank in (0, 1, 3, 5, 7):
        log.times_out(rank, 13_807, elements=10_942_336 if rank == 7 else 16_384)
    verdict = judge(log)
    assert accused(verdict) == {(7,): "mismatch"}


def test_ms_swift_8102_ranks_with_fewer_samples_leave_out_the_backward_pass(judge: Judge) -> None:
    """ZeRO-3: ranks 5 and 6 are behind the others in the group of all, and wait nowhere. A watchdog's numbers do not
    tell whether they have left calls out or have yet to come to them, so that the kind is the weaker of the two."""
    log = JobLog()
    log.has_size(8)
    for rank in (0, 1, 2, 3, 4, 7):
        log.times_out(rank, 950, "_REDUCE_SCATTER_BASE", enqueued=955)
    for rank in (5, 6):
        log.is_asked(rank, 0, 902, 902)
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(5,): "host-stuck", (6,): "host-stuck"}
    assert verdict.explained == 6
    assert "enqueued 902" in verdict.culprits[0].evidence[0].statement


def test_pytorch_141069_uneven_data(judge: Judge) -> None:
    """DDP: ranks 1-3 time out at 19. Rank 0 ran out of data: known once its own number is, a suspicion before."""
    log = JobLog()
    log.has_size(4)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    assert judge(log).verdict == State.INCONCLUSIVE
    assert accused(judge(log)) == {(0,): "missing-call"}
    assert judge(log).culprits[0].confidence <= 0.3
    log.is_asked(0, 1, 18, 18)
    assert judge(log).verdict == State.HANG
    assert accused(judge(log)) == {(0,): "host-stuck"}


def test_nccl_1730_all_256_have_joined(judge: Judge) -> None:
    log = JobLog()
    log.has_size(256)
    for rank in range(256):
        log.times_out(rank, 4021)
    verdict = judge(log)
    assert verdict.verdict == State.INCONCLUSIVE
    assert set(accused(verdict).values()) <= {"network"}
    assert any("all members have joined" in one.reason for one in verdict.abstained)


def test_pytorch_196968_the_rank_that_raised_left_no_dump_and_no_alarm(judge: Judge) -> None:
    log = JobLog()
    log.has_size(8)
    log.raises(5, "RuntimeError: shape '[8, 12]' is invalid for input of size 90")
    for rank in (0, 1, 2, 3, 4, 6, 7):
        log.times_out(rank, 61)
    verdict = judge(log)
    assert verdict.verdict == State.CRASHED
    assert accused(verdict) == {(5,): "exception"}
    assert (verdict.victims, verdict.explained) == (7, 7)


def test_marin_8870_a_silent_freeze_and_the_host_that_told_the_first_error_of_a_device(judge: Judge) -> None:
    """176 nodes of JAX: nothing for fifteen minutes, then one host after the other tells that a device is contained."""
    log = JobLog()
    for second, host in ((37, "s9jv"), (36, "s2gr"), (43, "s5k6"), (38, "s24q")):
        told = "CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error"
        log.say(f"{host}: E0905 17:34:{second}.549000 2183 allocator.cc:414] cudaFreeAsync failed: {told}")
    verdict = judge(log)
    assert (verdict.verdict, verdict.culprits) == (State.INCONCLUSIVE, ())
    first = next(one.reason for one in verdict.abstained if one.signal == "devices")
    assert first.startswith("the first error of a device is CUDA_ERROR_CONTAINED on s2gr at ")
    assert " 17:34:36.549 UTC: Invalid access of peer GPU memory" in first
    assert first.endswith("3 others told one")


@pytest.mark.parametrize(
    ("ranks", "told"), [((3, 3), None), ((3, 3, 5, 5), "; 1 other told one"), ((3, 4, 5), "; 2 others told one")]
)
def test_the_second_error_of_a_rank_is_none_of_another(judge: Judge, ranks: tuple[int, ...], told: str | None) -> None:
    """Once a device is of no use, a rank logs one error after the other."""
    log = JobLog()
    for second, rank in enumerate(ranks):
        name = ("ILLEGAL_ADDRESS", "LAUNCH_FAILED")[second % 2]
        log.say(f"E0905 17:34:0{second}.000000 1 stream.cc:41] failed: CUDA_ERROR_{name}: it failed", rank)
    reason = next(one.reason for one in judge(log).abstained if one.signal == "devices")
    assert reason.startswith("the first error of a device is CUDA_ERROR_ILLEGAL_ADDRESS of rank 3")
    assert reason.endswith(told) if told is not None else "told one" not in reason


def test_marin_8934_an_exception_of_nvlink_tells_where_it_was_met(judge: Judge) -> None:
    log = JobLog()
    log.say("worker-88: [rank704]: torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected")
    verdict = judge(log)
    assert verdict.verdict == State.INCONCLUSIVE
    assert accused(verdict) == {(704,): "exception"}
    assert verdict.culprits[0].hosts == ("worker-88",)
    assert verdict.culprits[0].confidence <= 0.4
    assert "here it was met" in verdict.culprits[0].evidence[0].statement


def test_nccl_1610_a_ranks_number_in_its_group_is_not_its_name(judge: Judge) -> None:
    """`[rank13] ... [Rank 1]`: rank 13 waits, and rank 1 has nothing to do with it."""
    log = JobLog()
    log.has_size(16)
    log.times_out(13, 50, group="PG ID 2 PG GUID 7(tp)", group_rank=1)
    verdict = judge(log)
    assert verdict.verdict == State.INCONCLUSIVE
    assert everybody_named(verdict) == set()
    assert verdict.unexplained == (13,)


def test_megatron_bridge_943_a_count_that_is_no_count(judge: Judge) -> None:
    """Coalesced operations print 2^64 - 1 elements: unknown, so no size differs."""
    log = JobLog()
    log.has_size(4)
    for rank in range(4):
        log.times_out(rank, 5, "COALESCED", group="PG ID 1 PG GUID 3(pp)", elements=UNKNOWN if rank else 64)
    verdict = judge(log)
    assert verdict.culprits == ()
    assert str(UNKNOWN) not in verdict.sentence()


def test_megatron_lm_2238_the_group_with_the_shortest_limit_alarms_first(judge: Judge) -> None:
    """EP gives up after its default of ten minutes; the root is in TP, where rank 6 is behind rank 7."""
    log = JobLog()
    log.has_size(8)
    for number, pair in enumerate(((0, 4), (1, 5), (2, 7))):
        for place, rank in enumerate(pair):
            log.times_out(rank, 33, "ALLTOALL", group=f"PG ID 4 PG GUID {40 + number}(ep)", group_rank=place)
    log.times_out(7, 210, group="PG ID 2 PG GUID 23(tp)", group_rank=1)
    log.say(
        f"[{log.stamp()} ProcessGroupNCCL.cpp:1743] [PG ID 2 PG GUID 23(tp) Rank 0] Received a dump signal due to a "
        f"collective timeout from  rank 0 and x. Last enqueued NCCL work: 209, last completed NCCL work: 209.",
        6,
    )
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(6,): "host-stuck"}
    assert "alarmed first" in " ".join(one.reason for one in verdict.abstained)


def test_art_840_context_parallel_ranks_in_different_all_to_alls(judge: Judge) -> None:
    """The same from logs: differing numbers in the group, and the one that is behind waits in nothing later. That its
    plan is another is in none of the lines."""
    log = JobLog()
    log.has_size(4)
    for rank in (0, 1, 3):
        log.times_out(rank, 18, "ALLTOALL_BASE")
    log.is_asked(2, 0, 17, 17)
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(2,): "host-stuck"}
    assert (verdict.victims, verdict.explained) == (3, 3)


def test_torchtitan_1681_a_receive_of_8_bytes_where_4_were_sent(judge: Judge) -> None:
    """PP2, DP2, TP4 on gloo: why is not known; the process that says so is a victim or half of the trouble. gloo does
    not say who sent, so that one of the pair is named, and the evidence says that it may be the other."""
    log = JobLog()
    log.has_size(16)
    log.raises(3, "RuntimeError: [enforce fail at pair.cc:490] op.preamble.length <= op.nbytes. 8 vs 4")
    for rank in (4, 5):
        log.raises(rank, "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.3]:55")
    verdict = judge(log)
    assert verdict.verdict == State.CRASHED
    assert accused(verdict) == {(3,): "mismatch"}
    assert verdict.culprits[0].confidence <= 0.4
    assert "8 vs 4" in verdict.culprits[0].evidence[0].statement
    assert "or the one that sent it" in verdict.culprits[0].evidence[0].statement
