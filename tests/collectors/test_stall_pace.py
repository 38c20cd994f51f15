"""With whom an agent is patient: ranks that are in slow work themselves, not those that wait in it for others."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from megascope.collectors.incidents.phases import PhaseBoard
from megascope.collectors.incidents.stall_pace import StallPace
from megascope.collectors.patience import DATA_S, PATIENCE_S, PROGRAM_S, PROGRAM_TIMES, USUAL_TIMES
from megascope.collectors.spool.rank_drain import RankDrain

STALL_S = 6.0
STALL_NS = int(STALL_S * 1e9)
PATIENCE = round(PATIENCE_S / STALL_S)
RUNS = [10**8] * 8


def flight(segment: str, kind: str, begun_ns: int, waiting: bool | None = None) -> dict[str, Any]:
    return {"segment": segment, "kind": kind, "begun_ns": begun_ns, "waiting": waiting}


def rank_in(*flights: dict[str, Any], world_size: int = 64) -> RankDrain:
    """A rank that has rested for a minute in what is given, of a job of so many."""
    reader = SimpleNamespace(step=9, step_start_ns=9)
    rested_ns = time.monotonic_ns() - 60 * 10**9
    return _rank(reader, rested_ns, *flights, world_size=world_size)


def _rank(
    reader: Any,
    changed_ns: int,
    *flights: dict[str, Any],
    first: tuple[int, int] | None = None,
    world_size: int = 64,
) -> RankDrain:
    metadata = SimpleNamespace(steps=SimpleNamespace(first=first))
    header = SimpleNamespace(world_size=world_size)
    fake = SimpleNamespace(
        rank=0, reader=reader, metadata=metadata, header=header, changed_ns=changed_ns, is_ended=False
    )
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
GATHERS = flight("dp_all_gather", "collective", 5, waiting=True)
EVALUATES = flight("evaluate", "eval", 10)
WORKS = flight("forward", "compute", 10)


@pytest.mark.parametrize(
    ("host", "times"),
    [
        ((rank_in(EVALUATES, WAITS), rank_in(WORKS)), 1),
        ((rank_in(EVALUATES, WAITS), rank_in(EVALUATES)), PATIENCE),
        ((rank_in(EVALUATES, POSTED), rank_in(WORKS)), PATIENCE),
        ((rank_in(GATHERS, EVALUATES), rank_in(WORKS)), 1),
        ((rank_in(GATHERS, EVALUATES), rank_in(EVALUATES)), PATIENCE),
        ((rank_in(GATHERS, flight("load", "data", 10)),), 1),
        ((rank_in(GATHERS, flight("compile", "compile", 10)),), 1),
        ((rank_in(GATHERS, flight("checkpoint_save", "checkpoint", 10)),), PATIENCE),
        ((rank_in(flight("checkpoint_save", "checkpoint", 10), WAITS),), 1),
        ((rank_in(GATHERS, EVALUATES, flight("checkpoint_save", "checkpoint", 20)),), PATIENCE),
    ],
)
def test_who_waits_inside_slow_work_gets_no_more_time(host: tuple[RankDrain, ...], times: int) -> None:
    """Also for an operation that was issued before that work began. A checkpoint that began later than all that the
    rank waits for may be written by a thread of its own, beside the one that waits."""
    pace = StallPace(STALL_S, {"steps": RUNS})
    quiet_ns, patience_ns = pace.watch(host)
    assert quiet_ns >= 60 * 10**9
    assert patience_ns == times * STALL_NS


def patience_s(
    *host: tuple[dict[str, Any], ...], steps: bool = True, longest: dict[str, int] | None = None, elsewhere: int = 0
) -> float:
    """What a host of a job of four ranks is given, each in what is given; so many more evaluate on another one."""
    board = SimpleNamespace(is_starting=True, elsewhere=lambda: Counter({"evaluate": elsewhere} if elsewhere else {}))
    known = {"steps": RUNS if steps else [], "longest": longest or {}}
    pace = StallPace(STALL_S, known, cast(PhaseBoard, board))
    _, patience_ns = pace.watch([rank_in(*flights, world_size=4) for flights in host])
    assert patience_ns is not None
    assert board.is_starting != steps
    return patience_ns / 1e9


IN_EVAL, IN_WORK, IN_WAIT = (EVALUATES,), (WORKS,), (WAITS,)


def test_what_half_of_the_job_does_itself_is_the_program_and_no_stall() -> None:
    """As the judge has it: one patience for both."""
    assert patience_s(IN_EVAL, IN_EVAL) == PROGRAM_S
    assert patience_s(IN_EVAL, IN_WAIT, IN_EVAL) == PROGRAM_S
    assert patience_s(IN_EVAL) == PATIENCE_S
    assert patience_s(IN_EVAL, (EVALUATES, WAITS)) == PATIENCE_S, "who waits in it for others is not in it itself"
    assert patience_s(IN_EVAL, IN_EVAL, IN_WORK) == PATIENCE_S, "one stands in other work"
    assert patience_s(IN_WORK, IN_WORK) == STALL_S


def test_ranks_of_other_hosts_count() -> None:
    assert patience_s(IN_EVAL, elsewhere=1) == PROGRAM_S
    assert patience_s(IN_WAIT, IN_WAIT, elsewhere=2) == PROGRAM_S
    assert patience_s(IN_WAIT, IN_WAIT, elsewhere=1) == PATIENCE_S


def test_where_it_is_known_what_a_phase_takes_that_is_the_measure() -> None:
    second = 10**9
    assert patience_s(IN_EVAL, IN_EVAL, longest={"evaluate": 2 * second}) == 2 * PROGRAM_TIMES
    assert patience_s(IN_EVAL, IN_EVAL, longest={"evaluate": second}) == PATIENCE_S
    assert patience_s(IN_EVAL, IN_EVAL, longest={"evaluate": 400 * second}) == 800


def test_before_its_first_steps_all_that_a_job_does_is_its_program() -> None:
    assert patience_s(IN_WORK, IN_WORK, steps=False) == PROGRAM_S
    assert patience_s(IN_WORK, IN_WAIT, IN_WAIT, steps=False) == PATIENCE_S


def test_loading_data_is_given_what_the_judge_gives_it() -> None:
    loads = (flight("load", "data", 10),)
    assert patience_s(loads, IN_WAIT) == DATA_S
    assert patience_s(loads, loads) == DATA_S, "storage that is slow for all is a finding"
    assert patience_s(loads, IN_WAIT, longest={"load": 3 * 10**9}) == 3 * USUAL_TIMES
