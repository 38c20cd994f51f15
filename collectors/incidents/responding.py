"""What is done about an incident: stacks are taken, the verdict is asked for, alarms are raised, all of it is noted."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...profiler.exits import exit_words
from ...profiler.host import host_name
from ..alarms.alarms import AlarmHook
from ..alarms.memory import FOLDER
from ..alarms.rules import Alarm, AlarmSettings, named, settings_of_environment
from ..alarms.teller import FINISH_S, log_untold
from ..alarms.verdict_alarms import ALARMING, FIRM, alarm_of_verdict, read_verdict, sentence_of
from ..spool.rank_drain import RankDrain
from .diagnosing import Diagnoser, diagnosis_claim
from .endings import exit_of, own_deaths
from .incidents import Incident, IncidentKind
from .question import Answer
from .stacks import StackTaker

log = logging.getLogger(__name__)

MOST_DIAGNOSES = 8
FIRST_AFTER_NS = int(0.2e9)
"""After the second snapshot, which the agent commits at once: what was seen is then in the store."""

AGAIN_AFTER_NS = 3 * 10**9
MOST_APART_NS = 60 * 10**9
"""A verdict that is not firm is asked for again, each time after twice the time, within this bound."""

TOGETHER_NS = int(1.5e9)
MOST_TOGETHER_NS = 5 * 10**9
"""Deaths of one host are told as one: once there was none for so long, or the first was so long ago."""

CLAIM_LOOK_S = 2.0
"""A host that may not diagnose looks so often whether the one that may is gone."""

REST_AFTER_FAILURE_S = 120.0
"""Who could not tell of its verdict leaves the diagnosis to other hosts for so long."""

FATE = "ended without a goodbye"


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
        self._host = host_name()
        self._hook = AlarmHook(settings or settings_of_environment(), store / FOLDER)
        self._diagnoser = Diagnoser(store)
        self._claim = diagnosis_claim(store, run, attempt, f"{self._host}:{os.getpid()}")
        self._claim_at = 0.0
        self._stacks = StackTaker()
        self._cases: dict[str, _Case] = {}
        self._asked: Incident | None = None

    def poll(
        self, incidents: Sequence[Incident], ranks: Sequence[RankDrain], now: int, *, is_last: bool = False
    ) -> None:
        """Look once, the last time when the attempt is over. ``now``: UTC ns, of the attempt's clock."""
        self._claim.keep()
        self._take_answer(now)
        for incident in incidents:
            case = self._cases.get(incident.incident) or self._begin(incident, now)
            if incident.kind == IncidentKind.RANK_DIED:
                self._tell_of_death(incident, case, now, is_last=is_last)
            elif incident.closed_ns is None:
                self._respond(incident, case, ranks, now)
            elif self._asked is incident and not self._diagnoser.is_busy:
                self._asked = None
        if not any(one.closed_ns is None and one.kind == IncidentKind.STALLED for one in incidents):
            self._claim.give_free()
            self._diagnoser.rest()
        by_name = {incident.incident: incident for incident in incidents}
        self._note_alarms(by_name, now)

    def _begin(self, incident: Incident, now: int) -> _Case:
        """A new case, or one of an earlier agent, which may have ended before it told of its verdict."""
        case = self._cases[incident.incident] = _Case()
        verdict = read_verdict(incident.verdict)
        if verdict is not None and verdict["verdict"] in FIRM:
            case.is_settled = True
            if incident.closed_ns is None and verdict["verdict"] in ALARMING:
                self._alarm(alarm_of_verdict(verdict, now), case)
        return case

    def _respond(self, incident: Incident, case: _Case, ranks: Sequence[RankDrain], now: int) -> None:
        if not case.has_stacks:
            case.has_stacks = True
            self._stacks.ask(ranks)
        for rank, method, stack in self._stacks.take():
            incident.note("stack", now, rank=rank, method=method, stack=stack)
        if case.is_settled or case.diagnoses >= MOST_DIAGNOSES:
            return
        if incident.snapshots < 2:
            if self._may_diagnose():
                self._diagnoser.prepare(self._run, self._attempt)
            return
        if not self._may_diagnose():
            self._diagnoser.rest()
            return
        if case.due_ns is None:
            case.due_ns = now + FIRST_AFTER_NS
        if now < case.due_ns or self._diagnoser.is_busy:
            return
        case.diagnoses += 1
        case.due_ns = now + min(AGAIN_AFTER_NS * 2 ** (case.diagnoses - 1), MOST_APART_NS)
        problem = self._diagnoser.start(self._run, self._attempt)
        self._asked = incident
        if problem is not None:
            incident.note("diagnosis-failed", now, problem=problem)

    def _may_diagnose(self) -> bool:
        """Whether this host has the claim. Where the store cannot be written it has: better twice than never."""
        if self._claim.is_own:
            return True
        if time.monotonic() < self._claim_at:
            return False
        self._claim_at = time.monotonic() + CLAIM_LOOK_S
        try:
            return self._claim.take()
        except OSError:
            return True

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

    def _take_verdict(self, incident: Incident, answer: Answer, now: int) -> None:
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
            self._alarm(alarm_of_verdict(dict(answer.verdict), now), case)

    def _tell_of_death(self, incident: Incident, case: _Case, now: int, *, is_last: bool) -> None:
        """One alarm for those of this host that went together; the hook puts those of several hosts together."""
        if case.alarmed or (incident.closed_ns is not None and not is_last):
            return
        deaths = own_deaths(incident.actions)
        if not deaths:
            return
        moments = [int(one["moment_ns"]) for one in deaths]
        if not is_last and now - max(moments) < TOGETHER_NS and now - min(moments) < MOST_TOGETHER_NS:
            return
        ranks = tuple(sorted({int(one["rank"]) for one in deaths}))
        what = _endings_of(deaths)
        who = f"Rank{'s' if len(ranks) > 1 else ''} {named(ranks)}"
        sentence = f"{who} on {self._host} {FATE} ({what}), run {self._run}, attempt {self._attempt}."
        first_ns = int(deaths[0]["moment_ns"])
        alarm = Alarm(
            incident.kind, "high", self._run, self._attempt, ranks, (self._host,), sentence, first_ns, fate=FATE
        )
        self._alarm(alarm, case)

    def _alarm(self, alarm: Alarm, case: _Case) -> None:
        if alarm.key not in case.alarmed:
            case.alarmed.add(alarm.key)
            self._hook.raise_alarm(alarm)

    def _note_alarms(self, incidents: dict[str, Incident], now: int) -> None:
        for alarm, told in self._hook.take_results():
            names = [name for name, case in self._cases.items() if alarm.key in case.alarmed and name in incidents]
            log_untold(alarm, told)
            if told.outcome == "nobody":
                continue
            for name in names[-1:]:
                more = {} if told.detail is None else {"problem": told.detail}
                incidents[name].note("alarm", now, outcome=told.outcome, kind=alarm.kind, **more)
            if told.outcome == "failed" and self._claim.is_own:
                self._claim.give_free()  # another host may reach whom this one cannot
                self._claim_at = time.monotonic() + REST_AFTER_FAILURE_S

    @property
    def is_telling(self) -> bool:
        """Whether an alarm is still on its way."""
        return self._hook.is_telling

    def end(self) -> None:
        """End what runs, without waiting; alarms go on."""
        self._diagnoser.close()
        self._stacks.close()
        self._claim.give_free()

    def close(self) -> None:
        """End what runs; alarms that are on their way get a moment, and wait in the store then."""
        self.end()
        self._hook.finish(FINISH_S)
        self._note_alarms({}, 0)


def _endings_of(deaths: Sequence[Mapping[str, Any]]) -> str:
    """How ranks ended, in words; which rank in which way, where they differ. An exception tells the most."""
    least_first = sorted(deaths, key=lambda one: one["state"] == "exception")
    by_rank = {int(one["rank"]): _ending_of(one) for one in least_first}
    of = {ending: [rank for rank, own in sorted(by_rank.items()) if own == ending] for ending in by_rank.values()}
    if len(of) == 1:
        return next(iter(of))
    return ", ".join(f"{named(ranks)} {ending}" for ending, ranks in sorted(of.items(), key=lambda one: one[1]))


def _ending_of(death: Mapping[str, Any]) -> str:
    """How a rank ended, in words: by its exit code where the agent knows no more than that it is gone."""
    code = exit_of(death).code
    if death["state"] == "exception":
        return "with an exception"
    return str(death["state"]) if code is None else exit_words(code)


__all__ = ["Responder", "alarm_of_verdict", "sentence_of", "settings_of_environment"]
