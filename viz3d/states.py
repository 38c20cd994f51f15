"""Ranks at a moment: what each has in flight, how far it is in its groups, and what its process does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..profiler.vocabulary import WAITING_KINDS, stage_axis
from .operations import is_of_pass, sends
from .verdict import GroupName

DEAD_STATES = frozenset({"gone", "zombie"})


@dataclass(frozen=True, slots=True)
class Flight:
    """A segment that has begun and not ended, as in a heartbeat."""

    segment: str
    kind: str
    group: int | None = None
    sequence: int | None = None
    peer: int | None = None
    microbatch: int | None = None
    begun_ns: int | None = None
    size_bytes: int | None = None
    waiting: bool | None = None
    is_recovered: bool = False
    """Whether its own record is lost, and it is as the other members have it: see `recovered`."""

    @property
    def communicates(self) -> bool:
        """Whether it is an operation with other ranks, numbered in its group."""
        return self.kind in WAITING_KINDS and self.group is not None and self.sequence is not None

    @property
    def sends(self) -> bool | None:
        """Whether it is a point-to-point operation that gives data, or gets it (False); None: neither, or unknown."""
        return sends(self.kind, self.segment)


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank at a moment. ``progress`` maps a group to the last sequence numbers (issued, completed).

    ``moment_ns`` and all other moments of a rank are on the clock of its host.
    """

    rank: int
    moment_ns: int
    step: int | None = None
    flights: tuple[Flight, ...] = ()
    progress: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    process_state: str | None = None
    spans: int | None = None

    def issued(self, group: int) -> int:
        """Last sequence number that the rank issued in a group; 0 if none."""
        flying = (flight.sequence for flight in self.flights if flight.group == group and flight.sequence is not None)
        return max(self.progress.get(group, (0, 0))[0], max(flying, default=0))

    def completed(self, group: int) -> int:
        """Last sequence number that the rank completed in a group; 0 if none."""
        return self.progress.get(group, (0, 0))[1]

    def knows(self, group: int) -> bool:
        """Whether anything tells how far the rank is in a group."""
        return group in self.progress or any(flight.group == group for flight in self.flights)

    @property
    def is_dead(self) -> bool:
        """Whether the process is gone without having said so."""
        return self.process_state in DEAD_STATES

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, or has closed its black box."""
        return self.is_dead or self.process_state == "exited"

    @property
    def is_present(self) -> bool:
        """Whether the process can take part in anything: not ended, not stopped."""
        return not self.has_ended and self.process_state != "stopped"

    def innermost_work(self) -> Flight | None:
        """The open segment of the rank's own work that began last."""
        work = [flight for flight in self.flights if flight.kind not in WAITING_KINDS]
        return max(work, key=lambda flight: flight.begun_ns or 0, default=None)

    @property
    def works_in(self) -> str | None:
        """Name of the innermost work that is open."""
        work = self.innermost_work()
        return None if work is None else work.segment

    def enclosing(self, flight: Flight) -> Flight | None:
        """The innermost work that was open when a flight of the rank was begun."""
        begun_ns = flight.begun_ns or 0
        work = [one for one in self.flights if one.kind not in WAITING_KINDS and (one.begun_ns or 0) <= begun_ns]
        return max(work, key=lambda one: one.begun_ns or 0, default=None)

    def before(self, flight: Flight) -> list[Flight]:
        """Operations in flight that the rank began before one of them, as far as their own records tell."""
        own = (one for one in self.flights if one.communicates and not one.is_recovered)
        return [one for one in own if (one.begun_ns or 0) < (flight.begun_ns or 0)]

    def age_s(self, flight: Flight) -> float | None:
        """How long a flight of the rank has been open, seconds."""
        return None if flight.begun_ns is None else (self.moment_ns - flight.begun_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All ranks at a moment. ``missing`` are ranks that the job has and that have no (fresh) data.

    ``lagging`` are hosts whose clock is not known and whose newest data is old against the others': their clock may
    be behind, or they fell silent. ``incident`` is the one whose frozen state this is, None for heartbeats.
    """

    moment_ns: int
    states: Mapping[int, RankState]
    groups: Mapping[int, GroupName]
    hosts: Mapping[int, str]
    coordinates: Mapping[int, Mapping[str, int | None]]
    axes: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    lagging: tuple[str, ...] = ()
    incident: str | None = None
    never_heard: frozenset[int] = frozenset()
    """Of the missing, those of which there has not been a single heartbeat."""
    stage_axis: str | None = field(init=False, compare=False, default=None)
    """The pipeline axis, by its name, or else the one along which messages of forward and backward passes go."""

    def __post_init__(self) -> None:
        """Find the pipeline axis."""
        object.__setattr__(self, "stage_axis", stage_axis(self.axes) or self._axis_of_messages())

    def stage_of(self, rank: int) -> int:
        """Index on the pipeline axis, 0 without one."""
        return 0 if self.stage_axis is None else self.coordinates.get(rank, {}).get(self.stage_axis) or 0

    def _axis_of_messages(self) -> str | None:
        for name in self.groups.values():
            if len(name.ranks) == 2 and is_of_pass(name.kind):
                first, second = (self.coordinates.get(rank, {}) for rank in name.ranks)
                apart = [axis for axis in self.axes if first.get(axis) != second.get(axis)]
                if len(apart) == 1:
                    return apart[0]
        return None
