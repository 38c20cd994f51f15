"""What logs of a job tell about a hang: alarms, how far ranks are in their groups, exceptions, exits, communicators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: a file and its line, counted from one."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who wrote a line, as far as it or its file says. ``rank`` is global, ``local_rank`` counts on a host."""

    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class GroupLabel:
    """A process group as a watchdog names it. ``number`` is local to a rank: it identifies nothing across ranks."""

    number: str | None = None
    guid: str | None = None
    description: str | None = None

    @property
    def identity(self) -> str | None:
        """What is the same on all members; None where only the rank's own number is told."""
        if self.guid is not None or self.description is not None:
            return f"{self.guid or ''}({self.description or ''})"
        return None

    @property
    def is_world(self) -> bool:
        """Whether it is the group of all ranks, in which a rank's number is its global one."""
        return self.description == "default_pg" or (self.description is None and "0" in (self.guid, self.number))

    def __str__(self) -> str:
        if self.is_world:
            return "default_pg"
        named = self.description if self.description not in (None, "", "undefined") else None
        return named or (f"group {self.guid}" if self.guid is not None else f"group number {self.number}")


@dataclass(frozen=True, slots=True)
class Timeout:
    """A collective that a watchdog waited for too long. ``rank`` is global, ``group_rank`` counts in the group."""

    rank: int | None
    group_rank: int | None
    label: GroupLabel | None
    sequence: int | None
    operation: str
    elements_in: int | None
    elements_out: int | None
    limit_ms: int | None
    ran_ms: int | None
    moment_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a rank is in a group: the numbers of the last operation enqueued and completed, and of the one that
    failed (None: none did, the rank was asked)."""

    rank: int | None
    group_rank: int | None
    label: GroupLabel | None
    failed: int | None
    enqueued: int
    completed: int
    moment_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class DumpSignal:
    """A rank was told to dump because ``source`` timed out (its own global rank where it timed out itself)."""

    rank: int | None
    source: int | None
    moment_ns: int | None
    place: Place


class Desync(StrEnum):
    """What a desync report says of ranks."""

    NEVER_JOINED = "never joined any collective"
    NOT_FINISHED = "joined but did not finish it"
    NOT_JOINED = "did not join it"
    NOT_AT_BARRIER = "did not come to a monitored barrier"


@dataclass(frozen=True, slots=True)
class DesyncReport:
    """Ranks (of the group that reports) that lag, by torch's desync debugging; ``sequence`` is the number concerned."""

    ranks: tuple[int, ...]
    kind: Desync
    sequence: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class Raised:
    """The first exception of a rank's chain."""

    speaker: Speaker
    type: str
    message: str
    frame: str | None
    moment_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process as its launcher tells it. A negative code is a signal; ``is_root``: the launcher saw it
    first of all."""

    speaker: Speaker
    code: int | None
    pid: int | None
    is_root: bool
    message: str | None
    moment_ns: int | None
    place: Place

    @property
    def signal(self) -> int | None:
        """Number of the signal that ended it; None for a plain exit."""
        return None if self.code is None or self.code >= 0 else -self.code


@dataclass(frozen=True, slots=True)
class Member:
    """One process in one communicator of NCCL. ``pointer`` is local to the process; ``identity`` is the same on all
    members, where the version of NCCL tells it."""

    host: str
    pid: int
    pointer: str
    identity: str | None
    rank: int
    size: int
    device: int | None
    bus_id: str | None


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A line of the driver: an Xid on a device, by its bus id."""

    host: str | None
    bus_id: str
    xid: int
    text: str
    moment_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class DeviceError:
    """An error of a device that a library logged by the driver's name for it (`CUDA_ERROR_...`), and did not raise."""

    speaker: Speaker
    name: str
    text: str
    moment_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class LinkError:
    """A connection that NCCL lost or that timed out: from a process to a peer's address or host."""

    speaker: Speaker
    device: int | None
    peer: str | None
    status: int | None
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class Stuck:
    """A watchdog that did not come back itself: its rank's process is held up in the driver, or by the GIL."""

    rank: int | None
    moment_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class Ending:
    """What a log says of the end of the whole job: ``interrupted`` (a signal, a time limit, a user) or ``finished``."""

    reason: str
    text: str
    moment_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class LogFile:
    """What was read of one file. ``trouble`` says why the rest could not be."""

    name: str
    lines: int
    cut_lines: int = 0
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """All that logs tell. ``hosts`` maps global ranks to hosts, ``heard`` are ranks that wrote anything, ``last_step``
    the last iteration that was printed. ``dropped`` counts facts beyond the limits, by kind. Files with the same number
    in ``clocks`` tell the time by clocks that agree (see `clocks.clocks_of`); ``earlier`` are files of earlier starts,
    which were not read.
    """

    files: tuple[LogFile, ...] = ()
    timeouts: tuple[Timeout, ...] = ()
    watermarks: tuple[Watermark, ...] = ()
    signals: tuple[DumpSignal, ...] = ()
    desyncs: tuple[DesyncReport, ...] = ()
    raised: tuple[Raised, ...] = ()
    exits: tuple[Exit, ...] = ()
    members: tuple[Member, ...] = ()
    gpu_faults: tuple[GpuFault, ...] = ()
    link_errors: tuple[LinkError, ...] = ()
    device_errors: tuple[DeviceError, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    endings: tuple[Ending, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    heard: frozenset[int] = frozenset()
    world_size: int | None = None
    last_step: int | None = None
    last_ns: int | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    clocks: Mapping[str, int] = field(default_factory=dict)
    earlier: tuple[str, ...] = ()

    def same_clock(self, one: Place, other: Place) -> bool:
        """Whether the times at two places can be compared: in one file, or in files whose clocks agree."""
        return one.file == other.file or self.clocks.get(one.file, 0) == self.clocks.get(other.file, 0)

    def counts(self) -> dict[str, int]:
        """How much of each kind was found, for the list of what a verdict was read from; kinds without any are left
        out."""
        found = {
            "files": len(self.files), "lines": sum(one.lines for one in self.files), "ranks": len(self.heard),
            "timeouts": len(self.timeouts), "watermarks": len(self.watermarks), "exceptions": len(self.raised),
            "exits": len(self.exits), "communicator members": len(self.members), "device faults": len(self.gpu_faults),
            "connection errors": len(self.link_errors), "device errors": len(self.device_errors),
        }  # fmt: skip
        return {kind: number for kind, number in found.items() if number}

    @property
    def tells_nothing(self) -> bool:
        """Whether no line was about a hang, a crash, an end, or who takes part."""
        return not (
            self.timeouts or self.watermarks or self.signals or self.raised or self.exits or self.members
            or self.gpu_faults or self.link_errors or self.device_errors or self.stuck or self.endings
            or self.last_step is not None
        )  # fmt: skip
