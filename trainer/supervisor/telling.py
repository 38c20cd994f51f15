"""Which signs of trouble are told: each once while it lasts, and again when it comes anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .signs import Detector, Sign

AGAIN_S = 300.0
"""A sign that was not there for so long is a new one."""

MOST_TOLD = 200
"""Signs told of one attempt: whoever has not read these reads no more."""

OF_ONE_STEP = frozenset({Detector.GRAD_NORM, Detector.NOT_FINITE})
"""Detectors whose sign is of its step alone: every step has its own."""


class Teller:
    """Hears all signs at every look, and tells those that are new."""

    def __init__(self, tell: Callable[[Sign], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._present: dict[tuple[object, ...], float] = {}
        self._told = 0

    def hear(self, signs: Sequence[Sign]) -> None:
        """Take over what the detectors say now."""
        now = self._clock()
        for sign in signs:
            mark = (sign.detector, sign.ranks, sign.hosts, sign.step if sign.detector in OF_ONE_STEP else None)
            before = self._present.get(mark)
            self._present[mark] = now
            if (before is None or now - before > AGAIN_S) and self._told < MOST_TOLD:
                self._told += 1
                self._tell(sign)
