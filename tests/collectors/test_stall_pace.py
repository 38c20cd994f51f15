"""With whom an agent is patient: ranks that are in slow work themselves, not those that wait in it for others."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from megascope.collectors.rank_drain import RankDrain
from megascope.collectors.stall_pace import PATIENCE, StallPace

STALL_S = 6.0
STALL_NS = int(STALL_S * 1e9)


def flight(segment: str, kind: str, begun_ns: int, waiting: bool | None = None) -> dict[str, Any]:
    return {"segment": segment, "kind": kind, "begun_ns": begun_ns, "waiting": waiting}


def rank_in(*flights: dict[str, Any]) -> RankDrain:
    """A rank that has rested for a minute in what is given."""
    reader = SimpleNamespace(step=9, step_start_ns=9)
    rested_ns = time.monotonic_ns() - 60 * 10**9
    fake = SimpleNamespace(rank=0, reader=reader, changed_ns=rested_ns, is_ended=False, flights=lambda: list(flights))
    return cast(RankDrain, fake)


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
