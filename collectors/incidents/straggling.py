"""Asking `megascope stragglers` about attempts that run, now and then, one child at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from .diagnosing import NICENESS
from .question import Answer, Question

TIMEOUT_S = 600.0
"""A fleet of many steps takes its time, beside whatever else runs there."""

Key = tuple[str, int]
"""Run and attempt."""


class StragglerNews:
    """Asks about each attempt every ``every_s`` seconds, the first time after that long; 0 or less: never."""

    def __init__(self, store: Path, every_s: float) -> None:
        self._store, self._every_s = store, every_s
        self._due: dict[Key, float] = {}
        self._asked: tuple[Key, Question] | None = None
        self._problems: list[str] = []
        self._known: set[str] = set()

    def poll(self, live: Sequence[Key]) -> tuple[Key, Answer] | None:
        """What was answered since the last time; ``live`` are the attempts that run. Never waits."""
        if self._every_s <= 0:
            return None
        found = self._take()
        now = time.monotonic()
        self._due = {key: self._due.get(key, now + self._every_s) for key in live}
        key = min(self._due, key=self._due.__getitem__, default=None)
        if self._asked is None and key is not None and self._due[key] <= now:
            self._due[key] = now + self._every_s
            question = Question("stragglers", self._store, *key, timeout_s=TIMEOUT_S, niceness=NICENESS)
            self._asked = key, question
        return found

    def _take(self) -> tuple[Key, Answer] | None:
        if self._asked is None:
            return None
        key, question = self._asked
        answer = question.poll()
        if answer is None:
            return None
        self._asked = None
        if answer.verdict is None:
            problem = f"stragglers of {key[0]}/{key[1]} are not known: {answer.problem}"
            self._problems += [problem] * (problem not in self._known)
            self._known.add(problem)
        return key, answer

    def take_problems(self) -> list[str]:
        """Why there was no verdict, since the last time; each text is told once."""
        problems, self._problems = self._problems, []
        return problems

    def close(self) -> None:
        """End what runs."""
        if self._asked is not None:
            self._asked[1].close()
            self._asked = None
