"""What is done about an incident: stacks are taken, the verdict is asked for, alarms are raised, all of it is noted."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .alarm_memory import FOLDER
from .alarms import Alarm, AlarmHook, AlarmSettings
from .diagnosing import Claim, Diagnosed, Diagnoser
from .incidents import Incident, IncidentKind
from .rank_drain import RankDrain
from .stacks import StackTaker

log = logging.getLogger(__name__)

MOST_DIAGNOSES = 8
FIRST_AFTER_NS = int(0.5e9)
"""After the second snapshot: what was seen is then in the store, or will be at the next try."""

AGAIN_AFTER_NS = 3 * 10**9
MOST_APART_NS = 60 * 10**9
"""A verdict that is not firm is asked for again, each time after twice the time, within this bound."""

TOGETHER_NS = 10**9

FIRM = frozenset({"hang", "crashed", "finished"})
ALARMING = frozenset({"hang", "crashed", "inconclusive"})


@dataclass(slots=True)
class _Case:
    """What was done about one incident so far."""

    diagnoses: int = 0
    due_ns: int | None = None
    is_settled: bool = False
    has_stacks: bool = False
    alarmed: set[str] = field(default_factory=set)


class Responder:
    """Responds to the incidents of one attempt on this host; nothing that it does waits for anybody."""

    def __init__(self, store: Path, run: str, attempt: int, settings: AlarmSettings | None = None) -> None:
        self._run, self._attempt = run, attempt
        self._host = socket.gethostname()
        self._hook = AlarmHook(settings or settings_of_environment(), store / FOLDER)
        self._diagnoser = Diagnoser(store)
        self._claim = Claim(store, run, attempt, f"{self._host}:{os.getpid()}")
        self._stacks = StackTaker()
        self._cases: dict[str, _Case] = {}
        self._asked: Incident | None = None

    def poll(
        self, incidents: Sequence[Incident], ranks: Sequence[RankDrain], now: int, *, is_last: bool = False
    ) -> None:
        """Look once, the last time when the attempt is over. ``now``: UTC ns, of the attempt's clock."""
        self._take_answer(now)
        for incident in incidents:
            case = self._cases.setdefault(incident.incident, _Case(is_settled=incident.verdict is not None))
            if incident.kind == IncidentKind.RANK_DIED:
                self._tell_of_death(incident, case, now, is_last=is_last)
            elif incident.closed_ns is None:
                self._respond(incident, case, ranks, now)
            elif self._asked is incident and not self._diagnoser.is_busy:
                self._asked = None
        if not any(one.closed_ns is None and one.kind == IncidentKind.STALLED for one in incidents):
            self._claim.give_free()
        by_name = {incident.incident: incident for incident in incidents}
        self._note_alarms(by_name, now)

    def _respond(self, incident: Incident, case: _Case, ranks: Sequence[RankDrain], now: int) -> None:
        if not case.has_stacks:
            case.has_stacks = True
            self._stacks.ask(ranks)
        for rank, method, stack in self._stacks.take():
            incident.note("stack", now, rank=rank, method=method, stack=stack)
        if incident.snapshots < 2 or case.is_settled or case.diagnoses >= MOST_DIAGNOSES:
            return
        if case.due_ns is None:
            case.due_ns = now + FIRST_AFTER_NS
        if now < case.due_ns or self._diagnoser.is_busy or not self._claim.take():
            return
        case.diagnoses += 1
        case.due_ns = now + min(AGAIN_AFTER_NS * 2 ** (case.diagnoses - 1), MOST_APART_NS)
        problem = self._diagnoser.start(self._run, self._attempt)
        self._asked = incident
        if problem is not None:
            incident.note("diagnosis-failed", now, problem=problem)

    def _take_answer(self, now: int) -> None:
        answer = self._diagnoser.poll()
        incident = self._asked
        if answer is None or incident is None:
            return
        self._asked = None
        if answer.verdict is None:
            incident.note("diagnosis-failed", now, problem=answer.problem, took_s=round(answer.took_s, 2))
            return
        self._take_verdict(incident, answer, now)

    def _take_verdict(self, incident: Incident, answer: Diagnosed, now: int) -> None:
        assert answer.verdict is not None
        state = str(answer.verdict["verdict"])
        case = self._cases[incident.incident]
        incident.note("diagnosed", now, verdict=state, took_s=round(answer.took_s, 2))
        if incident.closed_ns is not None and state not in FIRM:
            return  # it moved while it was judged: what was seen of it then means nothing
        incident.verdict = answer.text
        case.is_settled = state in FIRM
        is_last = case.diagnoses >= MOST_DIAGNOSES or case.diagnoses >= 3
        if state in FIRM & ALARMING or (state in ALARMING and is_last):
            self._alarm(alarm_of_verdict(answer.verdict, now), case)

    def _tell_of_death(self, incident: Incident, case: _Case, now: int, *, is_last: bool) -> None:
        """One alarm for those that went together: it waits a moment for the others."""
        deaths = [one for one in incident.actions if one["action"] == "noticed-death" and one["rank"] is not None]
        is_due = deaths and (is_last or now - max(int(one["moment_ns"]) for one in deaths) >= TOGETHER_NS)
        if case.alarmed or not is_due or (incident.closed_ns is not None and not is_last):
            return
        ranks = tuple(sorted({int(one["rank"]) for one in deaths}))
        what = ", ".join(sorted({str(one["state"]) for one in deaths}))
        who = f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"
        sentence = f"{who} on {self._host} ended without a goodbye ({what}), run {self._run}, attempt {self._attempt}."
        moment_ns = int(deaths[0]["moment_ns"])
        alarm = Alarm(incident.kind, "high", self._run, self._attempt, ranks, (self._host,), sentence, moment_ns)
        self._alarm(alarm, case)

    def _alarm(self, alarm: Alarm, case: _Case) -> None:
        if alarm.key not in case.alarmed:
            case.alarmed.add(alarm.key)
            self._hook.raise_alarm(alarm)

    def _note_alarms(self, incidents: dict[str, Incident], now: int) -> None:
        for alarm, told in self._hook.take_results():
            names = [name for name, case in self._cases.items() if alarm.key in case.alarmed and name in incidents]
            if told.outcome == "failed":
                log.warning("An alarm of run %s was not told: %s.", self._run, told.detail)
            if told.outcome == "nobody":
                continue
            for name in names[-1:]:
                more = {} if told.detail is None else {"problem": told.detail}
                incidents[name].note("alarm", now, outcome=told.outcome, kind=alarm.kind, **more)

    def close(self) -> None:
        """End what runs; an alarm that is being told gets a moment."""
        self._diagnoser.close()
        self._stacks.close()
        self._claim.give_free()
        self._hook.finish(3.0)


