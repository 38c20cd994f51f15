"""Checks of what the agent and the ranks may do here: stacks, the kernel's log, open files, locked memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from .finding import Answer, advice, not_checked, ok, problem
from .machine import Machine

SYS_PTRACE = 19
"""The capability's number (capabilities(7))."""

FEW_FILES, MANY_FILES = 256, 1024
UNLIMITED = resource.RLIM_INFINITY


def stacks(machine: Machine) -> Answer:
    """Whether a stall's report can have the ranks' Python stacks."""
    looked_at = "MEGASCOPE_STACKS, py-spy, /proc/sys/kernel/yama/ptrace_scope"
    if machine.env.get("MEGASCOPE_STACKS", "0") not in {"", "0"}:
        return ok(looked_at, "ranks write their stacks on a signal")
    to_do = "set MEGASCOPE_STACKS=1 for the job"
    if machine.find_program("py-spy") is None:
        return advice(looked_at, "off, and no py-spy", f"{to_do}, or pip install py-spy: stalls have no stacks else")
    scope = machine.text("proc/sys/kernel/yama/ptrace_scope")
    if machine.has_capability(SYS_PTRACE):
        return ok(looked_at, "py-spy, with CAP_SYS_PTRACE")
    if scope in {None, "0"}:
        return ok(looked_at, "py-spy, for ranks of the same user")
    return advice(
        looked_at,
        f"py-spy, which may not look at other processes (ptrace_scope {scope})",
        f"{to_do}, or sysctl kernel.yama.ptrace_scope=0, or give the agent CAP_SYS_PTRACE",
    )


def kernel_log(machine: Machine) -> Answer:
    """Whether Xid errors and kills for lack of memory can be read as they happen. Nothing is read here."""
    from ..collectors.hardware.kernel_log import LOG_VARIABLE  # noqa: PLC0415

    given = machine.env.get(LOG_VARIABLE)
    path = Path(given) if given else machine.under("dev/kmsg")
    looked_at = f"${LOG_VARIABLE}, {path}" if given else str(path)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        seen = f"cannot be opened ({os.strerror(error.errno or 0)})"
        if given:
            return problem(looked_at, seen, f"name a file in {LOG_VARIABLE} that can be read, or unset it")
        return advice(
            looked_at, seen, f"run agents with CAP_SYSLOG (and the device in a container), or name a text file in "
            f"{LOG_VARIABLE}: Xid errors and kills for lack of memory are not seen",
        )  # fmt: skip
    return ok(looked_at, "can be opened")


def open_files(machine: Machine) -> Answer:
    """Whether an agent and an analysis may open the files that they need at once."""
    soft, hard = machine.limit(resource.RLIMIT_NOFILE)
    seen = f"{_count(soft)} (could be {_count(hard)})"
    looked_at = "the limit of open files (ulimit -n)"
    if soft != UNLIMITED and soft < FEW_FILES:
        return problem(looked_at, seen, f"ulimit -n {MANY_FILES}, or more")
    if soft != UNLIMITED and soft < MANY_FILES:
        return advice(looked_at, seen, f"ulimit -n {MANY_FILES}, or more, for stores of many hosts")
    return ok(looked_at, seen)


def locked_memory(machine: Machine) -> Answer:
    """Whether RDMA may pin memory: NCCL's InfiniBand transport does."""
    looked_at = "the limit of locked memory (ulimit -l), /sys/class/infiniband"
    try:
        cards = sorted(one.name for one in machine.under("sys/class/infiniband").iterdir())
    except FileNotFoundError:
        cards = []
    except OSError as error:
        return not_checked(looked_at, f"{machine.under('sys/class/infiniband')}: {os.strerror(error.errno or 0)}")
    if not cards:
        return ok(looked_at, "no RDMA card")
    soft, _ = machine.limit(resource.RLIMIT_MEMLOCK)
    seen = f"{', '.join(cards)}; {'unlimited' if soft == UNLIMITED else f'{soft >> 10:,} KiB'}"
    if soft != UNLIMITED:
        return advice(looked_at, seen, "ulimit -l unlimited (docker run --ulimit memlock=-1): RDMA pins its buffers")
    return ok(looked_at, seen)


def _count(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else str(limit)
