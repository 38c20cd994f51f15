"""Verdicts from logs alone: who ended first, who is behind; never who alarmed first, never silence alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.viz3d.ends import Waiters
from megascope.viz3d.hang import Judged
from megascope.viz3d.logs.adding import add_to_snapshot, add_to_verdict
from megascope.viz3d.logs.facts import LogEvidence
from megascope.viz3d.logs.reading import read_logs
from megascope.viz3d.logs.verdict import judge_logs
from megascope.viz3d.looks import compare_looks
from megascope.viz3d.verdict import CulpritKind, HangCulprit, HangVerdict, State
from support.hang_scenes import cascade
from support.job_logs import JobLog, communicator

Judge = Callable[[JobLog], HangVerdict]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    def _judge(log: JobLog) -> HangVerdict:
        return judge_logs(read_logs([log.write(tmp_path / "job.log")])).verdict

    return _judge


def named(verdict: HangVerdict) -> dict[tuple[int, ...], str]:
    return {one.ranks: str(one.kind) for one in verdict.culprits}


def test_the_rank_whose_number_is_behind_holds_the_others_up(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    log.is_asked(0, 1, 18, 18)
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert named(verdict) == {(0,): "host-stuck"}
    assert (verdict.victims, verdict.explained, verdict.unexplained) == (3, 3, ())
    (evidence,) = verdict.culprits[0].evidence
    assert (evidence.value, evidence.peers) == (18, 19)
    assert "job.log" in evidence.statement
    assert "alarmed first" in verdict.abstained[0].reason


def test_who_alarms_first_is_not_accused(judge: Judge) -> None:
    """The alarm comes from a group of its own; the root is behind in the group of all."""
    log = JobLog()
    log.has_size(8)
    for rank in (4, 5):
        log.times_out(rank, 6, group="PG ID 3 PG GUID 9(ep)", group_rank=rank - 4, enqueued=6)
    for rank in range(8):
        if rank == 7:
            log.is_asked(rank, 4, 30, 30)
        else:
            log.times_out(rank, 31)
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert named(verdict) == {(7,): "host-stuck"}


def test_a_silent_rank_is_a_suspicion_only(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    verdict = judge(log)
    assert verdict.verdict == State.INCONCLUSIVE
    assert named(verdict) == {(0,): "missing-call"}
    assert verdict.culprits[0].confidence <= 0.3
    assert "ranks 1, 2, 3 wait in number 19, nothing is told of ranks 0" in verdict.abstained[0].reason


def test_most_ranks_silent_suspects_nobody(judge: Judge) -> None:
    log = JobLog()
    log.has_size(64)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    verdict = judge(log)
    assert verdict.verdict == State.INCONCLUSIVE
    assert verdict.culprits == ()


def test_without_the_size_of_the_job_nothing_is_told_of_others(judge: Judge) -> None:
    log = JobLog()
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    verdict = judge(log)
    assert verdict.verdict == State.INCONCLUSIVE
    assert verdict.culprits == ()
    assert verdict.unexplained == (1, 2, 3)


def test_numbers_of_messages_are_a_ranks_own_and_compare_with_nothing(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank, number in ((0, 11981), (1, 13696), (2, 12223)):
        log.times_out(rank, number, "RECV", group="PG ID 2 PG GUID 5(pp)")
    verdict = judge(log)
    assert verdict.verdict == State.INCONCLUSIVE
    assert verdict.culprits == ()
    assert verdict.unexplained == (0, 1, 2)


def test_an_operation_that_one_rank_did_not_complete_although_the_others_did(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    log.times_out(2, 40, enqueued=45)
    for rank in (0, 1, 3):
        log.is_asked(rank, 2, 45, 44)
    verdict = judge(log)
    assert named(verdict) == {(2,): "device-stuck"}


def test_a_watchdog_that_does_not_come_back(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    log.is_asked(0, 1, 18, 18)
    log.say("[E307 09:50:00.5 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0 Rank 0] Heartbeat monitor timed out! x", 0)
    verdict = judge(log)
    assert named(verdict) == {(0,): "host-stuck"}
    assert verdict.culprits[0].confidence > 0.7


def test_an_exception_after_the_first_alarm_is_what_the_end_of_a_hang_looks_like(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    log.is_asked(0, 1, 18, 18)
    log.raises(3, "RuntimeError: could not save on the way out")
    verdict = judge(log)
    assert named(verdict) == {(0,): "host-stuck"}


def test_a_killed_rank_and_those_who_lost_it(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank in (0, 1, 2):
        log.raises(rank, "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.4]:1234")
    assert named(judge(log)) == {(3,): "dead"}
    assert judge(log).culprits[0].confidence == 0.5
    log.reports(3, -9, host="node7")
    verdict = judge(log)
    assert verdict.verdict == State.CRASHED
    assert named(verdict) == {(3,): "dead"}
    assert verdict.culprits[0].hosts == ("node7",)
    assert verdict.culprits[0].confidence > 0.8


def test_all_say_that_a_peer_is_gone_and_nobody_is_left(judge: Judge) -> None:
    log = JobLog()
    log.has_size(2)
    for rank in (0, 1):
        log.raises(rank, "RuntimeError: Connection reset by peer")
    verdict = judge(log)
    assert verdict.verdict == State.CRASHED
    assert verdict.culprits == ()


def test_of_several_that_said_nothing_the_launcher_ended_some(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank in (1, 3):
        log.raises(rank, "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:36240.")
    verdict = judge(log)
    assert verdict.verdict == State.CRASHED
    assert verdict.culprits == ()
    assert "of ranks 0, 2 there is no last word" in verdict.abstained[0].reason


def test_an_abort_after_a_timeout_is_the_watchdogs(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    log.is_asked(0, 1, 18, 18)
    log.reports(1, -6)
    assert named(judge(log)) == {(0,): "host-stuck"}


def test_an_exception_without_a_rank_is_the_launchers_first_failure(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    log.raises(None, "ValueError: a bad batch")
    log.reports(2, 1, others=[(0, -15), (1, -15), (3, -15)])
    verdict = judge(log)
    assert named(verdict) == {(2,): "exception"}
    assert "a bad batch" in verdict.culprits[0].evidence[0].statement


def test_an_exception_of_nobody_is_told_and_nobody_accused(judge: Judge) -> None:
    log = JobLog()
    log.raises(None, "ValueError: a bad batch")
    verdict = judge(log)
    assert verdict.verdict == State.CRASHED
    assert verdict.culprits == ()
    assert "a bad batch" in verdict.abstained[0].reason


def test_a_peer_that_was_waited_for_in_vain_is_a_suspicion(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    log.raises(0, "RuntimeError: [unbound_buffer.cc:84] Timed out waiting 30000ms for recv operation to complete")
    for rank in (1, 2):
        log.raises(rank, "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.4]:1234")
    verdict = judge(log)
    assert verdict.verdict == State.INCONCLUSIVE
    assert named(verdict) == {(3,): "host-stuck"}
    assert verdict.culprits[0].confidence <= 0.3


def test_a_monitored_barrier_says_who_did_not_come(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    log.raises(0, "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms")
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert named(verdict) == {(1, 3): "missing-call"}


def test_a_rendezvous_that_one_rank_did_not_come_to(judge: Judge) -> None:
    log = JobLog()
    for rank in (0, 1, 3):
        log.say("starting", rank)
    log.raises(
        0, "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined."
    )
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert named(verdict) == {(2,): "init"}
    assert (verdict.victims, verdict.explained) == (3, 3)


def test_a_rendezvous_of_which_the_logs_do_not_tell_who_came(judge: Judge) -> None:
    log = JobLog()
    log.raises(
        0, "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined."
    )
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert verdict.culprits == ()


def test_an_error_of_communication_that_is_the_ranks_own(judge: Judge) -> None:
    log = JobLog()
    log.has_size(2)
    log.raises(
        1, "torch.distributed.DistBackendError: NCCL error in: x.cpp:268, unhandled cuda error, NCCL version 2.18"
    )
    log.raises(
        0, "torch.distributed.DistBackendError: NCCL error in: x.cpp:268, remote process exited, NCCL version 2.18"
    )
    verdict = judge(log)
    assert named(verdict) == {(1,): "exception"}


def test_the_first_task_that_srun_names_is_the_first(judge: Judge) -> None:
    log = JobLog()
    log.say("srun: error: node1: task 9: Segmentation fault (core dumped)")
    log.say("srun: error: node0: tasks 0-7: Killed")
    verdict = judge(log)
    assert named(verdict) == {(9,): "dead"}
    assert verdict.culprits[0].hosts == ("node1",)


def test_what_ranks_raise_when_they_are_asked_to_end_is_no_crash(judge: Judge) -> None:
    log = JobLog()
    log.say("slurmstepd: error: *** JOB 1 ON a CANCELLED AT 2026-03-07T21:52:36 DUE TO TIME LIMIT ***")
    log.raises(1, "RuntimeError: DataLoader worker (pid 123) is killed by signal: Terminated.")
    verdict = judge(log)
    assert verdict.verdict == State.FINISHED
    assert verdict.culprits == ()


def test_an_exception_that_a_finished_job_got_over(judge: Judge) -> None:
    log = JobLog()
    log.raises(1, "ConfigError: no such tracker")
    log.say("[after training is done] datetime: 2026-03-07 12:00:00")
    verdict = judge(log)
    assert verdict.verdict == State.FINISHED
    assert verdict.culprits == ()


def test_an_xid_names_the_rank_whose_device_it_is(judge: Judge) -> None:
    log = JobLog()
    log.lines += communicator(["nodeA", "nodeB"], 16)
    log.say("nodeB kernel: [123.4] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.")
    for rank in range(16):
        if rank != 10:
            log.times_out(rank, 77)
    verdict = judge(log)
    assert verdict.verdict == State.HANG
    assert named(verdict) == {(10,): "device-stuck"}
    assert verdict.culprits[0].hosts == ("nodeB",)
    assert verdict.explained == 15


def test_an_xid_of_a_program_accuses_nobody(judge: Judge) -> None:
    log = JobLog()
    log.lines += communicator(["nodeA"], 8)
    log.say("nodeA kernel: [123.4] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault")
    verdict = judge(log)
    assert verdict.culprits == ()
    assert any("Xid 31" in one.reason for one in verdict.abstained)


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: *** JOB 1 ON a CANCELLED AT 2026-03-07T21:52:36 DUE TO TIME LIMIT ***",
        "Main process received SIGTERM, exiting",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 2606 got signal: 15",
        "KeyboardInterrupt",
    ],
)
def test_what_was_asked_to_end_is_no_hang(judge: Judge, line: str) -> None:
    log = JobLog()
    log.say(" iteration 5/ 10 | lm loss: 2.0 |")
    log.say("Traceback (most recent call last):", 0)
    log.say("KeyboardInterrupt", 0)
    log.say(line)
    verdict = judge(log)
    assert verdict.verdict == State.FINISHED
    assert "interrupted" in verdict.abstained[0].reason
    assert verdict.culprits == ()


def test_real_logs_hold_no_hang(traces: Path) -> None:
    running = judge_logs(read_logs([traces / "logs" / "meg_ds_3d_gpt2_perf_n16.out.gz"])).verdict
    assert running.verdict == State.INCONCLUSIVE
    assert running.culprits == ()
    ended = judge_logs(read_logs([traces / "logs" / "meg_gpt2_perf_n16-1999618.out.gz"])).verdict
    assert ended.verdict == State.FINISHED
    assert "DUE TO TIME LIMIT" in ended.abstained[0].reason


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 24), st.data())
def test_order_of_lines_and_names_of_ranks_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, world: int, data: st.DataObject
) -> None:
    """Whoever is behind is named, in whatever order the watchdogs write."""
    culprit = data.draw(st.integers(0, world - 1))
    order = data.draw(st.permutations([rank for rank in range(world) if rank != culprit]))
    log = JobLog()
    log.has_size(world)
    for rank in order:
        log.times_out(rank, 19)
    log.is_asked(culprit, order[0], 18, 18)
    head, pairs = log.lines[:2], log.lines[2:]
    shuffled = data.draw(st.permutations(pairs))
    log.lines = [*head, *shuffled]
    evidence = read_logs([log.write(tmp_path_factory.mktemp("order") / "job.log")])
    verdict = judge_logs(evidence).verdict
    assert named(verdict) == {(culprit,): "host-stuck"}
    assert verdict.explained == world - 1


def raised_log(tmp_path: Path, rank: int) -> LogEvidence:
    log = JobLog()
    log.has_size(8)
    log.raises(rank, "torch.OutOfMemoryError: CUDA out of memory.")
    return read_logs([log.write(tmp_path / "job.log")])


def lost(rank: int) -> Judged:
    """What the waits of the others say of a rank that left no data."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), rank)
    scene.lose(rank)
    earlier, later = scene.looks()
    diagnosis = compare_looks(earlier, later)
    (root,) = diagnosis.roots
    culprit = HangCulprit(root.ranks, (), root.confidence, "high", root.kind, None, None, root.waiters, ())
    verdict = HangVerdict("r", 0, None, diagnosis.state, missing=later.missing, culprits=(culprit,))
    return Judged(verdict, later, diagnosis.graph)


