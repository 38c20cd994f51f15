"""Checks of the spool: where black boxes lie, whether there is room for them, and whether an agent looks after them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ..profiler.box.box import BoxLayout
from ..profiler.opening import MIN_RING_RECORDS, SPOOL_VARIABLE
from .finding import Answer, advice, not_checked, ok, problem
from .machine import Machine, nearest_folder
from .places import file_system

SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p", "afs"})
"""Types of file systems that several hosts see."""


def place(machine: Machine) -> Answer:
    """Whether ranks can make their boxes where the spool is."""
    folder = machine.spool_of(machine.store)
    looked_at, there = f"the spool {folder}", nearest_folder(folder)
    to_do = f"name a folder of this host's own in {SPOOL_VARIABLE}"
    kind = file_system(machine, there)
    seen = f"{folder} ({kind or 'file system not known'})"
    if kind in SHARED:
        return problem(looked_at, seen, f"{to_do}: hosts that share a spool take each other's boxes")
    if not there.is_dir():
        return problem(looked_at, f"{there} is no folder", to_do)
    parent = folder.parent
    if parent.is_symlink() or (parent.exists() and SPOOL_VARIABLE not in machine.env
                               and parent.stat().st_uid != os.getuid()):  # fmt: skip
        return problem(looked_at, f"{parent} belongs to somebody else", f"remove it, or {to_do}")
    writing = machine.write(there)
    if writing.reason:
        return problem(looked_at, f"{there} cannot be written ({writing.reason})", to_do)
    return ok(looked_at, seen if writing.tried else f"{seen}; by its permissions, not tried")


def room(machine: Machine) -> Answer:
    """Whether all ranks of the host have room for whole boxes: half of the file system, or what is free, is theirs."""
    folder = nearest_folder(machine.spool_of(machine.store))
    ranks, source = machine.ranks()
    space = machine.room(folder)
    share = min(space.total_bytes // 2, space.free_bytes) // ranks
    layout = BoxLayout()
    looked_at = f"the file system of {folder}"
    seen = (
        f"{_mib(space.free_bytes)} of {_mib(space.total_bytes)} free; {ranks} ranks ({source}) of "
        f"{_mib(layout.total_bytes)} each"
    )
    least = BoxLayout(layout.slots, layout.rings, MIN_RING_RECORDS, layout.groups).total_bytes
    more = (
        f"make it larger (docker run --shm-size=8g; in Kubernetes an emptyDir of medium Memory), or name a disk in "
        f"{SPOOL_VARIABLE}"
    )
    if share < least:
        return problem(looked_at, seen, f"{more}: boxes go to {tempfile.gettempdir()} instead, or nothing is recorded")
    if share < layout.total_bytes:
        return advice(looked_at, seen, f"{more}: boxes are made smaller, and a slow agent loses spans sooner")
    return ok(looked_at, seen)


def agent(machine: Machine) -> Answer:
    """Whether an agent serves the spool, and whether records wait there for one."""
    from ..collectors.spool.spool import boxes  # noqa: PLC0415

    folder = machine.spool_of(machine.store)
    looked_at = f"{folder} and /proc/locks"
    if not folder.is_dir():
        return ok(looked_at, "no spool yet: the first job makes it")
    waiting = len(list(boxes(folder)))
    locks = machine.text("proc/locks")
    if locks is None:
        return not_checked(looked_at, f"{waiting} boxes; the system does not tell who holds a lock")
    last = _last_line(folder / "agent.log")
    said = f"; its log ends: {last}" if last else ""
    if _is_locked(folder / "agent.lock", locks):
        return ok(looked_at, f"an agent serves it, {waiting} boxes{said}")
    if waiting:
        store = machine.store
        return advice(
            looked_at,
            f"{waiting} boxes, and no agent is seen{said}",
            f"megascope collect --store {store} --idle-exit 5 saves what they hold, if no other container has one",
        )
    return ok(looked_at, f"nothing waits in it{said}")


def _is_locked(path: Path, locks: str) -> bool:
    """Whether somebody holds a lock on a file, by its inode in /proc/locks."""
    try:
        inode = str(path.stat().st_ino)
    except OSError:
        return False
    rows = (line.split() for line in locks.splitlines())
    return any("FLOCK" in row and any(word.rpartition(":")[2] == inode for word in row if ":" in word) for row in rows)


def _last_line(path: Path) -> str | None:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), None)
    return None


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"
