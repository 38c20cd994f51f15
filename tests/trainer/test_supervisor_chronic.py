"""Stragglers of which no sign tells: when they are asked for, when a host is replaced for it, and what is only told."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from megascope.collectors.incidents.question import Answer
from megascope.trainer.supervisor import straggling
from megascope.trainer.supervisor.chronic import Chronic
from megascope.trainer.supervisor.limits import Limits
from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.policy import Accused, Trigger
from megascope.trainer.supervisor.signs import Detector, Sign, StepRecord
from megascope.trainer.supervisor.watching import Watcher
from support.watching import NOBODY_LEFT, EndlessError, job, trained, watcher

TURNS = 60


def culprit(host: str = "node-1", lost: float | None = 0.3, **more: object) -> dict[str, Any]:
    told = {"ranks": [3], "hosts": [host], "confidence": 0.9, "kind": "rank", "cause": "slow-compute", "ratio": 1.5}
    return {**told, "lost_share": lost, **more}


def findings(*culprits: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": "findings", "culprits": list(culprits)}


NOTHING = {"verdict": "insufficient-evidence", "culprits": []}


class Asked:
    """Stands for children that ask; their answers come in turn, the last one again and again. None: it still runs."""

    def __init__(self, *answers: dict[str, Any] | None) -> None:
        self.answers, self.steps, self.niceness = list(answers), list[str](), list[object]()
        self.running, self.most_running = 0, 0

    def __call__(self, _verb: str, *more: object, **options: object) -> Asked:
        self.steps.append(str(more[-1]))
        self.niceness.append(options.get("niceness"))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        return self

    def poll(self) -> Answer | None:
        verdict = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if verdict is None:
            return None
        self.running -= 1
        return Answer(verdict, None, 0.1)

    def close(self) -> None:
        self.running -= 1


Ask = Callable[..., Asked]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    def use(*answers: dict[str, Any] | None) -> Asked:
        asked = Asked(*answers)
        monkeypatch.setattr(straggling, "Question", asked)
        return asked

    return use


def steady(*, told: list[Sign] | None = None, worth: bool = True, first: int = 0, **patience: float) -> Watcher:
    """A job of which no detector says anything: at each turn 10 s pass, and ten steps are made."""
    seen = trained(count=0)
    seen.last_step = seen.end_ns = None

    def go_on(_: int) -> None:
        last = first - 1 if seen.last_step is None else seen.last_step
        seen.steps += [StepRecord(number, 1e9, tokens=100) for number in range(last + 1, last + 11)]
        seen.last_step = seen.furthest = last + 10

    watch = watcher(None, seen, worth=worth, turns=TURNS, on_turn=go_on, pace_s=10.0, stall_s=1e9, **patience)
    if told is not None:
        watch.hear = told.extend
    return watch


def watched(watch: Watcher) -> None:
    with pytest.raises(EndlessError):
        watch.watch()


def test_a_host_that_is_slow_from_the_start_is_found_on_two_stretches_of_steps_and_acted_on(ask: Ask) -> None:
    asked = ask(findings(culprit()))
    alert = steady().watch()
    assert (alert.trigger, [one.host for one in alert.accused]) == (Trigger.SLOW, ["node-1"])
    assert alert.sentence == (
        "node-1 is slow without a sign, slow-compute on rank 3 (1.50 times its peers): 30.0% of the step time is lost "
        "to it"
    )
    assert alert.verdict is not None
    first, second = (tuple(map(int, one.split(":"))) for one in asked.steps)
    assert 49 <= first[1] - first[0] <= 50
    assert first[0] >= 2  # the first steps of an attempt are in no baseline
    assert second[0] > first[1]
    assert asked.niceness == [10, 10]


def test_an_attempt_that_resumes_is_asked_about_its_own_steps(ask: Ask) -> None:
    asked = ask(NOTHING)
    watched(steady(first=700))
    assert int(asked.steps[0].split(":")[0]) >= 702


def test_one_answer_alone_makes_nobody_act(ask: Ask) -> None:
    told: list[Sign] = []
    asked = ask(findings(culprit()), NOTHING)
    watched(steady(told=told, stragglers_s=100.0))
    assert told == []
    assert len(asked.steps) > 2


def test_another_host_each_time_makes_nobody_act(ask: Ask) -> None:
    ask(*(findings(culprit(f"node-{number}")) for number in range(TURNS)))
    watched(steady(stragglers_s=50.0))


@pytest.mark.parametrize(
    ("lost", "words"), [(0.03, "3.0% of the step time"), (None, "an unknown share of the step time")]
)
def test_what_costs_less_than_the_bound_is_told_once_and_left(ask: Ask, lost: float | None, words: str) -> None:
    told: list[Sign] = []
    asked = ask(findings(culprit(lost=lost)))
    watched(steady(told=told, stragglers_s=50.0))
    (sign,) = told
    assert (sign.detector, sign.hosts, sign.threshold) == (Detector.STRAGGLER, ("node-1",), 0.05)
    assert words in sign.sentence
    assert ("less than 5.0%" in sign.sentence) == (lost is not None)
    assert len(asked.steps) > 3


def test_what_the_policy_would_do_nothing_about_is_told_with_its_reason_and_left(ask: Ask) -> None:
    told: list[Sign] = []
    ask(findings(culprit()))
    watched(steady(told=told, worth=False, stragglers_s=50.0))
    (sign,) = told
    assert sign.sentence.endswith(f"30.0% of the step time is lost to it: {NOBODY_LEFT}")


def test_a_host_that_costs_more_by_and_by_is_told_again_and_a_cheap_one_beside_it_is_told_of() -> None:
    chronic = Chronic(0.05, lambda accused: NOBODY_LEFT if accused else None)
    signs = [chronic.judge(findings(culprit(lost=lost)))[2] for lost in (0.03, 0.04, 0.2, 0.3)]
    assert [len(found) for found in signs] == [1, 0, 1, 0]


def test_of_several_hosts_at_once_the_rule_is_asked_about_all_cheap_ones_too() -> None:
    asked: list[list[str]] = []

    def against(accused: tuple[Accused, ...]) -> str | None:
        asked.append([one.host for one in accused])
        return "The verdict accuses 2 hosts at once." if len(accused) > 1 else None

    chronic = Chronic(0.05, against)
    verdict = findings(culprit("node-0", 0.2), culprit("node-1", 0.01))
    accused, is_open, signs = chronic.judge(verdict)
    assert (accused, is_open, asked) == ((), False, [["node-0", "node-1"]])
    assert [sign.hosts for sign in signs] == [("node-0",), ("node-1",)]


def test_where_nothing_is_found_nothing_follows_and_it_is_asked_now_and_then(ask: Ask) -> None:
    told: list[Sign] = []
    asked = ask(NOTHING)
    watched(steady(told=told, stragglers_s=200.0))
    assert told == []
    assert len(asked.steps) == 1 + int((10 * TURNS - 70) // 210)


def test_a_chronically_slow_network_is_told_once(ask: Ask) -> None:
    told: list[Sign] = []
    ask(findings(culprit(kind="link", cause="network", hosts=["node-0", "node-1"])))
    watched(steady(told=told, stragglers_s=50.0))
    assert [sign.detector for sign in told] == [Detector.NETWORK]


def test_nobody_is_asked_where_it_is_switched_off_or_before_the_steps_and_the_minute(ask: Ask) -> None:
    asked = ask(findings(culprit()))
    watched(steady(stragglers_s=0.0))
    watched(steady(unasked_s=10.0 * (TURNS + 1)))
    watched(watcher(seen=trained(count=51), turns=TURNS, pace_s=10.0, stall_s=1e9))
    assert asked.steps == []


def slowed(seen: Seen) -> None:
    last = seen.last_step or 0
    seen.steps += [StepRecord(number, 3e9, tokens=100) for number in range(last + 1, last + 4)]
    seen.last_step = last + 3


def test_a_question_without_a_sign_gives_way_to_a_sign_and_there_are_never_two(ask: Ask) -> None:
    asked = ask(None, None, None, findings(culprit(lost=0.01)))
    watch = steady()
    look = watch.observer.look

    def see() -> bool:
        if asked.steps:
            slowed(watch.observer.seen)
        return look()

    watch.observer.look = see  # type: ignore[method-assign]
    alert = watch.watch()
    assert alert.trigger is Trigger.SLOW
    assert asked.niceness == [10, None]
    assert asked.most_running == 1


def test_while_a_sign_stands_questions_of_which_nothing_follows_become_rarer(ask: Ask) -> None:
    asked, now, signs = ask(NOTHING), [0.0], [Sign(Detector.THROUGHPUT, "", 0.5, 0.7)]
    seen, moments = trained(), list[float]()
    inquiry = straggling.StragglerInquiry(watcher().job, 0, lambda: now[0])
    for second in range(3600):
        now[0] = float(second)
        before = len(asked.steps)
        inquiry.look(signs, seen)
        moments += [now[0]] * (len(asked.steps) - before)
    apart = [later - sooner for sooner, later in itertools.pairwise(moments)]
    assert apart[:3] == [16.0] * 3
    assert apart[-1] == straggling.MOST_APART_S + 1
    assert apart == sorted(apart)


def test_a_bound_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_lost_share is 1\.5"):
        Limits(min_lost_share=1.5)


def test_a_sign_in_between_makes_no_second_answer_of_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 30 s: a question that a sign of slowness calls for comes between the two that have to agree."""
    now, asked = [0.0], list[str]()

    class OnceAsked:
        def __init__(self, *words: str, **_: object) -> None:
            asked.append(words[-1])

        def poll(self) -> Answer:
            return Answer(findings(culprit()), None, 0.1)

        def close(self) -> None:
            """Nothing runs."""

    monkeypatch.setattr(straggling, "Question", OnceAsked)
    seen, due = trained(count=0), list[str]()
    seen.last_step = None
    inquiry = straggling.StragglerInquiry(job(), 0, lambda: now[0])
    for second in range(0, 6000, 10):
        now[0] = float(second)
        if second % 30 == 0:
            seen.last_step = 0 if seen.last_step is None else seen.last_step + 1
            seen.steps.append(StepRecord(seen.last_step, 30e9, tokens=1))
        signs = [Sign(Detector.OFF_BASELINE, "", 1.6, 1.5)] if due and 1800 <= second <= 1830 else []
        told = inquiry.look(signs, seen)
        if told is not None and told.is_due:
            due.append(asked[-1])
            inquiry.ask_again(seen)
        if len(due) == 2:
            break
    assert len(asked) > 2, "the sign asked too"
    (_, last), (first, _) = (map(int, steps.split(":")) for steps in due)
    assert first > last
