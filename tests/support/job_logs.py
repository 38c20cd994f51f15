"""Logs of imagined jobs: lines in the wordings of torch, NCCL and launchers, with what a test wants in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MINUTE_MS = 60_000
LIMIT_MS = 10 * MINUTE_MS
UNKNOWN = 2**64 - 1


class JobLog:
    """Lines as they come; each watchdog line is a second after the one before."""

    def __init__(self) -> None:
        self.lines: list[str] = ["2026-03-07 09:00:00 job begins"]
        self.second = 0

    def stamp(self) -> str:
        """The watchdog's own kind of stamp: month and day, no year."""
        self.second += 1
        return f"E307 09:{30 + self.second // 60:02d}:{self.second % 60:02d}.123456789"

    def say(self, text: str, rank: int | None = None) -> None:
        """A line as it is, with a rank's prefix if one is given."""
        self.lines.append(text if rank is None else f"[rank{rank}]: {text}")

    def times_out(
        self,
        rank: int,
        number: int,
        operation: str = "ALLREDUCE",
        *,
        group: str = "PG ID 0 PG GUID 0(default_pg)",
        group_rank: int | None = None,
        elements: int | tuple[int, int] = 1024,
        enqueued: int | None = None,
        completed: int | None = None,
    ) -> None:
        """A rank's watchdog gives up on an operation: the two lines that torch writes of it."""
        local = rank if group_rank is None else group_rank
        numel_in, numel_out = elements if isinstance(elements, tuple) else (elements, elements)
        self.lines.append(
            f"[rank{rank}]:[{self.stamp()} ProcessGroupNCCL.cpp:632] [Rank {local}] Watchdog caught collective "
            f"operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={numel_in}, "
            f"NumelOut={numel_out}, Timeout(ms)={LIMIT_MS}) ran for {LIMIT_MS + 40} milliseconds before timing out."
        )
        last, done = (
            (enqueued if enqueued is not None else number),
            (completed if completed is not None else number - 1),
        )
        self.lines.append(
            f"[rank{rank}]:[{self.stamp()} ProcessGroupNCCL.cpp:2271] [{group} Rank {local}]  failure detected by "
            f"watchdog at work sequence id: {number} PG status: last enqueued work: {last}, last completed work: {done}"
        )

    def is_asked(self, rank: int, source: int, enqueued: int, completed: int) -> None:
        """A rank learns of another's timeout, and says how far it is in the group of all ranks."""
        who = "this local rank" if source == rank else f" rank {source}"
        self.lines.append(
            f"[rank{rank}]:[{self.stamp()} ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
            f"Received a dump signal due to a collective timeout from {who} and we will try our best to dump the "
            f"debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
        )

    def has_size(self, size: int) -> None:
        """The line with which a process group of all ranks begins."""
        self.lines.append(
            f"[rank0]:[I307 09:00:01.5 ProcessGroupNCCL.cpp:940] [PG ID 0 PG GUID 0 Rank 0] ProcessGroupNCCL "
            f"initialization options: size: {size}, global rank: 0, TIMEOUT(ms): {LIMIT_MS}"
        )

    def raises(self, rank: int | None, error: str, frame: str = "train.py", *, chained: str | None = None) -> None:
        """A traceback of Python, with another exception that followed from it if one is given."""
        for number, one in enumerate(filter(None, (error, chained))):
            if number:
                self.say("", rank)
                self.say("During handling of the above exception, another exception occurred:", rank)
                self.say("", rank)
            self.say("Traceback (most recent call last):", rank)
            self.say(f'  File "/home/user/{frame}", line {40 + number}, in step', rank)
            self.say("    loss = model(batch)", rank)
            self.say(one, rank)

    def reports(
        self, rank: int, code: int, *, host: str = "node0", local: int = 0, others: Sequence[tuple[int, int]] = ()
    ) -> None:
        """torchrun's report: the first failure that it saw, and the others."""
        self.lines += ["=" * 60, "train.py FAILED", "-" * 60, "Failures:"]
        for number, (other, its_code) in enumerate(others, 1):
            self._failure(number, other, its_code, host, other % 8)
        if not others:
            self.lines.append("  <NO_OTHER_FAILURES>")
        self.lines += ["-" * 60, "Root Cause (first observed failure):"]
        self._failure(0, rank, code, host, local)
        self.lines.append("=" * 60)

    def _failure(self, number: int, rank: int, code: int, host: str, local: int) -> None:
        told = f"Signal {-code} (SIG) received by PID {1000 + rank}" if code < 0 else "To enable traceback see: a page"
        self.lines += [
            f"[{number}]:",
            "  time      : 2026-03-07_09:41:00",
            f"  host      : {host}",
            f"  rank      : {rank} (local_rank: {local})",
            f"  exitcode  : {code} (pid: {1000 + rank})",
            "  error_file: <N/A>",
            f"  traceback : {told}",
        ]

    def write(self, path: Path) -> Path:
        """The file of these lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.lines) + "\n")
        return path


def communicator(
    hosts: Sequence[str], size: int, *, identity: str = "0xabc", pointer: str = "0x7f00", per_host: int = 8
) -> list[str]:
    """NCCL's lines of a communicator of all processes, so many on each host."""
    return [
        f"{hosts[rank // per_host]}:{100 + rank}:{900 + rank} [{rank % per_host}] NCCL INFO ncclCommInitRank comm "
        f"{pointer}{rank:02x} rank {rank} nranks {size} cudaDev {rank % per_host} nvmlDev {rank % per_host} busId "
        f"{rank % per_host + 1}b000 commId {identity} - Init COMPLETE"
        for rank in range(size)
    ]
