"""Telling of one alarm: again and again until it is told, by one process of the fleet at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..storage.shared_claim import SharedClaim
from .memory import AlarmMemory
from .rules import Alarm, AlarmSettings, as_one
from .targets import call_command, call_webhook

LONGEST_PAUSE_S = 30.0
"""Between two tries: each time twice as long, within this bound. So often, too, is looked whether another one told."""

HOLD_S = 120.0
"""Who has failed for so long lets others try: it may be this host's own network."""

MOST_GATHER_S = 10.0


@dataclass(frozen=True, slots=True)
class Told:
    """What became of an alarm; ``detail`` says why a target failed.

    told; duplicate: somebody told of it; silenced; nobody: there is no target; retrying: it failed and is tried again;
    failed: it was given up; left: this process ends, and the alarm waits in the store for another one.
    """

    outcome: str
    detail: str | None = None


@dataclass(slots=True)
class Delivery:
    """One alarm on its way. ``run`` ends once it is told, given up, or ``ending`` is set."""

    alarm: Alarm
    settings: AlarmSettings
    memory: AlarmMemory
    ending: threading.Event
    say: Callable[[Alarm, Told], None]
    is_kept: bool = False
    """Whether it waits in the store already."""
    _done: set[str] = field(default_factory=set)
    _problem: str | None = None

    def run(self) -> None:
        """Tell of it, however long that takes; whatever goes wrong is said and harms nobody."""
        try:
            told = self._deliver()
        except Exception as error:  # a hook must never harm whoever raised the alarm
            told = Told("failed", f"{type(error).__name__}: {error}"[:300])
        self.say(self.alarm, told)

    def _deliver(self) -> Told:
        if self.memory.is_told(self.alarm):
            self.memory.drop(self.alarm)
            return Told("duplicate")
        if not self.is_kept:
            self.memory.keep(self.alarm)
        self.ending.wait(self._gather_s())
        claim = self.memory.claim(self.alarm)
        try:
            return self._try_until_told(claim)
        finally:
            claim.give_free()

    def _gather_s(self) -> float:
        return 0.0 if self.alarm.fate is None else self.settings.gather_s

    def _try_until_told(self, claim: SharedClaim) -> Told:
        give_up_at = time.monotonic() + self.settings.retry_for_s
        pause_s, failing_since = self.settings.pause_s, None
        while True:
            is_told = self.memory.is_told(self.alarm)  # asked first: it costs a store of many hosts less than a claim
            is_mine = not is_told and _taken(claim)
            if is_told or self.memory.is_told(self.alarm):
                self.memory.drop(self.alarm)
                return Told("duplicate")
            if not is_mine:
                failing_since = None
            else:
                if self._tell(claim):
                    return Told("told")
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > HOLD_S:
                    claim.give_free()
                    failing_since = None
            if time.monotonic() + pause_s > give_up_at:
                if is_mine:
                    self.memory.drop(self.alarm)
                return Told("failed", self._problem or "another process had it and did not tell of it")
            if self._pause(pause_s, claim):
                return Told("left", self._problem)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _pause(self, pause_s: float, claim: SharedClaim) -> bool:
        """Wait, and keep the claim alive; whether this process is about to end."""
        until = time.monotonic() + pause_s
        while (left := until - time.monotonic()) > 0:
            if self.ending.wait(min(left, 5.0)):
                return True
            claim.keep()
        return self.ending.is_set()

    def _tell(self, claim: SharedClaim) -> bool:
        """One try, of all that is to be told at once."""
        alarms = self._gathered(claim)
        problems = self._problems(as_one(alarms))
        if not problems:
            for alarm in alarms:
                self.memory.note_told(alarm, self._done)
            return True
        if self._problem is None:
            self.say(self.alarm, Told("retrying", "; ".join(problems)[:600]))
        self._problem = "; ".join(problems)[:600]
        return False

    def _gathered(self, claim: SharedClaim) -> list[Alarm]:
        """What is told with it, once nothing has come for a while."""
        alarms = self.memory.companions(self.alarm)
        until = time.monotonic() + MOST_GATHER_S
        while self._gather_s() > 0 and time.monotonic() < until and not self.ending.wait(self._gather_s() / 2):
            claim.keep()
            before, alarms = alarms, self.memory.companions(self.alarm)
            if len(alarms) == len(before):
                break
        return alarms

    def _problems(self, alarm: Alarm) -> list[str]:
        """Call the targets that were not reached yet."""
        content = json.dumps(alarm.as_json(), allow_nan=False, default=str)
        found: dict[str, str | None] = {}
        if self.settings.command and "command" not in self._done:
            found["command"] = call_command(self.settings.command, content, _variables(alarm))
        if self.settings.webhook and "webhook" not in self._done:
            found["webhook"] = call_webhook(self.settings.webhook, content)
        self._done |= {name for name, problem in found.items() if problem is None}
        return [problem for problem in found.values() if problem is not None]


def _taken(claim: SharedClaim) -> bool:
    """Whether this process may tell; where the store cannot be written it may: better twice than never."""
    try:
        return claim.take()
    except OSError:
        return True


def _variables(alarm: Alarm) -> dict[str, str]:
    return {
        "MEGASCOPE_ALARM_KIND": alarm.kind,
        "MEGASCOPE_ALARM_SEVERITY": alarm.severity,
        "MEGASCOPE_ALARM_RUN": alarm.run,
        "MEGASCOPE_ALARM_ATTEMPT": str(alarm.attempt),
        "MEGASCOPE_ALARM_RANKS": ",".join(map(str, alarm.ranks[:64])),
        "MEGASCOPE_ALARM_HOSTS": ",".join(alarm.hosts[:64]),
        "MEGASCOPE_ALARM_SENTENCE": alarm.sentence[:2000],
    }
