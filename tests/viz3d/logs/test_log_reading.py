"""From logs to facts: the watchdog's wordings, tracebacks, launchers' reports, NCCL and the driver, real logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.profiler.errors import UsageError
from megascope.viz3d.logs.facts import Desync, GroupLabel, LogEvidence, Speaker
from megascope.viz3d.logs.groups import communicators, log_groups, process_ranks
from megascope.viz3d.logs.reading import read_logs
from support.job_logs import UNKNOWN, JobLog, communicator


def read(tmp_path: Path, *lines: str, name: str = "job.log") -> LogEvidence:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return read_logs([path])


WORK = "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=12, NumelOut=24, Timeout(ms)=1000) ran for 1099 milliseconds"


def test_a_timeout_is_the_global_ranks_and_its_group_is_in_the_next_line(tmp_path: Path) -> None:
    """`[rank13]` is global, `Rank 1` counts in the group."""
    log = JobLog()
    log.times_out(13, 42, group="PG ID 4 PG GUID 7(tp)", group_rank=1, elements=(8, 16), enqueued=45)
    log.say("terminate called", 13)
    log.lines.append(log.lines[1])  # written again when the process ends
    evidence = read_logs([log.write(tmp_path / "job.log")])
    (timeout,) = evidence.timeouts
    assert (timeout.rank, timeout.group_rank, timeout.sequence, timeout.operation) == (13, 1, 42, "ALLREDUCE")
    assert (timeout.elements_in, timeout.elements_out, timeout.limit_ms, timeout.ran_ms) == (8, 16, 600_000, 600_040)
    assert timeout.label == GroupLabel("4", "7", "tp")
    (mark,) = evidence.watermarks
    assert (mark.rank, mark.failed, mark.enqueued, mark.completed) == (13, 42, 45, 41)
    assert timeout.moment_ns is not None


@pytest.mark.parametrize(
    ("text", "label", "mark"),
    [
        (
            "[PG 0 Rank 3] Timeout at NCCL work: 2, last enqueued NCCL work: 4, last completed NCCL work: 1.",
            GroupLabel("0"),
            (2, 4, 1),
        ),
        (
            "[PG 2 Rank 3] Exception (either an error or timeout) detected by watchdog at work: 2, last enqueued NCCL "
            "work: 4, last completed NCCL work: 1.",
            GroupLabel("2"),
            (2, 4, 1),
        ),
        (
            "[PG ID 2 PG GUID 5(dp) Rank 3]  failure detected by watchdog at work sequence id: 2 PG status: last "
            "enqueued work: 4, last completed work: 1",
            GroupLabel("2", "5", "dp"),
            (2, 4, 1),
        ),
        (
            "[PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from  rank 9 "
            "and we will try our best. Last enqueued NCCL work: 4, last completed NCCL work: 4.",
            GroupLabel("0", "0", "default_pg"),
            (None, 4, 4),
        ),
        (
            "[PG 0 Rank 3] Received a timeout signal from this local rank and will start to dump the debug info. "
            "Last enqueued NCCL work: 4, last completed NCCL work: -1.",
            GroupLabel("0"),
            (None, 4, 0),
        ),
    ],
)
def test_every_wording_of_how_far_a_rank_is(
    tmp_path: Path, text: str, label: GroupLabel, mark: tuple[int | None, int, int]
) -> None:
    evidence = read(tmp_path, "begin", f"[rank3]:[E327 17:04:16.98 ProcessGroupNCCL.cpp:1] {text}")
    (one,) = evidence.watermarks
    assert (one.rank, one.group_rank, one.label) == (3, 3, label)
    assert (one.failed, one.enqueued, one.completed) == mark
    if "rank 9" in text:
        assert evidence.signals[0].source == 9
    if "this local rank" in text:
        assert evidence.signals[0].source == 3


def test_a_count_of_elements_that_is_none_is_none(tmp_path: Path) -> None:
    log = JobLog()
    log.times_out(1, 5, "COALESCED", elements=UNKNOWN)
    (timeout,) = read_logs([log.write(tmp_path / "job.log")]).timeouts
    assert timeout.elements_in is None
    assert timeout.elements_out is None


def test_an_old_watchdog_that_names_no_rank_but_the_only_groups(tmp_path: Path) -> None:
    evidence = read(
        tmp_path, f"[E ProcessGroupNCCL.cpp:828] [Rank 7] Watchdog caught collective operation timeout: {WORK}"
    )
    assert [(one.rank, one.sequence) for one in evidence.timeouts] == [(7, 2)]


def test_a_desync_report(tmp_path: Path) -> None:
    evidence = read(
        tmp_path,
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
        "\t   - [1, 4] joined but didn't finish collective #183 (count from 1)",
        "\t     [7] finished collective #182, but didn't join collective #183 (count from 1)",
        "\t - To our best knowledge, ranks [2, 3] are the lagging ranks that caused this timeout. They never joined",
    )
    assert [(one.ranks, one.kind, one.sequence) for one in evidence.desyncs] == [
        ((1, 4), Desync.NOT_FINISHED, 183),
        ((7,), Desync.NOT_JOINED, 183),
        ((2, 3), Desync.NEVER_JOINED, None),
    ]


def test_the_first_exception_of_a_chain_is_kept_with_the_users_own_line(tmp_path: Path) -> None:
    log = JobLog()
    log.raises(5, "torch.OutOfMemoryError: CUDA out of memory.", chained="RuntimeError: could not clean up")
    log.raises(6, "queue.Empty")
    raised = read_logs([log.write(tmp_path / "job.log")]).raised
    assert [(one.speaker.rank, one.type, one.frame) for one in raised] == [
        (5, "torch.OutOfMemoryError", "step (train.py:40)"),
        (6, "queue.Empty", "step (train.py:40)"),
    ]


def test_tracebacks_of_two_ranks_line_by_line_in_turn(tmp_path: Path) -> None:
    one, other = JobLog(), JobLog()
    one.raises(0, "ValueError: of zero")
    other.raises(1, "KeyError: 'of one'", frame="data.py")
    mingled = [line for pair in zip(one.lines[1:], other.lines[1:], strict=True) for line in pair]
    raised = read(tmp_path, *mingled).raised
    assert {(one.speaker.rank, one.type, one.frame) for one in raised} == {
        (0, "ValueError", "step (train.py:40)"),
        (1, "KeyError", "step (data.py:40)"),
    }


@pytest.mark.parametrize(
    ("line", "type_", "message"),
    [
        ("  what():  CUDA error: device-side assert triggered", "CUDA error", "device-side assert triggered"),
        (
            "[rank2]:[E1 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog "
            "thread terminated with exception: CUDA error: unspecified launch failure",
            "CUDA error",
            "unspecified launch failure",
        ),
        (
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried",
            "torch.OutOfMemoryError",
            "CUDA out of memory. Tried",
        ),
    ],
)
def test_errors_without_a_traceback(tmp_path: Path, line: str, type_: str, message: str) -> None:
    (raised,) = read(tmp_path, "begin", line).raised
    assert (raised.type, raised.message) == (type_, message)
    assert raised.speaker.rank == (2 if "rank2" in line else None)


def test_a_watchdogs_own_end_is_no_error_of_the_rank(tmp_path: Path) -> None:
    line = f"what():  [Rank 2] Watchdog caught collective operation timeout: {WORK}"
    assert read(tmp_path, line).raised == ()


def test_torchruns_report(tmp_path: Path) -> None:
    log = JobLog()
    log.reports(12, -9, host="node1", local=4, others=[(13, -15), (14, 1)])
    exits = read_logs([log.write(tmp_path / "job.log")]).exits
    assert [(one.speaker, one.code, one.is_root) for one in exits] == [
        (Speaker(13, 5, "node1"), -15, False),
        (Speaker(14, 6, "node1"), 1, False),
        (Speaker(12, 4, "node1"), -9, True),
    ]
    assert exits[2].signal == 9
    assert exits[2].moment_ns == exits[0].moment_ns is not None


def test_what_srun_says_of_tasks(tmp_path: Path) -> None:
    evidence = read(
        tmp_path,
        "srun: error: node7: task 3: Killed",
        "srun: error: node8: tasks 8-10,12: Exited with exit code 1",
        "slurmstepd: error: *** JOB 12 ON node7 CANCELLED AT 2026-03-07T09:00:00 DUE TO TIME LIMIT ***",
    )
    assert [(one.speaker.rank, one.speaker.host, one.code) for one in evidence.exits] == [
        (3, "node7", -9), (8, "node8", 1), (9, "node8", 1), (10, "node8", 1), (12, "node8", 1),
    ]  # fmt: skip
    assert [one.reason for one in evidence.endings] == ["interrupted"]


def test_what_the_job_got_over_is_no_news(tmp_path: Path) -> None:
    """An exception, and even a timeout, after which iterations went on belongs to an earlier start or was handled."""
    log = JobLog()
    log.raises(1, "ValueError: handled")
    log.times_out(1, 3)
    for step in range(5):
        log.say(f" iteration {step + 10}/ 1000 | lm loss: 2.0 |")
    evidence = read_logs([log.write(tmp_path / "job.log")])
    assert [*evidence.raised, *evidence.timeouts, *evidence.watermarks] == []
    assert evidence.last_step == 14


def test_members_of_communicators_and_the_group_that_a_watchdog_names(tmp_path: Path) -> None:
    log = JobLog()
    log.lines += communicator(["a", "b"], 16, identity="0x1")
    log.lines += [
        f"a:{100 + rank}:1 [0] NCCL INFO ncclCommInitRank comm 0x9{rank} rank {rank - 4} nranks 4 cudaDev 0 busId 1 "
        f"commId 0x2 - Init COMPLETE"
        for rank in (4, 5, 6, 7)
    ]
    log.times_out(6, 9, group="PG ID 3 PG GUID 12(tp)", group_rank=2)
    evidence = read_logs([log.write(tmp_path / "job.log")])
    assert evidence.world_size == 16
    assert evidence.hosts[3] == "a"
    assert evidence.hosts[12] == "b"
    assert process_ranks(evidence.members)["b", 108] == 8
    assert [one.ranks for one in communicators(evidence.members)] == [tuple(range(16)), (4, 5, 6, 7)]
    (group,) = log_groups(evidence)
    assert group.members == (4, 5, 6, 7)


def test_one_name_for_several_groups_is_mixed(tmp_path: Path) -> None:
    log = JobLog()
    log.times_out(0, 9, group="PG ID 3 PG GUID 12(tp)", group_rank=0)
    log.times_out(4, 9, group="PG ID 3 PG GUID 12(tp)", group_rank=0)
    (group,) = log_groups(read_logs([log.write(tmp_path / "job.log")]))
    assert group.mixed


def test_connections_and_devices(tmp_path: Path) -> None:
    evidence = read(
        tmp_path,
        "h1:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<44206> with status=12 "
        "opcode=129 len=65536 vendor err 129 (Recv)",
        "Feb 23 16:24:18 node7 kernel: [12.5] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.",
    )
    (link,) = evidence.link_errors
    assert (link.speaker.host, link.device, link.peer, link.status) == ("h1", 4, "10.0.0.9", 12)
    (fault,) = evidence.gpu_faults
    assert (fault.host, fault.bus_id, fault.xid) == ("node7", "0000:9b:00", 79)


def test_files_of_one_rank_each_give_their_rank_and_only_the_last_attempt_is_read(tmp_path: Path) -> None:
    for attempt in (0, 1):
        for local in range(3):
            log = JobLog()
            if local == attempt:
                log.raises(None, f"ValueError: in attempt {attempt}")
            log.write(tmp_path / "run" / f"attempt_{attempt}" / str(local) / "stderr.log")
    evidence = read_logs([tmp_path])
    assert [(one.speaker.rank, one.message) for one in evidence.raised] == [(1, "in attempt 1")]
    assert evidence.heard == {0, 1, 2}
    assert len(evidence.files) == 3


def test_folders_of_a_further_host_count_its_ranks_from_where_its_lines_do(tmp_path: Path) -> None:
    for local in range(3):
        log = JobLog()
        if local == 1:
            log.say("some line", 9)
        if local == 2:
            log.raises(None, "ValueError: without a prefix")
        log.write(tmp_path / "run" / "attempt_0" / str(local) / "stderr.log")
    evidence = read_logs([tmp_path])
    assert [one.speaker.rank for one in evidence.raised] == [10]
    assert evidence.heard == {8, 9, 10}
    assert evidence.world_size is None


def test_a_file_of_each_rank_tells_how_many_there_are(tmp_path: Path) -> None:
    for rank in range(4):
        JobLog().write(tmp_path / f"job-1_{rank}.out")
    assert read_logs([tmp_path]).world_size == 4


def test_nothing_to_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no log .* in "):
        read_logs([tmp_path])
    with pytest.raises(UsageError, match="There is no file"):
        read_logs([tmp_path / "absent.log"])


def test_real_nccl_lines_give_communicators_and_hosts(traces: Path) -> None:
    evidence = read_logs([traces / "logs" / "meg_ds_3d_gpt2_perf_n16.out.gz"])
    assert evidence.counts() == {"files": 1, "lines": 12_069, "communicator members": 514}
    assert evidence.world_size == 64
    assert len(set(evidence.hosts.values())) == 16
    assert sorted(evidence.hosts) == list(range(64))
    assert [evidence.hosts[rank] for rank in range(4)] == ["r6i4n5"] * 4
    assert evidence.last_step == 2
    assert [*evidence.raised, *evidence.timeouts, *evidence.exits] == []


def test_a_real_driver_log(traces: Path) -> None:
    evidence = read_logs([traces / "gpud" / "xid-dmesg-with-xid-119.log"])
    assert {(one.xid, one.bus_id) for one in evidence.gpu_faults} == {(119, "0000:9b:00")}
