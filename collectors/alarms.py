"""The one alarm hook of the toolkit: whom to tell, what not to tell again, and when to be silent."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..profiler.errors import UsageError
from .alarm_memory import AlarmMemory
from .alarm_targets import call_command, call_webhook

COMMAND_VARIABLE = "MEGASCOPE_ALARM_COMMAND"
WEBHOOK_VARIABLE = "MEGASCOPE_ALARM_WEBHOOK"
SILENCE_VARIABLE = "MEGASCOPE_ALARM_SILENCE"
WINDOW_VARIABLE = "MEGASCOPE_ALARM_WINDOW_S"

WINDOW_S = 3600.0
"""The same alarm is not given again within so long."""

_FIELDS = ("run", "kind", "host", "until")


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that somebody should know. ``kind``: the incident's, or the verdict's; ``moment_ns``: UTC.

    ``ranks`` and ``hosts`` are the culprits, or those that the incident was noticed on; ``verdict`` is the whole
    object of the verb that judged, None where nothing was judged yet.
    """

    kind: str
    severity: str
    run: str
    attempt: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    sentence: str
    moment_ns: int
    verdict: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """What makes two alarms the same: the attempt, the kind, and who is accused."""
        who = ",".join(map(str, self.ranks)) if self.ranks else ",".join(self.hosts)
        return f"{self.run}/{self.attempt}/{self.kind}/{who}"

    def as_json(self) -> dict[str, Any]:
        """The object that a target gets: the fields, and the moment in words."""
        return {**asdict(self), "moment": utc(self.moment_ns), "key": self.key}


def utc(moment_ns: int) -> str:
    """A moment as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(moment_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Silence:
    """A rule: alarms that fit all that is given are not told. Patterns as in a shell; ``until_ns``: UTC."""

    run: str = "*"
    kind: str = "*"
    host: str = "*"
    until_ns: int | None = None

    @classmethod
    def parse(cls, text: str) -> Silence:
        """``"kind=slow,host=node-7*,until=2026-05-01T12:00Z"``; a moment alone silences everything until then.

        UsageError for anything else.
        """
        values: dict[str, str] = {}
        for part in filter(None, (one.strip() for one in text.split(","))):
            name, equals, value = part.partition("=")
            if not equals:
                name, value = "until", part
            if name not in _FIELDS or not value:
                raise UsageError(
                    f"The silence {text!r} has {part!r}: give run=, kind=, host= (patterns) and until= (a UTC moment)."
                )
            values[name] = value
        if not values:
            raise UsageError("A silence is empty: give run=, kind=, host= (patterns) or until= (a UTC moment).")
        until = values.pop("until", None)
        return cls(**values, until_ns=None if until is None else _moment_ns(until, text))

    def covers(self, alarm: Alarm, now_ns: int) -> bool:
        """Whether the alarm is not to be told now. A host has to be one of the alarm's; all of them have to fit."""
        if self.until_ns is not None and now_ns >= self.until_ns:
            return False
        hosts_fit = self.host == "*" or (
            bool(alarm.hosts) and all(fnmatchcase(host, self.host) for host in alarm.hosts)
        )
        return fnmatchcase(alarm.run, self.run) and fnmatchcase(alarm.kind, self.kind) and hosts_fit


def _moment_ns(text: str, rule: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"The silence {rule!r} has no moment {text!r}: give it as 2026-05-01T12:00Z.") from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1e9)


@dataclass(frozen=True, slots=True)
class AlarmSettings:
    """Whom to tell. ``command`` runs in a shell and gets the alarm as JSON on stdin; ``webhook`` gets it as a POST."""

    command: str | None = None
    webhook: str | None = None
    silences: tuple[Silence, ...] = ()
    window_s: float = WINDOW_S

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> AlarmSettings:
        """What ``MEGASCOPE_ALARM_COMMAND``, ``_WEBHOOK``, ``_SILENCE`` (rules apart by ``;``) and ``_WINDOW_S`` say.

        UsageError for what makes no sense.
        """
        env = os.environ if environment is None else environment
        rules = [one for one in env.get(SILENCE_VARIABLE, "").split(";") if one.strip()]
        window = env.get(WINDOW_VARIABLE) or str(WINDOW_S)
        try:
            window_s = float(window)
        except ValueError:
            raise UsageError(f"{WINDOW_VARIABLE} is {window!r}: give seconds, such as 3600.") from None
        return cls(
            env.get(COMMAND_VARIABLE) or None,
            checked_webhook(env.get(WEBHOOK_VARIABLE) or None),
            tuple(map(Silence.parse, rules)),
            window_s,
        )

    @property
    def tells_anybody(self) -> bool:
        """Whether there is any target."""
        return bool(self.command or self.webhook)