def settings_of_environment() -> AlarmSettings:
    """The alarm settings; where they make no sense, that is said, and nobody is told."""
    try:
        return AlarmSettings.from_environment()
    except ValueError as error:
        log.warning("No alarms are given: %s", error)
        return AlarmSettings()


def alarm_of_verdict(verdict: dict[str, Any], moment_ns: int) -> Alarm:
    """The alarm that tells of a verdict, the object of `megascope hang --json`."""
    culprits = [one for one in verdict.get("culprits", ()) if isinstance(one, dict)]
    ranks = tuple(sorted({int(rank) for one in culprits for rank in one["ranks"]}))
    hosts = tuple(dict.fromkeys(str(host) for one in culprits for host in one["hosts"]))
    severity = "high" if verdict["verdict"] in FIRM else "medium"
    run, attempt = str(verdict["run"]), int(verdict["attempt"])
    return Alarm(
        str(verdict["verdict"]), severity, run, attempt, ranks, hosts, sentence_of(verdict), moment_ns, verdict
    )


def sentence_of(verdict: dict[str, Any]) -> str:
    """A verdict's object in a sentence: its own where it has one."""
    if isinstance(verdict.get("sentence"), str):
        return str(verdict["sentence"])
    parts = [
        f"{one['kind']}: ranks {', '.join(map(str, one['ranks'][:8]))} on {', '.join(one['hosts'][:4]) or 'a host'}"
        for one in verdict.get("culprits", ())[:3]
    ]
    told = "; ".join(parts) or "; ".join(str(one["reason"]) for one in verdict.get("abstained", ())[:1])
    return f"Run {verdict['run']}, attempt {verdict['attempt']}: {verdict['verdict']}" + (f" ({told})" if told else "")


__all__ = ["Responder", "alarm_of_verdict", "sentence_of", "settings_of_environment"]
