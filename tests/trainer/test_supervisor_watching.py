"""What ends the watching of an attempt, and how a job that still trains is saved and stopped."""

from __future__ import annotations

import time

import pytest

from megascope.collectors.incidents.question import Answer
from megascope.trainer.supervisor import straggling
from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.policy import Trigger
from megascope.trainer.supervisor.signs import Detector, DeviceReading, Sign, StepRecord
from megascope.trainer.supervisor.straggling import StragglerInquiry
from megascope.trainer.supervisor.telling import AGAIN_S, MOST_TOLD, Teller
from support.watching import EndlessError, ended, job, trained, watcher


def test_a_job_in_which_all_ends_well_has_finished() -> None:
    assert watcher(ended(r0=0, r1=0, r2=0, r3=0)).watch().trigger is None
    with pytest.raises(EndlessError):
        watcher(ended(r0=0, r1=0, r2=0)).watch()


def test_a_rank_that_was_killed_comes_before_those_that_followed() -> None:
    alert = watcher(ended(r0=1, r3=-9)).watch()
    assert (alert.trigger, alert.sentence) == (Trigger.EXITED, "rank 3 was killed by signal 9 (SIGKILL)")


def test_ranks_that_refuse_the_configuration_are_quoted() -> None:
    state = ended(r0=2, r1=2)
    state.said["node-0"] = "rank 0: train.batch is 7: choose 8.\n"
    alert = watcher(state).watch()
    assert (alert.trigger, alert.sentence) == (Trigger.REFUSED, "rank 0: train.batch is 7: choose 8.")
    assert watcher(state, trained()).watch().trigger is Trigger.EXITED


def test_a_lost_host_is_told_before_its_ranks() -> None:
    state = ended(r0=1)
    state.lost.add("node-1")
    assert watcher(state).watch().trigger is Trigger.HOST_LOST


def test_a_stall_that_an_agent_noticed_is_one() -> None:
    open_ = {"incident": "run/0/node-0/stalled/0", "kind": "stalled", "closed_ns": None}
    assert watcher(seen=trained(incidents=[open_])).watch().trigger is Trigger.STALLED
    with pytest.raises(EndlessError):
        watcher(seen=trained(incidents=[{**open_, "closed_ns": 1}])).watch()


def test_a_sign_is_told_once_while_it_lasts_and_a_step_s_own_every_time() -> None:
    now, told = [0.0], list[Sign]()
    teller = Teller(told.append, lambda: now[0])
    slow, spikes = (
        Sign(Detector.OFF_BASELINE, "", 2.0, 1.5, 7),
        [Sign(Detector.GRAD_NORM, "", 4, 3, n) for n in (9, 12)],
    )
    for moment in (0.0, 1.0, AGAIN_S):
        now[0] = moment
        teller.hear([slow, spikes[0]])
    teller.hear([spikes[1]])
    assert told == [slow, *spikes]
    now[0] = 3 * AGAIN_S
    teller.hear([slow])
    assert told[3:] == [slow]
    teller.hear([Sign(Detector.GRAD_NORM, "", 4, 3, number) for number in range(100, 100 + MOST_TOLD)])
    assert len(told) == MOST_TOLD


class Stragglers:
    """Stands for the child that asks for stragglers."""

    asked: list[tuple[str, ...]] = []  # noqa: RUF012
    answer = Answer(None, "no answer", 0.1)

    def __init__(self, verb: str, *more: object, **_: object) -> None:
        self.asked.append((verb, *map(str, more)))

    def poll(self) -> Answer:
        return self.answer

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def stragglers(monkeypatch: pytest.MonkeyPatch) -> type[Stragglers]:
    monkeypatch.setattr(Stragglers, "asked", [])
    culprit = {
        "ranks": [3],
        "hosts": ["node-1"],
        "confidence": 0.9,
        "kind": "rank",
        "cause": "slow-compute",
        "ratio": 3.0,
    }
    monkeypatch.setattr(Stragglers, "answer", Answer({"verdict": "findings", "culprits": [culprit]}, None, 0.1))
    monkeypatch.setattr(straggling, "Question", Stragglers)
    return Stragglers


def slowed() -> Seen:
    seen = trained()
    seen.steps += [StepRecord(number, 300e6, tokens=100) for number in range(40, 43)]
    seen.last_step = 42
    return seen


def test_a_job_that_slows_down_asks_who_it_is(stragglers: type[Stragglers]) -> None:
    alert = watcher(seen=slowed()).watch()
    assert alert.trigger is Trigger.SLOW
    assert [one.host for one in alert.accused] == ["node-1"]
    assert "3.00 times" in alert.sentence
    (asked,) = stragglers.asked
    assert asked[0] == "stragglers"
    assert asked[-2:] == ("--steps", "0:42")


