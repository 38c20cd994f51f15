"""What a missed heartbeat or a stalled write leads to: a verdict is asked for, noted, and acted on where all stands."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.incidents.question import Answer
from megascope.collectors.reading.store import Store
from megascope.trainer.supervisor import inquiring
from megascope.trainer.supervisor.hub import Hub, open_listener
from megascope.trainer.supervisor.inquiring import MOST_APART_S, HangInquiry, Judged
from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.policy import Trigger
from megascope.trainer.supervisor.signs import Beat, Detector, Sign
from megascope.trainer.supervisor.supervisor import Supervisor
from support.watching import EndlessError, job, trained, watcher

SECOND = 10**9
SILENT = Sign(Detector.MISSED_HEARTBEAT, "rank 3 is silent", 20.0, 15.0, ranks=(3,), hosts=("node-1",))
SLOW = Sign(Detector.OFF_BASELINE, "slow", 2.0, 1.5)
DEAD = {"ranks": [3], "hosts": ["node-1"], "confidence": 0.9, "kind": "dead"}
CRASHED = Answer({"verdict": "crashed", "culprits": [DEAD]}, None, 0.5)
RUNNING = Answer({"verdict": "running", "culprits": []}, None, 0.5)


class Hang:
    """Stands for the child that asks for the hang verdict."""

    asked: list[tuple[object, ...]] = []  # noqa: RUF012
    answer = CRASHED
    closed = 0

    def __init__(self, *what: object, **_: object) -> None:
        self.asked.append(what)

    def poll(self) -> Answer:
        return self.answer

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> type[Hang]:
    monkeypatch.setattr(Hang, "asked", [])
    monkeypatch.setattr(Hang, "closed", 0)
    monkeypatch.setattr(Hang, "answer", CRASHED)
    monkeypatch.setattr(inquiring, "Question", Hang)
    return Hang


def test_only_signs_of_a_standstill_are_asked_about(hang: type[Hang]) -> None:
    inquiry = HangInquiry(job(), 4)
    assert inquiry.look([SLOW]) is None
    assert hang.asked == []
    assert inquiry.look([SLOW, SILENT]) is None
    assert hang.asked == [("hang", Path("store"), "run", 4)]
    assert inquiry.look([]) == Judged(SILENT, CRASHED)  # the answer is to the sign that was there


def test_a_verdict_that_names_nobody_is_asked_for_more_and_more_seldom(hang: type[Hang]) -> None:
    now, asked_at = [0.0], list[float]()
    hang.answer = RUNNING
    inquiry = HangInquiry(job(ask_every_s=10.0), 0, lambda: now[0])
    for second in range(1000):
        now[0], before = float(second), len(hang.asked)
        inquiry.look([SILENT])
        if len(hang.asked) > before:
            asked_at.append(now[0])
    pauses = [later - earlier - 1 for earlier, later in itertools.pairwise(asked_at)]
    assert pauses[:7] == [10.0, 20.0, 40.0, 80.0, 160.0, MOST_APART_S, MOST_APART_S]


def test_a_sign_that_comes_anew_is_asked_about_soon(hang: type[Hang]) -> None:
    now = [0.0]
    hang.answer = RUNNING
    inquiry = HangInquiry(job(ask_every_s=10.0), 0, lambda: now[0])
    for second in range(60):
        now[0] = float(second)
        inquiry.look([SILENT])
    inquiry.look([])
    before = len(hang.asked)
    for second in range(200, 203):
        now[0] = float(second)
        inquiry.look([SILENT])
    assert len(hang.asked) == before + 1


def test_a_question_that_is_under_way_is_ended_with_the_watch(hang: type[Hang]) -> None:
    inquiry = HangInquiry(job(), 0)
    inquiry.look([SILENT])
    inquiry.close()
    inquiry.close()
    assert hang.closed == 1


def silent(**more: Any) -> Seen:
    """A job that made steps, and whose rank 3 gave no heartbeat for 20 s."""
    moments = (100, 100, 100, 80)
    return trained(beats=[Beat(rank, f"node-{rank // 2}", at * SECOND) for rank, at in enumerate(moments)], **more)


def test_a_job_that_stands_still_with_a_firm_verdict_is_responded_to(hang: type[Hang]) -> None:
    judged: list[Judged] = []
    watch = watcher(seen=silent(), pace_s=3.0, turns=20)
    watch.judged = judged.append
    watch.inquiry = HangInquiry(watch.job, 0, watch.clock)
    alert = watch.watch()
    assert (alert.trigger, alert.accused) == (Trigger.STALLED, ())
    assert "rank 3 on node-1 gave no heartbeat for 20 s" in alert.sentence
    assert judged
    assert judged[0].answer is CRASHED


def test_a_job_that_goes_on_is_left_alone_whatever_the_verdict(hang: type[Hang]) -> None:
    """An agent may be gone while its ranks train."""
    seen = silent()

    def go_on(_: int) -> None:
        seen.furthest = (seen.furthest or 0) + 1

    judged: list[Judged] = []
    watch = watcher(seen=seen, pace_s=20.0, turns=30, on_turn=go_on, stall_s=1e6)
    watch.judged = judged.append
    watch.inquiry = HangInquiry(watch.job, 0, watch.clock)
    with pytest.raises(EndlessError):
        watch.watch()
    assert judged


@pytest.mark.parametrize("answer", [RUNNING, Answer({"verdict": "crashed", "culprits": []}, None, 0.1),
                                    Answer(None, "no verdict", 0.1)])  # fmt: skip
def test_a_verdict_that_is_not_firm_ends_nothing(hang: type[Hang], answer: Answer) -> None:
    hang.answer = answer
    watch = watcher(seen=silent(), pace_s=3.0, turns=20, stall_s=1e6)
    watch.inquiry = HangInquiry(watch.job, 0, watch.clock)
    with pytest.raises(EndlessError):
        watch.watch()


def test_the_verdict_on_a_sign_stands_beside_it_in_the_store(tmp_path: Path) -> None:
    hub = Hub(open_listener("127.0.0.1", 0), "secret")
    supervisor = Supervisor(replace(job(), store=tmp_path), hub, lambda line: None)
    supervisor._next = 1
    supervisor._note_verdict(Judged(SILENT, RUNNING))  # a sign that was not told has no place for it
    supervisor._tell_sign(SILENT)
    supervisor._note_verdict(Judged(SILENT, CRASHED))
    supervisor._note_verdict(Judged(SILENT, Answer(None, "it failed", 0.5)))
    supervisor.shared.journal.close()
    hub.close()
    with Store(tmp_path) as store:
        (row,) = store.query("SELECT kind, verdict, actions FROM incidents").to_pylist()
    assert row["kind"] == "sign-missed-heartbeat"
    assert json.loads(row["verdict"])["culprits"] == [DEAD]
    assert [one["action"] for one in json.loads(row["actions"])] == ["sign", "asked-hang", "not-diagnosed"]
