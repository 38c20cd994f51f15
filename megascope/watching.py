"""Following a live store from anywhere: what changes, what the agents found, and a verdict where they gave none."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .collectors.alarms.alarms import AlarmHook
from .collectors.alarms.memory import FOLDER
from .collectors.alarms.rules import Alarm, AlarmSettings, named, utc
from .collectors.alarms.verdict_alarms import ALARMING, FIRM, alarm_of_verdict, culprits_of, read_verdict, sentence_of
from .collectors.hardware.news import Key, hardware_news
from .collectors.reading.store import Attempt, Store
from .profiler.errors import MegascopeError
from .viz3d.actions import parse_actions
from .viz3d.hang import diagnose, to_json

OWN_AFTER_S = 15.0
"""A stall that no agent has judged within so long after its opening is judged here."""

SILENT_S = 30.0
"""An attempt that has not ended and of which nothing was heard for so long: its agents are gone, or their store is."""

FORGET_S = 3600.0
"""Attempts that were silent for longer when first seen are history, not news."""

MOST_TRIES = 8
PICK_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is new. ``moment_ns``: UTC, when it happened as far as that is known, else when it was seen."""

    moment_ns: int
    run: str
    attempt: int
    what: str
    sentence: str
    verdict: dict[str, Any] | None = None

    def line(self) -> str:
        """For a terminal."""
        return f"{utc(self.moment_ns)}  {self.run}/{self.attempt}  {self.what}: {self.sentence}"

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "moment": utc(self.moment_ns),
            "run": self.run,
            "attempt": self.attempt,
            "what": self.what,
            "sentence": self.sentence,
            "verdict": self.verdict,
        }


@dataclass(slots=True)
class _Seen:
    """What is known of an attempt already."""

    is_new: bool = False
    is_silent: bool = False
    exit_reason: str | None = None
    incidents: dict[str, tuple[bool, str | None]] = field(default_factory=dict)
    hardware: dict[Key, int] = field(default_factory=dict)
    told: str | None = None
    tries: int = 0
    again_at: float = 0.0


