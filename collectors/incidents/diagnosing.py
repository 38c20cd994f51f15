"""Asking `megascope hang` for the verdict on a job that stands still: one child at a time, one host of the fleet."""

from __future__ import annotations

from pathlib import Path

from ..manifests.manifest import quote_name
from ..storage.shared_claim import SharedClaim
from .question import TIMEOUT_S, Answer, Question

FOLDER = "_diagnoses"
"""Folder of the store with the claims."""

NICENESS = 10


def diagnosis_claim(store: Path, run: str, attempt: int, holder: str) -> SharedClaim:
    """The right to diagnose an attempt, of one host of the fleet; its holder renews it while the stall lasts."""
    return SharedClaim(store / FOLDER / f"run={quote_name(run)}" / f"attempt={attempt}", "diagnosis", holder)


class Diagnoser:
    """Asks beside its caller, who looks for the answer with `poll`."""

    def __init__(self, store: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._store, self._timeout_s = store, timeout_s
        self._question: Question | None = None
        self._ready: Question | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a child runs, or has an answer that nobody took."""
        return self._question is not None

    def prepare(self, run: str, attempt: int) -> None:
        """Start a child that imports what it needs, and begins with `start`, which will be for the same attempt."""
        if self._ready is None and self._question is None:
            self._ready = self._child(run, attempt, waits=True)

    def start(self, run: str, attempt: int) -> str | None:
        """Begin; None, or what is in the way."""
        if self._question is not None:
            return "a diagnosis is under way already"
        question, self._ready = self._ready or self._child(run, attempt), None
        if question.problem is None:
            question.ask()
            self._question = question
        return question.problem

    def _child(self, run: str, attempt: int, *, waits: bool = False) -> Question:
        return Question("hang", self._store, run, attempt, timeout_s=self._timeout_s, niceness=NICENESS, waits=waits)

    def poll(self) -> Answer | None:
        """The answer, once; None while there is none."""
        answer = None if self._question is None else self._question.poll()
        if answer is not None:
            self._question = None
        return answer

    def rest(self) -> None:
        """Nothing will be asked: kill a child that waits for it."""
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    def close(self) -> None:
        """Kill what runs."""
        self.rest()
        if self._question is not None:
            self._question.close()
            self._question = None
