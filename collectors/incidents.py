"""Noticing that a rank died or that nothing moves, and taking the snapshots that later explain it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .outbox import Outbox
from .processes import DEAD_STATES
from .rank_drain import RankDrain

SNAPSHOT_GAP_S = 3.0
"""Between the two snapshots of an incident: only what is unchanged in both is stuck, not slow."""

SOURCE = "own"


class IncidentKind(StrEnum):
    """What the agent notices by itself."""

    RANK_DIED = "rank-died"
    STALLED = "stalled"


@dataclass(slots=True)
class Incident:
    """One incident, until it is closed; ``actions`` are what was seen and done, with moments in UTC ns."""

    incident: str
    kind: str
    opened_ns: int
    closed_ns: int | None = None
    snapshots: int = 0
    snapshot_ns: int = 0
    actions: list[dict[str, Any]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Row of ``incidents``; the verdict is the analysers' business."""
        return {
            "incident": self.incident,
            "kind": self.kind,
            "opened_ns": self.opened_ns,
            "closed_ns": self.closed_ns,
            "verdict": None,
            "actions": json.dumps(self.actions),
        }


class IncidentWatch:
    """Watches the ranks of one attempt on this host."""

    def __init__(
        self, name: str, stall_s: float, snapshot_gap_s: float, state: Mapping[str, Any] | None = None
    ) -> None:
        self._name, self._stall_ns, self._gap_ns = name, int(stall_s * 1e9), int(snapshot_gap_s * 1e9)
        self.incidents = [Incident(**values) for values in (state or {}).get("incidents", ())]
        self._noted: set[str] = set((state or {}).get("noted", ()))

    def state(self) -> dict[str, Any]:
        """For a later agent."""
        return {"incidents": [asdict(incident) for incident in self.incidents], "noted": sorted(self._noted)}

    def rows(self) -> list[dict[str, Any]]:
        """Rows of ``incidents``."""
        return [incident.row() for incident in self.incidents]

    def check(self, ranks: Sequence[RankDrain], outbox: Outbox, now: int) -> None:
        """Open, continue and close incidents; snapshots go to the outbox. ``now``: UTC ns, of a clock without steps."""
        self._note_deaths(ranks, now)
        self._note_returns(ranks, now)
        self._note_stall(ranks, now)
        for incident in self.incidents:
            is_due = incident.snapshots == 0 or (incident.snapshots == 1 and now - incident.snapshot_ns >= self._gap_ns)
            if incident.closed_ns is None and is_due:
                self._snapshot(incident, ranks, outbox, now)

    def close_all(self, closed_ns: int) -> None:
        """The attempt is over."""
        for incident in self.incidents:
            if incident.closed_ns is None:
                incident.closed_ns = closed_ns

    def _open(self, kind: IncidentKind) -> Incident | None:
        found = [each for each in self.incidents if each.kind == kind and each.closed_ns is None]
        return found[0] if found else None

    def _begin(self, kind: IncidentKind, now: int) -> Incident:
        number = sum(1 for each in self.incidents if each.kind == kind)
        incident = Incident(f"{self._name}/{kind}/{number}", str(kind), now)
        self.incidents.append(incident)
        return incident

    def _note_deaths(self, ranks: Sequence[RankDrain], now: int) -> None:
        for rank in ranks:
            exception = rank.metadata.exception
            if rank.died is None and exception is None:
                continue
            for what in filter(None, (rank.died, exception and "exception")):
                mark = f"{rank.path.name}:{what}"
                if mark in self._noted:
                    continue
                self._noted.add(mark)
                incident = self._open(IncidentKind.RANK_DIED) or self._begin(IncidentKind.RANK_DIED, now)
                action = {"action": "noticed-death", "moment_ns": now, "rank": rank.rank, "state": str(what)}
                if exception is not None and what == "exception":
                    action |= {"moment_ns": exception.moment_ns, "type": exception.type, "message": exception.message}
                incident.actions.append(action)

    def _note_returns(self, ranks: Sequence[RankDrain], now: int) -> None:
        """Ranks that were taken for dead and are not; without any dead one, the incident is over."""
        incident = self._open(IncidentKind.RANK_DIED)
        for rank in ranks:
            marks = {f"{rank.path.name}:{state}" for state in DEAD_STATES} & self._noted
            if rank.died is None and marks and incident is not None:
                self._noted -= marks
                for action in incident.actions:
                    if action["action"] == "noticed-death" and action["rank"] == rank.rank:
                        action["action"] = "took-for-dead"
                incident.actions.append({"action": "came-back", "moment_ns": now, "rank": rank.rank})
                if not any(each.died or each.metadata.exception for each in ranks):
                    incident.closed_ns = now

    def _note_stall(self, ranks: Sequence[RankDrain], now: int) -> None:
        incident = self._open(IncidentKind.STALLED)
        quiet_ns = time.monotonic_ns() - max((rank.changed_ns for rank in ranks), default=0)
        if incident is not None and (quiet_ns < self._stall_ns):
            incident.closed_ns = now
        elif incident is None and quiet_ns >= self._stall_ns and self._is_in_flight(ranks):
            self._begin(IncidentKind.STALLED, now)

    def _is_in_flight(self, ranks: Sequence[RankDrain]) -> bool:
        return any(not rank.is_ended and rank.flights() for rank in ranks)

    def _snapshot(self, incident: Incident, ranks: Sequence[RankDrain], outbox: Outbox, now: int) -> None:
        incident.snapshots += 1
        incident.snapshot_ns = now
        incident.actions.append({"action": "snapshot", "moment_ns": now, "snapshot": incident.snapshots})
        for rank in ranks:
            key = {"incident": incident.incident, "rank": rank.rank, "snapshot": incident.snapshots, "source": SOURCE}
            outbox.append("in_flight", ({**key, **flight} for flight in rank.flights()))
