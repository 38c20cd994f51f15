"""Following a live store from anywhere: what changes, what the agents found, and a verdict where they gave none."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .changes import Change, closed, described, moment_of, opened, words
from .collectors.alarms.alarms import AlarmHook
from .collectors.alarms.memory import FOLDER
from .collectors.alarms.rules import Alarm, AlarmSettings
from .collectors.alarms.verdict_alarms import (
    ALARMING,
    FIRM,
    alarm_of_verdict,
    alarms_of_stragglers,
    culprits_of,
    read_verdict,
    sentence_of,
)
from .collectors.hardware.news import hardware_news
from .collectors.hardware.telling import Key
from .collectors.incidents.straggling import StragglerNews
from .collectors.incidents.watched import KIND, Judgement, WatchedIncidents
from .collectors.reading.store import Attempt, Store
from .profiler.errors import MegascopeError
from .viz3d.hang import diagnose, to_json
from .viz3d.snapshot import flight_rows, take_looks

OWN_AFTER_S = 15.0
"""A stall that no agent has judged within so long after its opening is judged here."""

SILENT_S = 30.0
"""An attempt that has not ended and of which nothing was heard for so long: its agents are gone, or their store is."""

FORGET_S = 3600.0
"""Attempts that were silent for longer when first seen are history, not news."""

MOST_TRIES = 8
PICK_UP_S = 10.0
SNAPSHOT_GAP_NS = int(2.5e9)


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
    judges_itself: bool = False
    is_kept: bool = False
    slow: set[str] = field(default_factory=set)


class Watch:
    """Looks at a store again and again; `look` gives what is new since the last time.

    Its own verdicts are kept in the store with ``keep``; every ``stragglers_s`` seconds `megascope stragglers` is asked
    about what runs (0: never).
    """

    def __init__(self, root: Path, alarms: AlarmSettings, *, keep: bool = True, stragglers_s: float = 0.0) -> None:
        self._store = Store(root)
        self.hook = AlarmHook(alarms, self._store.root / FOLDER)
        self._kept = WatchedIncidents(self._store.root) if keep else None
        self._unkept: str | None = None
        self._stragglers = StragglerNews(self._store.root, stragglers_s)
        self._judgements: list[tuple[tuple[str, int], Judgement]] = []
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._alarms: list[Alarm] = []
        self._problems: set[str] = set()
        self._pick_up_at = 0.0

    def close(self) -> None:
        """Give the store free, once the alarms are told."""
        self._stragglers.close()
        if self._kept is not None:
            self._kept.close()
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
            self._alarms, self._judgements = [], []
            try:
                changes += list(self._of_attempt(attempt, known))
            except Exception as error:  # a damaged row of one attempt must not hide the others
                problems[words(error)] = key
                continue
            self._seen[key] = known
            for alarm in self._alarms:
                self.hook.raise_alarm(alarm)
            self._keep(key, known)
        if self._kept is not None:
            self._kept.poll()
        changes += self._slow()
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
            problems[words(error)] = "-", 0
            return ()

    def _pick_up(self) -> None:
        """Tell of what waits in the store, if whoever raised it is gone."""
        if time.monotonic() >= self._pick_up_at:
            self._pick_up_at = time.monotonic() + PICK_UP_S
            self.hook.pick_up()

    def _keep(self, key: tuple[str, int], known: _Seen) -> None:
        """Have what was judged here kept, and closed once agents are heard, have judged, or the attempt has ended."""
        if self._kept is None:
            return
        for each, judgement in self._judgements:
            self._kept.judged(each, judgement)
        if not known.judges_itself:
            why = "agents are heard of and have judged, or it moves, or it has ended"
            known.is_kept &= not self._kept.over(key, why, is_open=known.is_kept)

    def _slow(self) -> Iterator[Change]:
        """What `megascope stragglers` has found since the last time, of the attempts that run."""
        live = [key for key, known in self._seen.items() if known.exit_reason is None and not known.is_silent]
        found = self._stragglers.poll(live)
        if found is None or found[1].verdict is None:
            return
        (run, attempt), verdict = found[0], dict(found[1].verdict)
        known, now = self._seen[run, attempt], time.time_ns()
        for alarm in alarms_of_stragglers(verdict, now):
            if alarm.key not in known.slow:
                known.slow.add(alarm.key)
                self.hook.raise_alarm(alarm)
                yield Change(now, run, attempt, alarm.kind, alarm.sentence, verdict)

    def results(self) -> list[str]:
        """What came of the alarms, of what was to be kept and what was asked, since the last time, in words."""
        problem = None if self._kept is None else self._kept.problem
        is_new = problem is not None and problem != self._unkept
        self._unkept = problem
        unkept = [f"what was judged here is not kept in the store: {problem}"] * is_new
        alarms = [
            f"alarm {alarm.kind} of {alarm.run}/{alarm.attempt}: {told.outcome}"
            + (f" ({told.detail})" if told.detail else "")
            for alarm, told in self.hook.take_results()
            if told.outcome != "nobody"
        ]
        return unkept + self._stragglers.take_problems() + alarms

    def _of_attempt(self, attempt: Attempt, known: _Seen) -> Iterator[Change]:
        age_s = self._store.data_age_s(attempt)
        if known.is_new:
            known.is_new, known.exit_reason = False, attempt.exit_reason
            if attempt.exit_reason is not None or age_s is None or age_s > FORGET_S:
                known.tries, known.is_silent = MOST_TRIES, True
                rows = self._incidents(attempt)
                known.incidents = {str(one["incident"]): (True, one["verdict"]) for one in rows}
                known.is_kept = any(map(_is_open_of_watch, rows))
                known.judges_itself = attempt.exit_reason is None  # what is open stays so while nothing is heard of it
                return
            yield self._change(attempt, "watched", described(attempt))
        elif known.exit_reason is not None or (known.tries >= MOST_TRIES and known.is_silent and age_s is None):
            return
        yield from self._of_incidents(attempt, known)
        yield from self._of_hardware(attempt, known)
        yield from self._of_end(attempt, known, age_s)

    def _incidents(self, attempt: Attempt) -> list[dict[str, Any]]:
        return list(self._store.query("SELECT * FROM incidents ORDER BY opened_ns", attempt=attempt).to_pylist())

    def _of_incidents(self, attempt: Attempt, known: _Seen) -> Iterator[Change]:
        unjudged = judged = known.is_kept = False
        for row in self._incidents(attempt):
            if row["kind"] == KIND:  # of a watch, which says the same itself
                known.is_kept |= _is_open_of_watch(row)
                continue
            name, is_closed, verdict = str(row["incident"]), row["closed_ns"] is not None, row["verdict"]
            before = known.incidents.get(name)
            known.incidents[name] = is_closed, verdict
            opened_ns = moment_of(row["opened_ns"])
            if before is None:
                known.tries = 0
                yield Change(opened_ns, attempt.run, attempt.attempt, "incident", opened(row))
            if verdict is not None and (before is None or before[1] != verdict):
                yield from self._judged(attempt, known, read_verdict(verdict))
            if is_closed and (before is None or not before[0]):
                yield Change(moment_of(row["closed_ns"]), attempt.run, attempt.attempt, "closed", closed(row))
            if not is_closed and row["kind"] == "stalled":
                judged |= verdict is not None
                unjudged |= verdict is None and time.time_ns() - opened_ns > OWN_AFTER_S * 1e9
        known.judges_itself = unjudged and not judged
        if known.judges_itself:  # of several hosts, one judges for all
            yield from self._judge(attempt, known, "no agent judged a stall")

    def _of_hardware(self, attempt: Attempt, known: _Seen) -> Iterator[Change]:
        for news in hardware_news(self._store, attempt, known.hardware, time.time_ns()):
            if news.alarm is not None:
                self._alarms.append(news.alarm)
            yield Change(news.moment_ns, attempt.run, attempt.attempt, "hardware", news.sentence)

    def _of_end(self, attempt: Attempt, known: _Seen, age_s: float | None) -> Iterator[Change]:
        if attempt.exit_reason is not None and known.exit_reason is None:
            known.exit_reason, known.judges_itself = attempt.exit_reason, False
            yield Change(
                attempt.end_ns or time.time_ns(), attempt.run, attempt.attempt, "ended", f"it {attempt.exit_reason}"
            )
            if attempt.exit_reason == "crashed":
                known.tries = 0
                yield from self._judge(attempt, known, "the attempt crashed")
            return
        is_silent = age_s is not None and age_s > SILENT_S and attempt.exit_reason is None
        if is_silent and not known.is_silent:
            known.tries = 0
            yield self._change(attempt, "silent", f"nothing was heard of it for {age_s:.0f} s: its agents may be gone")
        elif known.is_silent and not is_silent:
            yield self._change(attempt, "heard", "there is news of it again")
        known.is_silent = is_silent
        known.judges_itself |= is_silent
        if is_silent:
            yield from self._judge(attempt, known, "nothing is heard of the agents")

    def _judge(self, attempt: Attempt, known: _Seen, why: str) -> Iterator[Change]:
        """A verdict of one's own, a bounded number of times, each time after twice the time, until it is firm."""
        if known.tries >= MOST_TRIES or (known.tries and time.monotonic() < known.again_at):
            return
        known.again_at = time.monotonic() + min(5.0 * 2**known.tries, 120.0)
        known.tries += 1
        verdict = to_json(diagnose(self._store, attempt))
        if verdict["verdict"] in FIRM:
            known.tries = MOST_TRIES
        if verdict["verdict"] in ALARMING and self._kept is not None:
            key = attempt.run, attempt.attempt
            self._judgements.append((key, self._judgement(attempt, why, verdict)))
        yield from self._judged(attempt, known, verdict)

    def _judgement(self, attempt: Attempt, why: str, verdict: dict[str, Any]) -> Judgement:
        """A verdict with the last two looks at the ranks; without those of an attempt that has ended."""
        is_over = attempt.exit_reason is not None
        looks = () if is_over else take_looks(self._store, attempt, SNAPSHOT_GAP_NS)
        seen = [look for look in looks if look.states]
        text = json.dumps(verdict, allow_nan=False)
        rows = [flight_rows(look) for look in seen]
        moments = [max(state.moment_ns for state in look.states.values()) for look in seen]
        return Judgement(why, str(verdict["verdict"]), text, moments, rows, is_over)

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


def _is_open_of_watch(row: Mapping[str, Any]) -> bool:
    return row["kind"] == KIND and row["closed_ns"] is None
