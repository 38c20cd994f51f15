"""Asking `megascope stragglers` beside the watching: while a sign of slowness stands, and now and then without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...collectors.incidents.diagnosing import NICENESS
from ...collectors.incidents.question import Answer, Question
from .job import Job
from .observing import Seen
from .signs import Detector, Sign

SLOWNESS = frozenset({Detector.SLOW_RANK, Detector.OFF_BASELINE, Detector.THROUGHPUT})
"""Signs for which it is asked at once."""

STRAGGLER_STEPS = 50
"""Steps that a question is about. With a sign by turns those around the change, from so many before it on, and the
newest ones; without one the newest, and of an attempt that has made fewer nothing is asked.

Who is slower than its peers shows in any steps; what slowed all of them, as a network does, only against before.
"""

OFTEN = 4
"""So many answers of which nothing follows are waited for at the usual pace; each wait after that is twice as long."""

MOST_APART_S = 300.0
"""The longest such wait."""

TIMEOUT_S = 600.0
"""For an answer without a sign: there is no hurry, and it gets what others leave of the processor."""


@dataclass(frozen=True, slots=True)
class Told:
    """What came of asking. ``is_due``: it was asked for without a sign, and none has come since."""

    answer: Answer
    is_due: bool


class StragglerInquiry:
    """Asks about one attempt; one question at a time, on a process of its own.

    A question without a sign gives way to a sign that comes while it runs.
    """

    def __init__(self, job: Job, attempt: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._attempt, self._clock = job, attempt, clock
        self._question: Question | None = None
        self._is_due = False
        self._slow_since: int | None = None
        self._turns, self._fruitless = 0, 0
        self._ask_at = 0.0
        self._trained_at: float | None = None
        self._due_at, self._due_after = 0.0, -1

    def look(self, signs: Sequence[Sign], seen: Seen) -> Told | None:
        """Take over how the attempt is now, and ask where it is time; an answer once it is there."""
        is_slow = any(sign.detector in SLOWNESS for sign in signs)
        if not is_slow:
            self._slow_since, self._fruitless = None, 0
        elif self._slow_since is None:
            self._slow_since = seen.last_step
        if self._trained_at is None and seen.last_step is not None:
            self._trained_at = self._clock()
            self._due_at = self._trained_at + self._job.patience.unasked_s
        if is_slow and self._is_due:
            self.close()
        if self._question is None:
            self._ask(is_slow, seen)
            return None
        answer = self._question.poll()
        if answer is None:
            return None
        told, self._question, self._is_due = Told(answer, self._is_due), None, False
        now, patience = self._clock(), self._job.patience
        self._fruitless += is_slow
        wait_s = patience.ask_every_s * 2.0 ** max(0, min(self._fruitless, 20) - OFTEN)
        self._ask_at = now + min(wait_s, max(MOST_APART_S, patience.ask_every_s))
        if told.is_due and answer.verdict is not None:
            self._due_after = -1  # `ask_again` sets it anew
        if told.is_due or self._due_after < 0:
            self._due_at = now + patience.stragglers_s
        return told

    def ask_again(self, seen: Seen) -> None:
        """Have what an answer without a sign said confirmed by steps that come after those that are there now."""
        self._due_at, self._due_after = self._ask_at, (seen.last_step or 0) + STRAGGLER_STEPS + 1

    def _ask(self, is_slow: bool, seen: Seen) -> None:
        now = self._clock()
        if is_slow and now >= self._ask_at:
            self._start(self._steps_by_turns(seen), {})
            self._ask_at = now + self._job.patience.ask_every_s
        elif not is_slow and self._is_time(seen, now):
            last = seen.last_step or 0
            first = max(seen.settled[0].step, last - STRAGGLER_STEPS)
            self._start(f"{first}:{last}", {"timeout_s": TIMEOUT_S, "niceness": NICENESS})
            self._is_due = True

    def _is_time(self, seen: Seen, now: float) -> bool:
        if self._job.patience.stragglers_s <= 0 or self._trained_at is None or now < self._due_at:
            return False
        return len(seen.settled) >= STRAGGLER_STEPS and (seen.last_step or 0) >= self._due_after

    def _start(self, steps: str, more: Mapping[str, Any]) -> None:
        job = self._job
        self._question = Question("stragglers", job.store, job.run, self._attempt, "--steps", steps, **more)

    def _steps_by_turns(self, seen: Seen) -> str:
        last = seen.last_step or 0
        around = last if self._slow_since is None else self._slow_since
        self._turns += 1
        if self._turns % 2:
            return f"{max(0, around - STRAGGLER_STEPS)}:{min(last, around + 2 * STRAGGLER_STEPS)}"
        return f"{max(0, last - STRAGGLER_STEPS)}:{last}"

    def close(self) -> None:
        """End a question that is under way."""
        if self._question is not None:
            self._question.close()
            self._question, self._is_due = None, False
