"""A watcher over an attempt that only pretends: what its nodes have said, and what the store shows, is made up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megascope.trainer.supervisor.attempt import AttemptState
from megascope.trainer.supervisor.job import Job, Patience
from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.signs import StepRecord
from megascope.trainer.supervisor.watching import Watcher

NOBODY_LEFT = "There is no spare."


class EndlessError(Exception):
    """The watch went on for longer than a test should take."""


@dataclass
class FakeObserver:
    seen: Seen = field(default_factory=lambda: Seen(0))
    problem: str | None = None
    is_blind: bool = False

    def look(self) -> bool:
        return True


def job(**patience: float) -> Job:
    return Job(
        config=Path("c.toml"), run="run", store=Path("store"), hosts=2, world_size=4, steps=1000,
        patience=Patience(look_s=0.0, **patience),
    )  # fmt: skip


def watcher(
    state: AttemptState | None = None,
    seen: Seen | None = None,
    *,
    worth: bool = True,
    turns: int = 5,
    on_turn: Callable[[int], None] = lambda number: None,
    pace_s: float = 0.0,
    **patience: float,
) -> Watcher:
    """``turns`` are made, each of which takes ``pace_s`` by the watcher's clock."""
    state = state or AttemptState(0, ("node-0", "node-1"), 2, time.time_ns())
    counted, now = iter(range(turns)), [0.0]

    def turn(_: float) -> None:
        number = next(counted, None)
        if number is None:
            raise EndlessError
        now[0] += pace_s
        on_turn(number)

    observer: Any = FakeObserver(seen or Seen(0))
    return Watcher(
        job(**patience), state, observer, turn, lambda *_: worth, lambda signs: None, lambda: None,
        clock=lambda: now[0], against=lambda _: None if worth else NOBODY_LEFT,
    )  # fmt: skip


def trained(step_ms: float = 100.0, count: int = 40, age_s: float = 0.0, **more: Any) -> Seen:
    steps = [StepRecord(number, step_ms * 1e6, tokens=100) for number in range(count)]
    end_ns = time.time_ns() - int(age_s * 1e9)
    return Seen(0, steps, count - 1, 1, end_ns, count - 1, end_ns, **more)


def ended(**codes: int) -> AttemptState:
    state = AttemptState(0, ("node-0", "node-1"), 2, time.time_ns())
    state.codes = {int(rank.removeprefix("r")): code for rank, code in codes.items()}
    return state
