"""What ends the watching of an attempt, and how a job that still trains is saved and stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch._C._distributed_c10d import HashStore

from megascope.profiler.errors import MegascopeError
from megascope.trainer.finite import NotFiniteError
from megascope.trainer.rescue import Rescue
from megascope.trainer.supervisor import watching
from megascope.trainer.supervisor.asking import Answer
from megascope.trainer.supervisor.attempt import AttemptState
from megascope.trainer.supervisor.job import Job, Patience
from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.policy import Trigger
from megascope.trainer.supervisor.saving import save_and_stop
from megascope.trainer.supervisor.signs import Detector, DeviceReading, Sign, StepRecord
from megascope.trainer.supervisor.watching import Watcher


class EndlessError(Exception):
    """The watch went on for longer than a test should take."""


@dataclass
class FakeObserver:
    seen: Seen = field(default_factory=lambda: Seen(0))

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
    **patience: float,
) -> Watcher:
    state = state or AttemptState(0, ("node-0", "node-1"), 2, time.time_ns())
    counted = iter(range(turns))

    def turn(_: float) -> None:
        number = next(counted, None)
        if number is None:
            raise EndlessError
        on_turn(number)

    observer: Any = FakeObserver(seen or Seen(0))
    return Watcher(job(**patience), state, observer, turn, lambda *_: worth, lambda sign: None, lambda: None)


def trained(step_ms: float = 100.0, count: int = 40, age_s: float = 0.0, **more: Any) -> Seen:
    steps = [StepRecord(number, step_ms * 1e6, tokens=100) for number in range(count)]
    end_ns = time.time_ns() - int(age_s * 1e9)
    return Seen(0, steps, count - 1, 1, end_ns, count - 1, end_ns, **more)


def ended(**codes: int) -> AttemptState:
    state = AttemptState(0, ("node-0", "node-1"), 2, time.time_ns())
    state.codes = {int(rank.removeprefix("r")): code for rank, code in codes.items()}
    return state


def test_a_job_in_which_all_ends_well_has_finished() -> None:
    assert watcher(ended(r0=0, r1=0, r2=0, r3=0)).watch().trigger is None
    with pytest.raises(EndlessError):
        watcher(ended(r0=0, r1=0, r2=0)).watch()


def test_a_rank_that_was_killed_comes_before_those_that_followed() -> None:
    alert = watcher(ended(r0=1, r3=-9)).watch()
    assert (alert.trigger, alert.sentence) == (Trigger.EXITED, "rank 3 was killed by signal 9")


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


@pytest.mark.parametrize(("age_s", "step_ms", "stalls"), [(50, 100, True), (0, 100, False), (50, 10_000, False)])
def test_without_an_agent_a_long_silence_is_a_stall(age_s: float, step_ms: float, stalls: bool) -> None:
    watch = watcher(seen=trained(step_ms, age_s=age_s), stall_s=30)
    if stalls:
        assert watch.watch().trigger is Trigger.STALLED
    else:
        with pytest.raises(EndlessError):
            watch.watch()


def test_a_job_that_never_takes_a_step_is_not_waited_for_for_ever() -> None:
    state = AttemptState(0, ("node-0", "node-1"), 2, time.time_ns() - 10**11)
    assert watcher(state, start_s=5).watch().trigger is Trigger.NOT_STARTED
    with pytest.raises(EndlessError):
        watcher(state, start_s=5000).watch()


class Stragglers:
    """Stands for the child that asks for stragglers."""

    asked: list[tuple[str, ...]] = []  # noqa: RUF012
    answer = Answer(None, "no answer", 0.1)

    def __init__(self, verb: str, *more: object) -> None:
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
    monkeypatch.setattr(watching, "Question", Stragglers)
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


def test_a_job_that_runs_as_before_asks_nobody(stragglers: type[Stragglers]) -> None:
    with pytest.raises(EndlessError):
        watcher(seen=trained()).watch()
    assert stragglers.asked == []


def test_what_the_policy_would_do_nothing_about_is_only_told(stragglers: type[Stragglers]) -> None:
    told: list[Sign] = []
    watch = watcher(seen=slowed(), worth=False)
    watch.tell = told.append
    with pytest.raises(EndlessError):
        watch.watch()
    assert len(stragglers.asked) == 1  # and not again at once
    assert Detector.OFF_BASELINE in {sign.detector for sign in told}
    assert len(told) == len({sign.detector for sign in told})


def test_a_broken_device_accuses_its_host() -> None:
    watch = watcher(seen=trained())
    watch.readings = [DeviceReading("node-1", "0000:9b:00", time.time_ns(), "xid", 79)]
    alert = watch.watch()
    assert (alert.trigger, [one.host for one in alert.accused]) == (Trigger.DEVICE_ERROR, ["node-1"])


@pytest.mark.parametrize("reading", [("node-9", 10**19), ("node-1", 0)], ids=["another host", "an earlier attempt"])
def test_a_device_that_is_not_in_this_attempt_stops_nobody(reading: tuple[str, int]) -> None:
    watch = watcher(seen=trained())
    watch.readings = [DeviceReading(reading[0], "0000:9b:00", reading[1], "xid", 79)]
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


@dataclass
class FakeNode:
    told: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, message: dict[str, Any]) -> None:
        self.told.append(message)


@dataclass
class FakeHub:
    nodes: dict[str, FakeNode] = field(default_factory=lambda: {name: FakeNode() for name in ("node-0", "node-1")})


def test_all_ranks_are_asked_to_save_at_one_step_far_enough_ahead() -> None:
    state, hub = ended(), FakeHub()
    observer: Any = FakeObserver(trained(100.0, 40))

    def turn(_: float) -> None:
        state.codes = dict.fromkeys(range(4), 0)

    fake: Any = hub
    target = save_and_stop(job(save_s=5.0), state, fake, observer, turn)
    assert target is not None
    assert target >= 40 + 50
    assert [node.told for node in hub.nodes.values()] == [[{"do": "save-and-stop", "step": target}]] * 2


def test_ranks_that_fail_instead_have_not_saved() -> None:
    state = ended()
    observer: Any = FakeObserver(trained())
    hub: Any = FakeHub()

    def turn(_: float) -> None:
        state.codes = {3: -9}

    assert save_and_stop(job(), state, hub, observer, turn) is None
    empty: Any = FakeObserver()
    assert save_and_stop(job(), state, hub, empty, turn) is None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    store = HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    return store


def test_all_ranks_save_once_one_has_a_loss_that_is_not_finite(store: HashStore) -> None:
    saved: list[tuple[str, int]] = []
    first, second = (Rescue(3, lambda updates, name=name: saved.append((name, updates))) for name in "ab")  # type: ignore[misc]
    with pytest.raises(NotFiniteError), first.guard(lambda: 7):
        raise NotFiniteError("The loss is not finite")
    with pytest.raises(RuntimeError, match="peer"), second.guard(lambda: 7):
        raise RuntimeError("Connection closed by peer")
    assert saved == [("a", 7), ("b", 7)]


def test_what_the_weights_were_updated_with_is_not_saved(store: HashStore) -> None:
    saved: list[int] = []
    error = NotFiniteError("The gradient norm of step 6 is not finite")
    error.is_applied = True
    with pytest.raises(NotFiniteError), Rescue(0, saved.append).guard(lambda: 7):
        raise error
    with pytest.raises(RuntimeError), Rescue(0, saved.append).guard(lambda: 7):
        raise RuntimeError("Connection closed by peer")
    assert saved == []


def test_another_failure_and_another_step_save_nothing(store: HashStore) -> None:
    saved: list[int] = []
    rescue = Rescue(3, saved.append)
    rescue.after(RuntimeError("Connection closed by peer"), 7)
    store.set("megascope/not-finite/3", "8")
    rescue.after(MegascopeError("The dp group broke"), 7)
    Rescue(4, saved.append).after(RuntimeError("Connection closed by peer"), 8)
    assert saved == []


def test_a_rescue_that_fails_hides_no_error(store: HashStore, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: int) -> None:
        raise MegascopeError("Cannot write a checkpoint")

    with pytest.raises(NotFiniteError), Rescue(0, fail).guard(lambda: 7):
        raise NotFiniteError("The loss is not finite")
    assert "The last good state is not saved (Cannot write a checkpoint)" in caplog.text
