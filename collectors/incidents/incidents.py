"""Noticing that a rank died or that nothing moves, and taking the snapshots that later explain it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ..spool.outbox import Outbox
from ..spool.processes import DEAD_STATES
from ..spool.rank_drain import RankDrain
from .endings import NOTICED, Endings
from .phases import PhaseBoard
from .stall_pace import StallPace

SNAPSHOT_GAP_S = 1.5
"""Between the two snapshots of an incident, of which the first one comes after seconds of standing still: only what is
unchanged in both is stuck, not slow. The second one is later than `patience.STUCK_S`, so that it may be judged."""

JUDGED_WITHIN_NS = 5 * 10**9
"""So soon after its opening a stall is judged, where nothing is in the way."""

SOURCE = "own"

MOST_ACTIONS = 200
"""More are not kept of one incident; the first ones tell what happened."""


class IncidentKind(StrEnum):
    """What the agent notices by itself."""

    RANK_DIED = "rank-died"
    STALLED = "stalled"


@dataclass(slots=True)
class Incident:
    """One incident, until it is closed; ``actions`` are what was seen and done, with moments in UTC ns.

    ``verdict`` is the JSON of `megascope hang`, as text; None until somebody diagnosed it.
    """

    incident: str
    kind: str
    opened_ns: int
    closed_ns: int | None = None
    snapshots: int = 0
    snapshot_ns: int = 0
    actions: list[dict[str, Any]] = field(default_factory=list)
    verdict: str | None = None

    def note(self, action: str, moment_ns: int, **more: Any) -> None:
        """Add an action, as far as there is room."""
        if len(self.actions) < MOST_ACTIONS:
            self.actions.append({"action": action, "moment_ns": moment_ns, **more})

    def row(self) -> dict[str, Any]:
        """Row of ``incidents``."""
        return {
            "incident": self.incident,
            "kind": self.kind,
            "opened_ns": self.opened_ns,
            "closed_ns": self.closed_ns,
            "verdict": self.verdict,
            "actions": json.dumps(self.actions),
        }


class IncidentWatch:
    """Watches the ranks of one attempt on this host.

    ``has_news``: a snapshot was taken in the last check, or a verdict written since the one before; others wait for it.
    """

    def __init__(
        self,
        name: str,
        stall_s: float,
        snapshot_gap_s: float,
        state: Mapping[str, Any] | None = None,
        board: PhaseBoard | None = None,
    ) -> None:
        self._name, self._gap_ns = name, int(snapshot_gap_s * 1e9)
        self._pace = StallPace(stall_s, (state or {}).get("pace"), board)
        self.incidents = [Incident(**values) for values in (state or {}).get("incidents", ())]
        self._noted: set[str] = set((state or {}).get("noted", ()))
        self._endings = Endings()
        self._marks: list[tuple[str, int, str | None]] = []
        self._look_for_news()
        self.has_news = False

    def state(self) -> dict[str, Any]:
        """For a later agent."""
        return {
            "incidents": [asdict(incident) for incident in self.incidents],
            "noted": sorted(self._noted),
            "pace": self._pace.state(),
        }

    @property
    def stalls(self) -> int:
        """How often the ranks of this host have come to a stand so far."""
        return sum(one.kind == IncidentKind.STALLED for one in self.incidents)

    def _look_for_news(self) -> None:
        marks = [(one.incident, one.snapshots, one.verdict) for one in self.incidents]
        self.has_news, self._marks = marks != self._marks, marks

    def is_pressing(self, now: int) -> bool:
        """Whether a stall was opened a moment ago and has no verdict yet. ``now``: as for `check`."""
        return any(
            one.kind == IncidentKind.STALLED
            and one.closed_ns is None
            and one.verdict is None
            and now - one.opened_ns < JUDGED_WITHIN_NS
            for one in self.incidents
        )

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
        self._look_for_news()

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
                action = {"action": NOTICED, "moment_ns": now, "rank": rank.rank, "state": str(what)}
                action |= {"pid": rank.reader.pid}
                if exception is not None and what == "exception":
                    action |= {"moment_ns": exception.moment_ns, "type": exception.type, "message": exception.message}
                incident.actions.append(action)
            for one in self.incidents:
                if one.kind == IncidentKind.RANK_DIED:
                    self._endings.add_to(rank, one.actions)

    def _note_returns(self, ranks: Sequence[RankDrain], now: int) -> None:
        """Ranks that were taken for dead and are not; without any dead one, the incident is over."""
        incident = self._open(IncidentKind.RANK_DIED)
        for rank in ranks:
            marks = {f"{rank.path.name}:{state}" for state in DEAD_STATES} & self._noted
            if rank.died is None and marks and incident is not None:
                self._noted -= marks
                for action in incident.actions:
                    if action["action"] == NOTICED and action["rank"] == rank.rank:
                        action["action"] = "took-for-dead"
                incident.actions.append({"action": "came-back", "moment_ns": now, "rank": rank.rank})
                if not any(each.died or each.metadata.exception for each in ranks):
                    incident.closed_ns = now

    def _note_stall(self, ranks: Sequence[RankDrain], now: int) -> None:
        incident = self._open(IncidentKind.STALLED)
        quiet_ns, patience_ns = self._pace.watch(ranks)
        if incident is not None and now - quiet_ns > incident.opened_ns:
            incident.closed_ns = now
            incident.note("moved-again", now)
        elif incident is None and patience_ns is not None and quiet_ns >= patience_ns:
            incident = self._begin(IncidentKind.STALLED, now)
            incident.note("stood-still", now, quiet_s=round(quiet_ns / 1e9, 1), patience_s=round(patience_ns / 1e9, 1))

    def _snapshot(self, incident: Incident, ranks: Sequence[RankDrain], outbox: Outbox, now: int) -> None:
        incident.snapshots += 1
        incident.snapshot_ns = now
        incident.note("snapshot", now, snapshot=incident.snapshots)
        for rank in ranks:
            key = {"incident": incident.incident, "rank": rank.rank, "snapshot": incident.snapshots, "source": SOURCE}
            outbox.append("in_flight", ({**key, **flight} for flight in rank.flights()))
