"""Control groups of this process (cgroups(7)), versions 1 and 2: the limits that hold, and what they have done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from .machine import Machine

MOUNT = "sys/fs/cgroup"
_NO_LIMIT = 2**60
"""Version 1 writes its highest number of pages where there is no limit."""


def folders(machine: Machine, controller: str) -> Iterator[str]:
    """The process's group of a controller, and those above it, as paths below the root; the innermost first.

    In a container the group's path may be the host's, and its mount shows the inside: the mount's top comes last.
    """
    path, top = "/", MOUNT
    for line in (machine.text("proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, place = rest.partition(":")
        if controller in names.split(","):
            path, top = place, f"{MOUNT}/{controller}"
            break
        if number == "0" and not names:
            path, top = place, MOUNT
    inside = PurePosixPath(path.lstrip("/"))
    yield from (f"{top}/{one}" for one in (inside, *inside.parents) if str(one) != ".")
    yield top


def memory(machine: Machine) -> tuple[int, int] | None:
    """The tightest limit in bytes, and what counts against it without what the kernel can drop; None without one."""
    tightest: tuple[int, int] | None = None
    for folder in folders(machine, "memory"):
        limit = _number(machine, folder, "memory.max", "memory.limit_in_bytes")
        used = _number(machine, folder, "memory.current", "memory.usage_in_bytes")
        if limit is None or used is None or limit > _NO_LIMIT or (tightest and tightest[0] <= limit):
            continue
        told = _table(machine, f"{folder}/memory.stat")
        tightest = limit, max(0, used - told.get("total_inactive_file", told.get("inactive_file", 0)))
    return tightest


def kills(machine: Machine) -> int:
    """Processes of this group that the kernel has killed for lack of memory."""
    told = (_table(machine, f"{folder}/memory.{name}")
            for folder in folders(machine, "memory") for name in ("events", "oom_control"))  # fmt: skip
    return next((one["oom_kill"] for one in told if "oom_kill" in one), 0)


def processors(machine: Machine) -> float | None:
    """Cores' worth of time that the tightest group may use; None without a limit."""
    found = []
    for folder in folders(machine, "cpu"):
        quota, _, period = (machine.text(f"{folder}/cpu.max") or "").partition(" ")
        if not quota:
            quota = machine.text(f"{folder}/cpu.cfs_quota_us") or ""
            period = machine.text(f"{folder}/cpu.cfs_period_us") or ""
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def held_back(machine: Machine) -> tuple[int, int] | None:
    """(periods in which the group had to stop for its limit of processors, all of them); None where it is not told."""
    told = (_table(machine, f"{folder}/cpu.stat") for folder in folders(machine, "cpu"))
    return next(((one["nr_throttled"], one["nr_periods"]) for one in told if one.get("nr_periods")), None)


def _number(machine: Machine, folder: str, *names: str) -> int | None:
    texts = (machine.text(f"{folder}/{name}") or "" for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _table(machine: Machine, path: str) -> dict[str, int]:
    rows = (line.split() for line in (machine.text(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