class Watch:
    """Looks at a store again and again; `look` gives what is new since the last time."""

    def __init__(self, root: Path, alarms: AlarmSettings) -> None:
        self._store = Store(root)
        self.hook = AlarmHook(alarms, self._store.root / FOLDER)
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._alarms: list[Alarm] = []
        self._problems: set[str] = set()
        self._pick_up_at = 0.0

    def close(self) -> None:
        """Give the store free, once the alarms are told."""
        self.hook.finish()
        self._store.close()

    def look(self) -> list[Change]:
        """What is new. What cannot be read now is told of once, and what is new of it comes with a later look.

        An attempt counts as seen only once all of its changes are known: none is lost, and none is told twice.
        """
        problems: dict[str, tuple[str, int]] = {}
        changes: list[Change] = []
        for attempt in self._attempts(problems):
            key = attempt.run, attempt.attempt
            known = copy.deepcopy(self._seen.get(key)) or _Seen(is_new=True)
            self._alarms = []
            try:
                changes += list(self._of_attempt(attempt, known))
            except Exception as error:  # a damaged row of one attempt must not hide the others
                problems[_words(error)] = key
                continue
            self._seen[key] = known
            for alarm in self._alarms:
                self.hook.raise_alarm(alarm)
        for text, (run, number) in problems.items():
            if text not in self._problems:
                changes.append(Change(time.time_ns(), run, number, "not readable", text))
        self._problems = set(problems)
        self._pick_up()
        return changes

    def _attempts(self, problems: dict[str, tuple[str, int]]) -> Sequence[Attempt]:
        import duckdb  # noqa: PLC0415

        try:
            self._store.refresh()
            return self._store.attempts()
        except (MegascopeError, OSError, duckdb.Error) as error:
            problems[_words(error)] = "-", 0
            return ()

    def _pick_up(self) -> None:
        """Tell of what waits in the store, if whoever raised it is gone."""
        if time.monotonic() >= self._pick_up_at:
            self._pick_up_at = time.monotonic() + PICK_UP_S
            self.hook.pick_up()

    def results(self) -> list[str]:
        """What came of the alarms since the last time, in words."""
        return [
            f"alarm {alarm.kind} of {alarm.run}/{alarm.attempt}: {told.outcome}"
            + (f" ({told.detail})" if told.detail else "")
            for alarm, told in self.hook.take_results()
            if told.outcome != "nobody"
        ]

    def _of_attempt(self, attempt: Attempt, known: _Seen) -> Iterator[Change]:
        age_s = self._store.data_age_s(attempt)
        if known.is_new:
            known.is_new, known.exit_reason = False, attempt.exit_reason
            if attempt.exit_reason is not None or age_s is None or age_s > FORGET_S:
                known.tries, known.is_silent = MOST_TRIES, True
                known.incidents = {str(one["incident"]): (True, one["verdict"]) for one in self._incidents(attempt)}
                return
            yield self._change(attempt, "watched", _described(attempt))
        elif known.exit_reason is not None or (known.tries >= MOST_TRIES and known.is_silent and age_s is None):
            return
        yield from self._of_incidents(attempt, known)
        yield from self._of_hardware(attempt, known)
        yield from self._of_end(attempt, known, age_s)

    def _incidents(self, attempt: Attempt) -> list[dict[str, Any]]:
        return list(self._store.query("SELECT * FROM incidents ORDER BY opened_ns", attempt=attempt).to_pylist())

    def _of_incidents(self, attempt: Attempt, known: _Seen) -> Iterator[Change]:
        unjudged = judged = False
        for row in self._incidents(attempt):
            name, is_closed, verdict = str(row["incident"]), row["closed_ns"] is not None, row["verdict"]
            before = known.incidents.get(name)
            known.incidents[name] = is_closed, verdict
            opened_ns = _moment(row["opened_ns"])
            if before is None:
                known.tries = 0
                yield Change(opened_ns, attempt.run, attempt.attempt, "incident", _opened(row))
            if verdict is not None and (before is None or before[1] != verdict):
                yield from self._judged(attempt, known, read_verdict(verdict))
            if is_closed and (before is None or not before[0]):
                yield Change(_moment(row["closed_ns"]), attempt.run, attempt.attempt, "closed", _closed(row))
            if not is_closed and row["kind"] == "stalled":
                judged |= verdict is not None
                unjudged |= verdict is None and time.time_ns() - opened_ns > OWN_AFTER_S * 1e9
        if unjudged and not judged:  # of several hosts, one judges for all
            yield from self._judge(attempt, known)

    def _of_hardware(self, attempt: Attempt, known: _Seen) -> Iterator[Change]:
        for news in hardware_news(self._store, attempt, known.hardware, time.time_ns()):
            if news.alarm is not None:
                self._alarms.append(news.alarm)
            yield Change(news.moment_ns, attempt.run, attempt.attempt, "hardware", news.sentence)

    def _of_end(self, attempt: Attempt, known: _Seen, age_s: float | None) -> Iterator[Change]:
        if attempt.exit_reason is not None and known.exit_reason is None:
            known.exit_reason = attempt.exit_reason
            yield Change(
                attempt.end_ns or time.time_ns(), attempt.run, attempt.attempt, "ended", f"it {attempt.exit_reason}"
            )
            if attempt.exit_reason == "crashed":
                known.tries = 0
                yield from self._judge(attempt, known)
            return
        is_silent = age_s is not None and age_s > SILENT_S and attempt.exit_reason is None
        if is_silent and not known.is_silent:
            known.tries = 0
            yield self._change(attempt, "silent", f"nothing was heard of it for {age_s:.0f} s: its agents may be gone")
        elif known.is_silent and not is_silent:
            yield self._change(attempt, "heard", "there is news of it again")
        known.is_silent = is_silent
        if is_silent:
            yield from self._judge(attempt, known)

    def _judge(self, attempt: Attempt, known: _Seen) -> Iterator[Change]:
        """A verdict of one's own, a bounded number of times, each time after twice the time, until it is firm."""
        if known.tries >= MOST_TRIES or (known.tries and time.monotonic() < known.again_at):
            return
        known.again_at = time.monotonic() + min(5.0 * 2**known.tries, 120.0)
        known.tries += 1
        verdict = to_json(diagnose(self._store, attempt))
        if verdict["verdict"] in FIRM:
            known.tries = MOST_TRIES
        yield from self._judged(attempt, known, verdict)

    def _judged(self, attempt: Attempt, known: _Seen, verdict: dict[str, Any] | None) -> Iterator[Change]:
        if verdict is None:
            return
        told = f"{verdict['verdict']}{[one.get('ranks') for one in culprits_of(verdict)]}"
        if told == known.told:
            return
        known.told = told
        now = time.time_ns()
        yield Change(now, attempt.run, attempt.attempt, str(verdict["verdict"]), sentence_of(verdict), verdict)
        if verdict["verdict"] in ALARMING:
            self._alarms.append(alarm_of_verdict(verdict, now))

    def _change(self, attempt: Attempt, what: str, sentence: str) -> Change:
        if what == "silent":
            now = time.time_ns()
            self._alarms.append(Alarm(what, "medium", attempt.run, attempt.attempt, (), (), sentence, now))
        return Change(time.time_ns(), attempt.run, attempt.attempt, what, sentence)


def _described(attempt: Attempt) -> str:
    layout = " x ".join(f"{axis} {size}" for axis, size in attempt.layout.items())
    ranks = "ranks that are not known yet" if attempt.world_size is None else f"{attempt.world_size:,} ranks"
    return f"{ranks}" + (f" ({layout})" if layout else "")


def _opened(row: dict[str, Any]) -> str:
    parts = str(row["incident"]).split("/")
    where = f"on {parts[-3]}" if len(parts) > 3 and parts[-3] else "on a host"
    actions = parse_actions(row["actions"])
    if row["kind"] == "rank-died":
        deaths = [one for one in actions if one.get("action") == "noticed-death"]
        ranks = sorted({int(one["rank"]) for one in deaths if isinstance(one.get("rank"), int)})
        who = f"{'rank' if len(ranks) == 1 else 'ranks'} {named(ranks)}" if ranks else "ranks that are not named"
        return f"{where}, {who} ended without a goodbye"
    if row["kind"] != "stalled":  # a supervisor's own
        told = next((one["sentence"] for one in actions if isinstance(one.get("sentence"), str)), None)
        return f"{row['kind']}: {told}" if told else f"{row['kind']}, {where}"
    quiet = next((one.get("quiet_s") for one in actions if one.get("action") == "stood-still"), None)
    return f"{where} nothing moves" + (f", for {quiet:g} s so far" if isinstance(quiet, int | float) else "")


def _closed(row: dict[str, Any]) -> str:
    moved = any(one.get("action") == "moved-again" for one in parse_actions(row["actions"]))
    return f"{row['kind']}: {'it moves again' if moved else 'the attempt is over, or what was missed is back'}"


def _moment(value: object) -> int:
    """A moment of a row, UTC ns; now, where it has none."""
    return value if isinstance(value, int) else time.time_ns()


def _words(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    is_ours = isinstance(error, MegascopeError | OSError)
    return text if is_ours and text else f"{type(error).__name__}: {text}"
