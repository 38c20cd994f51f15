"""Times of several files: compared where their clocks agree, and never where they may be of different zones."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.viz3d.logs.clocks import AGREE_NS, Times, clocks_of
from megascope.viz3d.logs.reading import log_files, read_logs
from megascope.viz3d.logs.verdict import judge_logs
from megascope.viz3d.verdict import CulpritKind, HangVerdict, State
from support.job_logs import JobLog, communicator

MINUTE_NS = 60 * 10**9


def log_of(path: Path, rank: int, hour: int, minute: int, error: str, zone: str = "", *, ends: int = 50) -> None:
    """A rank's log: it begins at the hour, raises at the minute, and says a last word."""

    def at(minutes: int, text: str) -> str:
        return f"2026-03-07T{hour:02}:{minutes:02}:00{zone} {text}"

    lines = [
        at(0, "job begins, world size: 2"),
        at(minute, "Traceback (most recent call last):"),
        '  File "/srv/train.py", line 40, in step',
        f"{error}: of rank {rank}",
        at(ends, "Error: the process ends"),
    ]
    path.write_text("\n".join(lines) + "\n")


def verdict_of(*paths: Path) -> HangVerdict:
    return judge_logs(read_logs(list(paths))).verdict


def named(verdict: HangVerdict) -> dict[int, float]:
    return {rank: one.confidence for one in verdict.culprits for rank in one.ranks}


def test_files_that_begin_together_are_ordered_by_their_times(tmp_path: Path) -> None:
    log_of(tmp_path / "rank_0.log", 0, 9, 30, "ValueError")
    log_of(tmp_path / "rank_1.log", 1, 9, 20, "KeyError")
    assert named(verdict_of(tmp_path)) == {1: 0.9}


@pytest.mark.parametrize(("hour", "ends"), [(11, 50), (8, 40)])
def test_files_of_hosts_in_other_zones_are_not_ordered(tmp_path: Path, hour: int, ends: int) -> None:
    """Rank 1 raised ten minutes before rank 0, by a local time of two hours more, or one hour less."""
    log_of(tmp_path / "rank_0.log", 0, 9, 30, "ValueError")
    log_of(tmp_path / "rank_1.log", 1, hour, 20, "KeyError", ends=ends)
    verdict = verdict_of(tmp_path)
    assert named(verdict) == {0: 0.5, 1: 0.5}
    told = [one.reason for one in verdict.abstained if one.signal == "clocks"]
    assert told == [
        "rank_0.log, rank_1.log name no time zone, and neither begin nor end together: what is in one is not ordered "
        "against what is in another"
    ]


def test_zones_that_are_told_are_ordered(tmp_path: Path) -> None:
    log_of(tmp_path / "rank_0.log", 0, 9, 30, "ValueError", "Z")
    log_of(tmp_path / "rank_1.log", 1, 11, 20, "KeyError", "+02:00")
    verdict = verdict_of(tmp_path)
    assert named(verdict) == {1: 0.9}
    assert all(one.signal != "clocks" for one in verdict.abstained)


def test_a_later_exception_of_an_unknown_zone_is_not_passed_over(tmp_path: Path) -> None:
    """The alarm of rank 0 seems to come first only by the local time of another zone."""
    alarm = (
        "[rank0]:[E307 07:40:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600040 milliseconds"
    )
    (tmp_path / "rank_0.log").write_text(f"2026-03-07 07:00:00 job begins\n{alarm}\n")
    log_of(tmp_path / "rank_1.log", 1, 9, 20, "KeyError", ends=25)
    verdict = verdict_of(tmp_path)
    assert verdict.verdict == State.CRASHED
    assert named(verdict) == {1: 0.5}


@given(
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 600), st.booleans()), max_size=8),
    st.randoms(use_true_random=False),
)
def test_clocks_are_a_partition_whatever_the_order(told: list[tuple[int, int, bool]], random: object) -> None:
    files = [Times(f"{n}", a * MINUTE_NS, max(a, b) * MINUTE_NS, zone) for n, (a, b, zone) in enumerate(told)]
    shuffled = list(files)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = clocks_of(files), clocks_of(shuffled)
    assert set(one) == set(other) == {file.name for file in files}
    for first in one:
        for second in one:
            assert (one[first] == one[second]) == (other[first] == other[second])
    assert len({one[file.name] for file in files if file.has_zone}) <= 1


def test_what_tells_no_time_has_no_clock() -> None:
    assert clocks_of([Times("a", None, None, True), Times("b", 0, AGREE_NS, False)]) == {"b": 0}
    far = [Times("a", 0, 0, False), Times("b", AGREE_NS, AGREE_NS, False)]
    assert len(set(clocks_of(far).values())) == 2