def checked_webhook(url: str | None) -> str | None:
    """The address, if it can be one. UsageError for other schemes than http and https."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError(
            "The webhook's address has no scheme that can be used: give one that begins with https:// or http://."
        )
    return url


@dataclass(frozen=True, slots=True)
class Told:
    """What became of an alarm: told, duplicate, silenced, failed or nobody; ``detail`` says why a target failed."""

    outcome: str
    detail: str | None = None


class AlarmHook:
    """Gives alarms to the targets, on a thread of its own: whoever raises one never waits and never fails.

    What was told is remembered in ``memory``, a folder of the store: all agents and `megascope watch` share it, so that
    a hang of a thousand hosts is one alarm, also after a restart.
    """

    def __init__(self, settings: AlarmSettings, memory: Path) -> None:
        self.settings, self._memory = settings, AlarmMemory(memory, settings.window_s)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._results: list[tuple[Alarm, Told]] = []

    def raise_alarm(self, alarm: Alarm) -> None:
        """Tell of it, unless it is silenced or was told already; what came of it is in `take_results` later."""
        if not self.settings.tells_anybody:
            self._keep(alarm, Told("nobody"))
        elif any(rule.covers(alarm, time.time_ns()) for rule in self.settings.silences):
            self._keep(alarm, Told("silenced"))
        else:
            thread = threading.Thread(target=self._tell, args=(alarm,), name="megascope-alarm", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread can be had: an alarm never ends an agent
                self._keep(alarm, Told("failed", str(error)))
                return
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def take_results(self) -> list[tuple[Alarm, Told]]:
        """What came of the alarms since the last time."""
        with self._lock:
            results, self._results = self._results, []
        return results

    def finish(self, patience_s: float = 15.0) -> None:
        """Wait for targets that are being told."""
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _keep(self, alarm: Alarm, told: Told) -> None:
        with self._lock:
            self._results.append((alarm, told))

    def _tell(self, alarm: Alarm) -> None:
        try:
            told = self._told(alarm)
        except Exception as error:  # a hook must never harm whoever raised the alarm
            told = Told("failed", f"{type(error).__name__}: {error}"[:300])
        self._keep(alarm, told)

    def _told(self, alarm: Alarm) -> Told:
        if not self._memory.claim(alarm.key):
            return Told("duplicate")
        problems = list(self._problems(alarm))
        if problems:
            self._memory.forget(alarm.key)
            return Told("failed", "; ".join(problems)[:600])
        return Told("told")

    def _problems(self, alarm: Alarm) -> Sequence[str]:
        content = json.dumps(alarm.as_json(), allow_nan=False, default=str)
        found: list[str | None] = []
        if self.settings.command:
            short = {
                "MEGASCOPE_ALARM_KIND": alarm.kind,
                "MEGASCOPE_ALARM_SEVERITY": alarm.severity,
                "MEGASCOPE_ALARM_RUN": alarm.run,
                "MEGASCOPE_ALARM_ATTEMPT": str(alarm.attempt),
                "MEGASCOPE_ALARM_RANKS": ",".join(map(str, alarm.ranks[:64])),
                "MEGASCOPE_ALARM_HOSTS": ",".join(alarm.hosts[:64]),
                "MEGASCOPE_ALARM_SENTENCE": alarm.sentence[:2000],
            }
            found.append(call_command(self.settings.command, content, short))
        if self.settings.webhook:
            found.append(call_webhook(self.settings.webhook, content))
        return [one for one in found if one is not None]