def test_later_questions_are_about_where_it_became_slow_and_what_is_newest_in_turns() -> None:
    seen, inquiry = slowed(), StragglerInquiry(job(), 0)
    inquiry._slow_since, seen.last_step = 42, 400
    assert [inquiry._steps_by_turns(seen) for _ in range(3)] == ["0:142", "350:400", "0:142"]


@pytest.mark.parametrize(
    ("ranks", "hosts", "where"),
    [([3, 1], ["b", "a"], "between a and b, on ranks 1, 3,"), ([], [], "of the job"), ([3, 2], ["a", "a"], None)],
)
def test_a_slow_network_that_accuses_no_host_is_told(
    stragglers: type[Stragglers], ranks: list[int], hosts: list[str], where: str | None
) -> None:
    told: list[Sign] = []
    watch = watcher(seen=slowed(), worth=False)
    watch.hear = told.extend
    culprit = {"kind": "link", "cause": "network", "ranks": ranks, "hosts": hosts, "segment": "send", "ratio": 4.0}
    verdict = {"verdict": "findings", "culprits": [{**culprit, "confidence": 0.9}]}
    stragglers.answer = Answer(verdict, None, 0.1)
    with pytest.raises(EndlessError):
        watch.watch()
    sentences = [sign.sentence for sign in told if sign.detector is Detector.NETWORK]
    assert sentences == (
        [] if where is None else [f"the network {where} is slow in send (4.00 times as long), which accuses no host"]
    )


def test_the_questions_are_about_the_change_and_about_now_by_turns(stragglers: type[Stragglers]) -> None:
    seen = slowed()
    stragglers.answer = Answer({"verdict": "insufficient-evidence", "culprits": []}, None, 0.1)

    def go_on(_: int) -> None:
        last = seen.last_step or 0
        seen.steps += [StepRecord(number, 300e6, tokens=100) for number in range(last + 1, last + 31)]
        seen.last_step = last + 30

    watch = watcher(seen=seen, worth=False, turns=6, on_turn=go_on, ask_every_s=0.0)
    with pytest.raises(EndlessError):
        watch.watch()
    assert [one[-1] for one in stragglers.asked][:3] == ["22:72", "82:132", "22:172"]


def test_a_job_that_runs_as_before_asks_nobody(stragglers: type[Stragglers]) -> None:
    with pytest.raises(EndlessError):
        watcher(seen=trained()).watch()
    assert stragglers.asked == []


def test_what_the_policy_would_do_nothing_about_is_only_told(stragglers: type[Stragglers]) -> None:
    told: list[Sign] = []
    watch = watcher(seen=slowed(), worth=False)
    watch.hear = Teller(told.append).hear
    with pytest.raises(EndlessError):
        watch.watch()
    assert len(stragglers.asked) == 1  # and not again at once
    assert Detector.OFF_BASELINE in {sign.detector for sign in told}
    assert len(told) == len({sign.detector for sign in told})


def test_a_broken_device_accuses_its_host() -> None:
    seen = trained()
    watch = watcher(seen=seen)
    seen.readings = [DeviceReading("node-1", f"0000:{bus}:00", time.time_ns(), "xid", 79) for bus in ("9b", "9b", "3b")]
    alert = watch.watch()
    assert (alert.trigger, [one.host for one in alert.accused]) == (Trigger.DEVICE_ERROR, ["node-1"])


@pytest.mark.parametrize("xid", [38, 63, 999], ids=["the driver", "work goes on", "unknown"])
def test_an_xid_that_speaks_against_no_device_is_only_told(xid: int) -> None:
    seen = trained()
    watch = watcher(seen=seen)
    seen.readings = [DeviceReading("node-1", "0000:9b:00", time.time_ns(), "xid", xid)]
    told: list[Sign] = []
    watch.hear = told.extend
    with pytest.raises(EndlessError):
        watch.watch()
    assert {sign.detector for sign in told} == {Detector.XID}


@pytest.mark.parametrize("reading", [("node-9", 10**19), ("node-1", 0)], ids=["another host", "an earlier attempt"])
def test_a_device_that_is_not_in_this_attempt_stops_nobody(reading: tuple[str, int]) -> None:
    seen = trained()
    watch = watcher(seen=seen)
    seen.readings = [DeviceReading(reading[0], "0000:9b:00", reading[1], "xid", 79)]
    with pytest.raises(EndlessError):
        watch.watch()


def test_who_is_asked_to_end_does() -> None:
    watch = watcher(seen=trained())
    watch.is_asked = lambda: True
    assert watch.watch().trigger is Trigger.ASKED


def test_a_loss_that_is_not_finite_ends_the_watch() -> None:
    seen = trained()
    seen.steps.append(StepRecord(40, 1e8, loss=float("nan"), first_bad_rank=2))
    assert watcher(seen=seen).watch().trigger is Trigger.NOT_FINITE
