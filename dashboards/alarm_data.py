"""Alarms of an attempt for the page Health: from the memory of the alarm hook, and from what incidents note."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from ..collectors.alarms.record import Recorded, recorded_alarms
from ..collectors.alarms.rules import WINDOW_S, Alarm, as_one
from .incident_data import Told

TOGETHER_NS = 2 * 10**9
"""Alarms of the same fate that were told within so long of each other were told as one."""

NOTED_WITHIN_NS = int(WINDOW_S * 1e9)
"""What an incident notes further from an alarm's moment is of another alarm, be it of the same kind and host."""


class State(StrEnum):
    """What became of an alarm."""

    TOLD = "told"
    WAITING = "not told yet"
    FAILED = "given up"
    SILENCED = "silenced"


_NOTED = {"told": State.TOLD, "failed": State.FAILED, "silenced": State.SILENCED}
"""Outcomes that end an alarm; of what else an incident notes (retrying, left, duplicate) it is known elsewhere."""


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """One alarm. Moments are UTC ns: when it happened, and when it was told. ``problem`` is why a target failed,
    ``incident`` the incident that notes it, None where none does."""

    moment_ns: int
    kind: str
    hosts: tuple[str, ...]
    sentence: str
    state: State
    told_ns: int | None = None
    targets: tuple[str, ...] = ()
    teller: str | None = None
    problem: str | None = None
    incident: str | None = None


@dataclass(frozen=True, slots=True)
class _Note:
    """The last that an incident notes of a kind of alarm."""

    incident: Told
    kind: str
    moment_ns: int
    outcome: str
    problem: str | None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those of its culprits, and the one that noticed it, which its name has."""
        accused = [str(host) for one in self.incident.culprits for host in one.get("hosts") or () if host]
        noticed = self.incident.noticed_on
        return tuple(dict.fromkeys([*accused, *([noticed] if noticed else [])]))

    @property
    def ranks(self) -> frozenset[int]:
        """Those of its culprits."""
        return frozenset(
            rank for one in self.incident.culprits for rank in one.get("ranks") or () if isinstance(rank, int)
        )

    def distance_ns(self, alarm: Alarm) -> int:
        """From the alarm's moment to the note."""
        return abs(self.moment_ns - alarm.moment_ns)

    def is_of(self, alarm: Alarm) -> bool:
        """Whether it may be of this alarm. One that names no host is told by its ranks, if both name some."""
        if alarm.kind != self.kind or self.distance_ns(alarm) > NOTED_WITHIN_NS:
            return False
        if alarm.hosts:
            return not set(alarm.hosts).isdisjoint(self.hosts)
        return not alarm.ranks or not self.ranks or not self.ranks.isdisjoint(alarm.ranks)


def alarms_of(store: Path, run: str, attempt: int, incidents: Iterable[Told]) -> list[AlarmRow]:
    """Alarms of an attempt, the newest first; ``incidents`` are those of the run.

    What was silenced or given up, and what the hook's memory does not have any more, is known from incidents alone.
    Raises OSError where the store cannot be read.
    """
    notes = [note for one in incidents if one.attempt == attempt for note in _notes(one)]
    kept = _told_together(recorded_alarms(store, run, attempt))
    rows = [_kept(one, notes) for one in kept]
    rows += [
        _noted(note, _NOTED[note.outcome])
        for note in notes
        if note.outcome in _NOTED and not any(note.is_of(one.alarm) for one in kept)
    ]
    return sorted(rows, key=lambda row: -row.moment_ns)


def _notes(incident: Told) -> Iterator[_Note]:
    last: dict[str, _Note] = {}
    for action in incident.actions:
        moment, kind = action.get("moment_ns"), str(action.get("kind") or incident.kind)
        if action.get("action") == "alarm" and isinstance(moment, int):
            problem = action.get("problem")
            told = None if problem is None else str(problem)
            last[kind] = _Note(incident, kind, moment, str(action.get("outcome")), told)
    yield from last.values()


def _kept(one: Recorded, notes: Iterable[_Note]) -> AlarmRow:
    alarm, waits = one.alarm, one.told_ns is None
    mine = (each for each in notes if each.is_of(alarm))
    note = min(mine, key=lambda each: each.distance_ns(alarm), default=None)
    return AlarmRow(
        moment_ns=alarm.moment_ns,
        kind=alarm.kind,
        hosts=alarm.hosts,
        sentence=alarm.sentence,
        state=State.WAITING if waits else State.TOLD,
        told_ns=one.told_ns,
        targets=one.targets,
        teller=one.teller,
        problem=note.problem if note is not None and waits else None,
        incident=None if note is None else note.incident.incident,
    )


def _noted(note: _Note, state: State) -> AlarmRow:
    return AlarmRow(
        moment_ns=note.incident.opened_ns,
        kind=note.kind,
        hosts=note.hosts,
        sentence=note.incident.what,
        state=state,
        told_ns=note.moment_ns if state == State.TOLD else None,
        problem=note.problem,
        incident=note.incident.incident,
    )


def _told_together(recorded: Sequence[Recorded]) -> list[Recorded]:
    """Alarms that were told as one, as one: deaths on many hosts within seconds."""
    groups: list[list[Recorded]] = []
    open_groups: dict[tuple[str, bool], list[Recorded]] = {}
    for one in sorted(recorded, key=lambda each: each.told_ns or 0):
        key = one.alarm.told_with, one.told_ns is None
        group = open_groups.get(key)
        if group is None or (one.told_ns or 0) - (group[-1].told_ns or 0) > TOGETHER_NS:
            group = open_groups[key] = []
            groups.append(group)
        group.append(one)
    return [replace(group[0], alarm=as_one([one.alarm for one in group])) for group in groups]