def test_a_log_tells_why_a_rank_left_no_data(tmp_path: Path) -> None:
    judged = lost(5)
    assert named(judged.verdict) == {(5,): "dead"}
    verdict = add_to_verdict(judged, raised_log(tmp_path, 5)).verdict
    assert named(verdict) == {(5,): "exception"}
    assert verdict.culprits[0].confidence == 0.9
    assert "OutOfMemoryError" in verdict.culprits[0].evidence[0].statement
    assert verdict.missing == ()


def test_a_log_that_speaks_of_another_rank_is_told_beside(tmp_path: Path) -> None:
    verdict = add_to_verdict(lost(5), raised_log(tmp_path, 2)).verdict
    assert named(verdict) == {(5,): "dead"}
    assert "the waits do not lead to" in verdict.abstained[0].reason


def test_a_silent_rank_gives_way_to_the_one_that_a_line_names(tmp_path: Path) -> None:
    judged = lost(5)
    weak = replace(judged.verdict.culprits[0], ranks=(3,))
    judged = replace(judged, verdict=replace(judged.verdict, culprits=(weak, *judged.verdict.culprits)))
    verdict = add_to_verdict(judged, raised_log(tmp_path, 5)).verdict
    assert named(verdict) == {(5,): "exception"}
    assert "ranks 3 left no data either" in verdict.abstained[0].reason


