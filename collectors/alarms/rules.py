"""What an alarm is, whom the settings tell of it, and when they are silent."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from ...profiler.errors import UsageError

log = logging.getLogger(__name__)

COMMAND_VARIABLE = "MEGASCOPE_ALARM_COMMAND"
WEBHOOK_VARIABLE = "MEGASCOPE_ALARM_WEBHOOK"
SILENCE_VARIABLE = "MEGASCOPE_ALARM_SILENCE"
WINDOW_VARIABLE = "MEGASCOPE_ALARM_WINDOW_S"

WINDOW_S = 3600.0
"""The same alarm is not given again within so long."""

RETRY_FOR_S = 900.0
"""A process tries for so long to tell of an alarm, with longer and longer pauses."""

PAUSE_S = 1.0
"""Before the second try; later pauses are longer."""

GATHER_S = 2.0
"""Alarms that are told as one wait for so long for each other, from the newest on."""

NAMED = 8
"""Ranks and hosts that a sentence names; the JSON has all of them."""

_FIELDS = ("run", "kind", "host", "until")


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that somebody should know. ``kind``: the incident's, or the verdict's; ``moment_ns``: UTC.

    ``ranks`` and ``hosts`` are the culprits, or those that the incident was noticed on; ``verdict`` is the whole
    object of the verb that judged, None where nothing was judged yet. ``fate`` is what became of the ranks, in words:
    alarms of one attempt with the same fate that come within seconds are told as one.
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
    fate: str | None = None

    @property
    def key(self) -> str:
        """What makes two alarms the same: the attempt, the kind, and who is accused, or which hosts noticed it."""
        by_ranks = self.ranks and self.fate is None
        who = ",".join(map(str, self.ranks)) if by_ranks else ",".join(self.hosts)
        return f"{self.run}/{self.attempt}/{self.kind}/{who}"

    @property
    def told_with(self) -> str:
        """What alarms have in common that are told as one."""
        return self.key if self.fate is None else f"{self.run}/{self.attempt}/{self.kind}"

    def as_json(self) -> dict[str, Any]:
        """The object that a target gets: the fields, and the moment in words."""
        values = asdict(self)
        del values["fate"]
        return {**values, "moment": utc(self.moment_ns), "key": self.key}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Alarm:
        """Of the fields as JSON has them. ValueError for anything else."""
        try:
            known = {field.name: values[field.name] for field in fields(cls)}
            known |= {"ranks": tuple(map(int, known["ranks"])), "hosts": tuple(map(str, known["hosts"]))}
            return cls(**{**known, "attempt": int(known["attempt"]), "moment_ns": int(known["moment_ns"])})
        except (LookupError, TypeError) as error:
            raise ValueError(f"it is no alarm ({error})") from error


def as_one(alarms: Sequence[Alarm]) -> Alarm:
    """Alarms with the same fate as one, with the ranks and hosts of all; ``alarms`` must not be empty."""
    first = min(alarms, key=lambda alarm: alarm.moment_ns)
    if len(alarms) == 1:
        return first
    ranks = tuple(sorted({rank for alarm in alarms for rank in alarm.ranks}))
    hosts = tuple(sorted({host for alarm in alarms for host in alarm.hosts}))
    sentence = (
        f"{len(ranks)} ranks on {len(hosts)} hosts {first.fate}, run {first.run}, attempt {first.attempt}: "
        f"ranks {named(ranks)} on {named(hosts)}."
    )
    return Alarm(
        first.kind, first.severity, first.run, first.attempt, ranks, hosts, sentence, first.moment_ns,
        first.verdict, first.fate,
    )  # fmt: skip


def named(things: Sequence[object]) -> str:
    """The first few of them, and how many more there are."""
    more = len(things) - NAMED
    return ", ".join(map(str, things[:NAMED])) + (f" and {more} more" if more > 0 else "")


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
    retry_for_s: float = RETRY_FOR_S
    pause_s: float = PAUSE_S
    gather_s: float = GATHER_S

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


def settings_of_environment() -> AlarmSettings:
    """The alarm settings; where they make no sense, that is said, and nobody is told."""
    try:
        return AlarmSettings.from_environment()
    except ValueError as error:
        log.warning("No alarms are given: %s", error)
        return AlarmSettings()
