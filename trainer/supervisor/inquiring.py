"""Asking `megascope hang` beside the watching, while a sign says that something may stand still."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...collectors.incidents.question import Answer, Question
from .accusing import FIRM
from .job import Job
from .signs import Detector, Sign

STANDSTILL = frozenset({Detector.MISSED_HEARTBEAT, Detector.STORAGE})
"""Signs for which it is asked. What they tell of may be harmless: an agent that is gone, a write beside training."""

MOST_APART_S = 300.0
"""A verdict that names nobody is asked for again, each time after twice the time, within this bound."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of asking, and for which sign."""

    sign: Sign
    answer: Answer

    @property
    def is_firm(self) -> bool:
        """Whether the verdict names somebody for a job that hangs or has crashed."""
        verdict = self.answer.verdict
        return verdict is not None and verdict["verdict"] in FIRM and bool(verdict["culprits"])


class HangInquiry:
    """Asks about one attempt; one question at a time, on a process of its own."""

    def __init__(self, job: Job, attempt: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._attempt, self._clock = job, attempt, clock
        self._question: Question | None = None
        self._sign: Sign | None = None
        self._ask_at, self._pause_s = 0.0, job.patience.ask_every_s

    def look(self, signs: Sequence[Sign]) -> Judged | None:
        """Take over the signs that there are now, and ask where it is time; an answer once it is there."""
        sign = next((one for one in signs if one.detector in STANDSTILL), None)
        if sign is None:
            self._pause_s = self._job.patience.ask_every_s
        if self._question is None:
            if sign is not None and self._clock() >= self._ask_at:
                job = self._job
                self._sign = sign
                self._question = Question("hang", job.store, job.run, self._attempt, timeout_s=job.patience.verdict_s)
            return None
        answer = self._question.poll()
        if answer is None or self._sign is None:
            return None
        self._question = None
        self._ask_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MOST_APART_S)
        return Judged(self._sign, answer)

    def close(self) -> None:
        """End a question that is under way."""
        if self._question is not None:
            self._question.close()
            self._question = None
