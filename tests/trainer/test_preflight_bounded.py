"""Bounded work, and who is blamed where a team's check does not end well."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest

from megascope.trainer.preflight.blame import blame, merge_pairs
from megascope.trainer.preflight.bounded import Note, run_bounded
from megascope.trainer.preflight.measurements import Failure, Status

pytestmark = pytest.mark.timeout(60)


def test_a_value_comes_back() -> None:
    ended = run_bounded(lambda note: {"value": 1.5, "rank": None}, 30)
    assert (ended.status, ended.value, ended.notes) == (Status.OK, {"value": 1.5, "rank": None}, ())


def test_an_error_is_told_in_a_line() -> None:
    def work(note: Note) -> None:
        note("looking")
        print("what nobody asked for")
        raise ValueError("no\nsuch   thing")

    ended = run_bounded(work, 30)
    assert (ended.status, ended.message, ended.notes) == (Status.FAILED, "ValueError: no such thing", ("looking",))


@pytest.mark.parametrize("number", [signal.SIGSTOP, None])
def test_what_does_not_end_is_ended(number: int | None) -> None:
    def work(note: Note) -> None:
        note("writing")
        if number is not None:
            os.kill(os.getpid(), number)
        time.sleep(100)

    before = {child.pid for child in psutil.Process().children()}
    ended = run_bounded(work, 0.5)
    assert (ended.status, ended.message) == (Status.HUNG, "not done in 0.5 s after: writing")
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_process_that_dies_is_told_from_one_that_hangs() -> None:
    ended = run_bounded(lambda note: os.kill(os.getpid(), signal.SIGKILL), 30)
    assert (ended.status, ended.message) == (Status.FAILED, "the process of the check died")


# -- blame ----------------------------------------------------------------------------------------------------------


def told(status: Status, notes: int, message: str = "not done") -> dict[str, Any]:
    return {"status": status, "notes": ["."] * notes, "message": message, "seconds": 1.0}


def test_who_came_least_far_explains_who_waited() -> None:
    answers = {rank: told(Status.HUNG, 3) for rank in range(4)} | {2: told(Status.HUNG, 2)}
    assert blame(answers, (0, 1, 2, 3))[:2] == (Status.HUNG, (2,))


def test_where_all_came_equally_far_the_team_is_named() -> None:
    answers = {rank: told(Status.HUNG, 3) for rank in (4, 7)}
    assert blame(answers, (4, 7))[:2] == (Status.HUNG, (4, 7))


def test_an_error_of_its_own_explains_those_of_its_peers() -> None:
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer"
    answers = {rank: told(Status.FAILED, 3, lost) for rank in range(3)}
    answers[1] = told(Status.FAILED, 3, "OSError: no space left on device")
    assert blame(answers, (0, 1, 2)) == (Status.FAILED, (1,), "OSError: no space left on device")
    answers[1] = told(Status.FAILED, 2, lost)
    assert blame(answers, (0, 1, 2))[:2] == (Status.FAILED, (1,))


def failure(*ranks: int) -> Failure:
    hosts = tuple(f"host{rank}" for rank in ranks)
    return Failure(check="pairs", status=Status.HUNG, ranks=ranks, hosts=hosts, message="not done")


def test_a_rank_with_whom_nobody_can_talk_is_named_once() -> None:
    (one,) = merge_pairs([failure(0, 3), failure(3, 4)], [(0, 1), (4, 5)])
    assert (one.ranks, one.hosts) == ((3,), ("host3",))
    assert "with ranks 0, 4" in one.message


def test_a_rank_that_can_talk_to_somebody_is_not() -> None:
    failures = [failure(0, 3), failure(3, 4)]
    assert merge_pairs(failures, [(3, 5)]) == failures
    assert merge_pairs([failure(0, 3)], []) == [failure(0, 3)]