def test_who_waits_is_counted_again_for_those_that_a_log_names(tmp_path: Path) -> None:
    """Two are without data, both were accused; of the one that a line names seven at most can be explained."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.lose(5)
    earlier, later = scene.looks()
    diagnosis = compare_looks(earlier, later)
    own = len(diagnosis.waiting)
    open_verdict = HangVerdict("r", 0, None, State.INCONCLUSIVE, victims=own, explained=0, unexplained=(0, 1))
    judged = Judged(open_verdict, later, diagnosis.graph)
    verdict = add_to_verdict(judged, raised_log(tmp_path, 5)).verdict
    assert named(verdict) == {(5,): "exception"}
    reached = Waiters.of(diagnosis.graph).waiting_for({5})
    assert (verdict.victims, verdict.explained, verdict.unexplained) == (7, len(reached), ())
    assert verdict.culprits[0].waiters == len(reached) == 7
    other = add_to_verdict(judged, raised_log(tmp_path, 0)).verdict
    assert named(other) == {(0,): "exception"}
    assert other.explained == len(Waiters.of(diagnosis.graph).waiting_for({0}) - {0})
    assert other.victims == other.explained + len(other.unexplained)
    assert 0 not in other.unexplained


def test_a_verdict_whose_culprits_stay_keeps_its_counts(tmp_path: Path) -> None:
    judged = lost(5)
    judged = replace(judged, verdict=replace(judged.verdict, victims=7, explained=6, unexplained=(2,)))
    verdict = add_to_verdict(judged, raised_log(tmp_path, 5)).verdict
    assert (verdict.victims, verdict.explained, verdict.unexplained) == (7, 6, (2,))


def test_where_nobody_was_accused_the_log_does(tmp_path: Path) -> None:
    judged = Judged(HangVerdict("r", 0, None, State.INCONCLUSIVE))
    verdict = add_to_verdict(judged, raised_log(tmp_path, 2)).verdict
    assert verdict.verdict == State.CRASHED
    assert named(verdict) == {(2,): "exception"}


@pytest.mark.parametrize("state", [State.RUNNING, State.SLOW, State.FINISHED])
def test_a_job_that_goes_on_is_not_accused_by_its_log(tmp_path: Path, state: State) -> None:
    verdict = add_to_verdict(Judged(HangVerdict("r", 0, None, state)), raised_log(tmp_path, 2)).verdict
    assert (verdict.verdict, verdict.culprits) == (state, ())
    assert "the job went on" in verdict.abstained[0].reason


@pytest.mark.parametrize("xid", [63, 79])
def test_a_rank_that_is_behind_outweighs_an_xid_of_one_that_waits(judge: Judge, xid: int) -> None:
    log = JobLog()
    log.lines += communicator(["nodeA"], 4)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    log.is_asked(0, 1, 18, 18)
    log.lines.insert(0, f"nodeA kernel: [123.4] NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1, trouble")
    verdict = judge(log)
    assert named(verdict) == {(0,): "host-stuck"}
    assert any(f"Xid {xid}" in one.reason for one in verdict.abstained)


def test_an_exception_of_a_rank_that_speaks_later_was_caught(judge: Judge) -> None:
    log = JobLog()
    log.has_size(4)
    log.raises(2, "ValueError: a bad sample, skipped")
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    log.is_asked(0, 1, 18, 18)
    assert named(judge(log)) == {(0,): "host-stuck"}


def test_of_logs_of_restarts_the_last_counts(tmp_path: Path) -> None:
    old, log = JobLog(), JobLog()
    old.raises(None, "ValueError: a bad setting")
    log.has_size(4)
    for rank in (1, 2, 3):
        log.times_out(rank, 19)
    log.is_asked(0, 1, 18, 18)
    old.write(tmp_path / "run-0.log")
    log.write(tmp_path / "run-1.log")
    assert named(judge_logs(read_logs([tmp_path])).verdict) == {(0,): "host-stuck"}


def test_a_look_is_filled_in_with_ranks_of_which_only_logs_tell(tmp_path: Path) -> None:
    scene = cascade(Topology.of(dp=4), 1)
    scene.lose(1)
    log = JobLog()
    log.has_size(4)
    for rank in (0, 2, 3):
        log.times_out(rank, 7)
    log.is_asked(1, 0, 6, 6)
    evidence = read_logs([log.write(tmp_path / "job.log")])
    snapshot = add_to_snapshot(scene.snapshot(), evidence)
    assert snapshot.missing == ()
    state = snapshot.states[1]
    assert {name.kind: state.issued(number) for number, name in snapshot.groups.items()} == {"dp": 0, "world": 6}
    assert snapshot.states[0] == scene.states[0]


def test_a_rank_that_raised_is_gone_from_the_look(tmp_path: Path) -> None:
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.lose(5)
    snapshot = add_to_snapshot(scene.snapshot(), raised_log(tmp_path, 5))
    assert snapshot.states[5].is_dead
    diagnosis = compare_looks(snapshot, snapshot)
    assert diagnosis.graph.waits
    assert CulpritKind.DEAD in {root.kind for root in diagnosis.roots} or diagnosis.state == State.INCONCLUSIVE
