"""The machine as checks see it: environment, files, limits and answers of the system, each replaceable by a test."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..profiler.opening import default_spool
from ..profiler.session import STORE_VARIABLE
from ..profiler.store_address import store_address
from . import asking
from .asking import ClockStatus, Drivers, Room, Writing

DEFAULT_STORE = "megascope-store"
USUAL_RANKS = 8
"""Ranks of a host, where nothing tells how many there will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine, or one that a test makes up.

    ``root`` is where proc, sys, dev and run lie; ``given`` the store that the user named. Sizes are in bytes.
    """

    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    given: Path | None = None
    system: str = sys.platform
    python: tuple[int, ...] = sys.version_info[:3]
    version_of: Callable[[str], str | None] = asking.version_of
    requirements: Callable[[], list[str]] = asking.requirements
    torch_file: Callable[[str], str | None] = asking.torch_file
    find_program: Callable[[str], str | None] = shutil.which
    spool_of: Callable[[Path], Path] = default_spool
    write: Callable[[Path], Writing] = asking.try_writing
    room: Callable[[Path], Room] = asking.room_of
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit
    cores: Callable[[], int] = asking.usable_cores
    clock: Callable[[], ClockStatus] = asking.clock_status
    clock_read_ns: Callable[[], float] = asking.clock_read_ns
    drivers: Callable[[], Drivers] = asking.ask_nvml
    bind: Callable[[str, int], OSError | None] = asking.try_binding

    def under(self, path: str) -> Path:
        """A path of the system, such as ``proc/self/status``."""
        return self.root / path

    def text(self, path: str) -> str | None:
        """What a file of the system holds, stripped; None where it is absent or may not be read."""
        try:
            return self.under(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    @property
    def store(self) -> Path:
        """Where the store lies: as given, else as the environment says, else where `megascope.init` puts it."""
        return store_address(self.given or self.env.get(STORE_VARIABLE) or DEFAULT_STORE)

    @property
    def store_source(self) -> str:
        """Who named the store."""
        if self.given is not None:
            return "the argument"
        return f"${STORE_VARIABLE}" if self.env.get(STORE_VARIABLE) else "the default of megascope.init()"

    def number(self, *names: str) -> int | None:
        """The first of some variables that is a number above 0."""
        found = (self.env.get(name, "") for name in names)
        return next((int(text) for text in found if text.isascii() and text.isdecimal() and int(text) > 0), None)

    def ranks(self) -> tuple[int, str]:
        """Ranks that this host will have, and how that is known."""
        if told := self.number("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
            return told, "the launcher's environment"
        try:
            gpus = len(list(self.under("proc/driver/nvidia/gpus").iterdir()))
        except OSError:
            gpus = 0
        return (gpus, "one a GPU") if gpus else (USUAL_RANKS, "assumed")

    def nodes(self) -> int | None:
        """Hosts of the job, where the launcher's environment tells."""
        if told := self.number("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE"):
            return told
        world, local = self.number("WORLD_SIZE"), self.number("LOCAL_WORLD_SIZE")
        return -(-world // local) if world and local else None

    def has_capability(self, bit: int) -> bool | None:
        """Whether this process has a capability (capabilities(7)); None where the kernel does not tell."""
        for line in (self.text("proc/self/status") or "").splitlines():
            name, _, mask = line.partition(":")
            if name == "CapEff":
                return bool(int(mask, 16) >> bit & 1)
        return None


def nearest_folder(path: Path) -> Path:
    """The path, or the nearest folder above it that can be seen: there it would be made."""
    while path != path.parent and not _is_seen(path):
        path = path.parent
    return path


def _is_seen(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True
