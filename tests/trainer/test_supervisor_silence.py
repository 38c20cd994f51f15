"""When it is a stall that nothing is told of: by the supervisor's own clock, and not while nobody could see."""

from __future__ import annotations

import pytest

from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.policy import Trigger
from support.watching import EndlessError, ended, trained, watcher


@pytest.mark.parametrize(("pace_s", "step_ms", "stalls"), [(10, 100, True), (7, 100, False), (10, 10_000, False)])
@pytest.mark.parametrize("age_s", [0.0, 500.0, -500.0], ids=["", "a clock behind", "a clock ahead"])
def test_without_an_agent_a_long_silence_is_a_stall(pace_s: float, step_ms: float, stalls: bool, age_s: float) -> None:
    """By the supervisor's own clock: that of a host may be far from it."""
    watch = watcher(seen=trained(step_ms, age_s=age_s), stall_s=30, pace_s=pace_s)
    if stalls:
        alert = watch.watch()
        assert (alert.trigger, alert.sentence) == (Trigger.STALLED, "no step was made for 40 s")
    else:
        with pytest.raises(EndlessError):
            watch.watch()


def test_ranks_that_do_not_end_after_the_last_step_are_a_stall() -> None:
    """One rank has ended in order; the others hang while they are torn down."""
    state = ended(r0=0)
    alert = watcher(state, trained(), stall_s=30, pace_s=10).watch()
    assert (alert.trigger, "and 3 ranks do not end" in alert.sentence) == (Trigger.STALLED, True)

    def end_one(number: int) -> None:
        state.codes[min(number, 2)] = 0

    with pytest.raises(EndlessError):
        watcher(state, trained(), stall_s=30, pace_s=10, on_turn=end_one).watch()


def test_what_any_rank_tells_of_keeps_the_watchdog_quiet() -> None:
    """The rows of one rank are lost, so that no step is over; the others train."""
    seen = trained()

    def go_on(number: int) -> None:
        seen.furthest = 90 + number

    with pytest.raises(EndlessError):
        watcher(seen=seen, stall_s=30, pace_s=20, on_turn=go_on).watch()


@pytest.mark.parametrize("seen", [Seen(0), trained()], ids=["from the start", "later"])
def test_a_store_that_cannot_be_read_is_no_stall_and_none_at_the_first_look_after_it(seen: Seen) -> None:
    """When the store answers again, the agents have not got through yet."""

    def recover(number: int) -> None:
        watch.observer.is_blind = 1 <= number < 8

    watch = watcher(seen=seen, start_s=30, stall_s=30, turns=11, pace_s=10, on_turn=recover)
    with pytest.raises(EndlessError):
        watch.watch()
    watch = watcher(seen=seen, start_s=30, stall_s=30, turns=20, pace_s=10, on_turn=recover)
    assert watch.watch().trigger in (Trigger.STALLED, Trigger.NOT_STARTED), "now it can be seen that nothing moves"


def test_what_is_not_there_yet_is_named() -> None:
    watch = watcher(start_s=30, pace_s=10)
    watch.observer.problem = "Run 'r' has no attempt 1"
    assert "(the store: Run 'r' has no attempt 1)" in watch.watch().sentence


def test_a_look_that_fails_now_and_then_hides_no_stall() -> None:
    def flicker(number: int) -> None:
        watch.observer.is_blind = number % 10 == 5

    watch = watcher(seen=trained(), stall_s=30, turns=60, pace_s=1, on_turn=flicker)
    assert watch.watch().trigger is Trigger.STALLED


def test_a_job_that_never_takes_a_step_is_not_waited_for_for_ever() -> None:
    assert watcher(start_s=30, pace_s=10).watch().trigger is Trigger.NOT_STARTED
    with pytest.raises(EndlessError):
        watcher(start_s=50, pace_s=10).watch()