def run_log(path: Path, first: int, last: int, text: str = "", rank: int | None = None) -> Path:
    """A log with a line at each of two minutes past nine."""
    prefix = "" if rank is None else f"[rank{rank}]: "
    lines = [f"{prefix}2026-03-07 09:{minute:02}:00 {text}" for minute in (first, last)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_starts_one_after_the_other_are_restarts_and_that_is_told(tmp_path: Path) -> None:
    run_log(tmp_path / "run-0.log", 0, 10)
    last = run_log(tmp_path / "run-1.log", 10, 20, "iteration 5")
    assert log_files([tmp_path]) == [last]
    told = [one.reason for one in verdict_of(tmp_path).abstained]
    assert "1 files of earlier starts were not read: run-0.log" in told


def test_files_written_at_the_same_time_are_no_restarts_whatever_their_names(tmp_path: Path) -> None:
    both = [run_log(tmp_path / f"run-{number}.log", 0, 10) for number in (0, 1)]
    assert log_files([tmp_path]) == both
    folders = [run_log(tmp_path / "nodes" / f"attempt_{number}" / "stderr.log", 0, 10) for number in (0, 1)]
    assert log_files([tmp_path / "nodes"]) == folders


def test_files_of_different_ranks_are_no_restarts(tmp_path: Path) -> None:
    both = [tmp_path / f"launch_{number}.log" for number in (0, 1)]
    for rank, path in enumerate(both):
        path.write_text(f"[rank{rank}]: a line without a time\n")
    assert log_files([tmp_path]) == both


def test_times_outweigh_who_speaks(tmp_path: Path) -> None:
    run_log(tmp_path / "run-0.log", 0, 10, rank=3)
    last = run_log(tmp_path / "run-1.log", 10, 20, rank=5)
    assert log_files([tmp_path]) == [last]


def test_names_decide_where_the_content_tells_nothing(tmp_path: Path) -> None:
    for number in (0, 1, 2):
        (tmp_path / f"run-{number}.log").write_text("nothing\n")
    assert log_files([tmp_path]) == [tmp_path / "run-2.log"]


def test_packed_and_unreadable_files_are_looked_at_too(tmp_path: Path) -> None:
    for number, (first, last) in enumerate(((0, 10), (10, 20))):
        plain = run_log(tmp_path / "plain", first, last)
        (tmp_path / f"run-{number}.log.gz").write_bytes(gzip.compress(plain.read_bytes() + b"x\n" * 200_000))
    assert log_files([tmp_path]) == [tmp_path / "run-1.log.gz"]
    (tmp_path / "run-0.log.gz").write_bytes(b"\x1f\x8b damaged")
    assert log_files([tmp_path]) == [tmp_path / "run-1.log.gz"]


def test_a_file_that_grows_is_looked_at_again(tmp_path: Path) -> None:
    run_log(tmp_path / "run-0.log", 0, 10)
    run_log(tmp_path / "run-1.log", 10, 20)
    assert len(log_files([tmp_path])) == 1
    path = run_log(tmp_path / "run-0.log", 0, 25)
    os.utime(path, ns=(1, 1))
    assert len(log_files([tmp_path])) == 2


def kernel_log(path: Path, stamp: str) -> None:
    """The driver's own log of a host: two lines, of which the last is a fault of a device."""
    lines = [
        "{stamp} nodeB kernel: [1.0] NVRM: loading NVIDIA UNIX Open Kernel Module",
        "{stamp} nodeB kernel: [123.4] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    ]
    path.write_text("\n".join(lines).format(stamp=stamp) + "\n")


@pytest.mark.parametrize(
    ("stamp", "found"),
    [
        ("2026-03-07T13:00:00", {10: 0.5}),  # of any zone: it may have been before the alarms, and not for sure
        ("2026-03-07T09:30:20", {10: 0.5}),  # that it ends together with the job's log tells nothing
        ("2026-03-07T09:29:00+00:00", {10: 0.5}),  # the watchdogs' own times name no zone
        ("2026-03-04T12:00:00", {}),  # days ago by any zone: the job went on
    ],
)
def test_the_kernels_own_times_order_nothing(tmp_path: Path, stamp: str, found: dict[int, float]) -> None:
    log = JobLog()
    log.lines += communicator(["nodeA", "nodeB"], 16)
    for rank in range(16):
        if rank != 10:
            log.times_out(rank, 77)
    (tmp_path / "job.log").write_text("\n".join(log.lines) + "\n")
    kernel_log(tmp_path / "kern.log", stamp)
    verdict = verdict_of(tmp_path / "job.log", tmp_path / "kern.log")
    faults = [one for one in verdict.culprits if one.kind == CulpritKind.DEVICE_STUCK]
    assert {rank: one.confidence for one in faults for rank in one.ranks} == found
    assert any(
        "kern.log and the job's logs tell the time by clocks that are not known to agree" in one.reason
        for one in verdict.abstained
    )
