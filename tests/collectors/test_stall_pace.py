"""With whom an agent is patient: ranks that are in slow work themselves, not those that wait in it for others."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from megascope.collectors.incidents.stall_pace import PATIENCE, StallPace
from megascope.collectors.spool.rank_drain import RankDrain

STALL_S = 6.0
STALL_NS = int(STALL_S * 1e9)


def flight(segment: str, kind: str, begun_ns: int, waiting: bool | None = None) -> dict[str, Any]:
    return {"segment": segment, "kind": kind, "begun_ns": begun_ns, "waiting": waiting}


def rank_in(*flights: dict[str, Any]) -> RankDrain:
    """A rank that has rested for a minute in what is given."""
    reader = SimpleNamespace(step=9, step_start_ns=9)
    rested_ns = time.monotonic_ns() - 60 * 10**9
    return _rank(reader, rested_ns, *flights)


def _rank(reader: Any, changed_ns: int, *flights: dict[str, Any], first: tuple[int, int] | None = None) -> RankDrain:
    metadata = SimpleNamespace(steps=SimpleNamespace(first=first))
    fake = SimpleNamespace(rank=0, reader=reader, metadata=metadata, changed_ns=changed_ns, is_ended=False)
    fake.flights = lambda: list(flights)
    return cast(RankDrain, fake)


@pytest.mark.parametrize(
    ("looks", "steps"),
    [((0, 24), 1), ((7, 24), 2), ((24,), 1), ((0, 1, 2), 0), ((2,), 0), ((0, 1, 2, 3), 1), ((0, 2, 5), 1), ((), 0)],
)
@pytest.mark.parametrize("start", [0, 5000], ids=["new", "resumed"])
def test_the_pace_is_known_once_more_than_the_first_steps_were_made(looks: Any, steps: int, start: int) -> None:
    """However many of them the agent saw begin: short steps are over between two of its looks, or before the first."""
    pace = StallPace(STALL_S)
    for step in looks:
        reader = SimpleNamespace(step=start + step, step_start_ns=100 * step + 7)
        pace.watch([_rank(reader, time.monotonic_ns(), first=(start, 7) if step else None)])
    assert pace.state()["steps"] == [100] * steps


WAITS = flight("world_all_reduce", "collective", 20, waiting=True)
POSTED = flight("dp_reduce", "collective", 20, waiting=False)
EVALUATES = flight("evaluate", "eval", 10)
WORKS = flight("forward", "compute", 10)


@pytest.mark.parametrize(
    ("host", "times"),
    [
        ((rank_in(EVALUATES, WAITS), rank_in(WORKS)), 1),
        ((rank_in(EVALUATES, WAITS), rank_in(EVALUATES)), PATIENCE),
        ((rank_in(EVALUATES, POSTED), rank_in(WORKS)), PATIENCE),
        ((rank_in(WAITS, flight("evaluate", "eval", 30)),), PATIENCE),
    ],
)
def test_who_waits_inside_slow_work_gets_no_more_time(host: tuple[RankDrain, ...], times: int) -> None:
    pace = StallPace(STALL_S, {"steps": [10**8] * 8})
    quiet_ns, patience_ns = pace.watch(host)
    assert quiet_ns >= 60 * 10**9
    assert patience_ns == times * STALL_NS
