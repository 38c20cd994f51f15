"""When and where a fault comes: as always, or drawn, so that each repetition of a trial is another fault."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

AT = 24
"""Step in which faults act that are not drawn: by then there is a baseline."""

FIRST, LAST = 12, 45
"""Steps in which faults act that are drawn, both included: two checkpoints are there by then."""

WITH_BASELINE = 24
"""First of these steps for what shows only beside the 20 steps before it."""

SEED = 0
"""Of the repetitions after the first where no seed is given."""

Choice = TypeVar("Choice")


class Draw:
    """The step, ranks and segments of one fault. Equal seed, name and repetition give equal ones.

    ``seed`` None: those of the first repetition are as always, the others are drawn from `SEED`.
    """

    def __init__(self, name: str, seed: int | None, repetition: int) -> None:
        is_usual = seed is None and repetition == 0
        text = f"{SEED if seed is None else seed}/{name}/{repetition}"
        self._random = None if is_usual else random.Random(text)

    def step(self, first: int = FIRST) -> int:
        """A step from ``first`` to `LAST`."""
        return AT if self._random is None else self._random.randint(first, LAST)

    def of(self, usual: Choice, choices: Sequence[Choice]) -> Choice:
        """One of the choices; ``usual`` where nothing is drawn."""
        return usual if self._random is None else self._random.choice(choices)
