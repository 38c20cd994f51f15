"""The supervisor's policy: budgets hold, nobody is fenced without evidence, and whatever it does it says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.trainer.skipping import batch_of
from megascope.trainer.supervisor.history import (
    Fence,
    History,
    Restart,
    Suspicion,
)  # fmt: skip
from megascope.trainer.supervisor.limits import Limits
from megascope.trainer.supervisor.policy import PLANNED, Accused, Action, Case, Decision, Trigger, applied, decide

HOSTS = [f"h{number}" for number in range(8)]


def case(trigger: Trigger = Trigger.EXITED, *, step: int | None = 10, spares: int = 2, **more: object) -> Case:
    return replace(Case(trigger=trigger, moment_s=1000.0, step=step, spares=spares), **more)  # type: ignore[arg-type]


def accused(host: str = "h0", confidence: float = 0.95, *, blames: bool = True, passed: bool | None = None) -> Accused:
    return Accused(host, confidence, blames, "dead on rank 3", passed)


def test_a_host_that_is_surely_to_blame_is_fenced_and_replaced() -> None:
    decision = decide(case(accused=(accused(),)), History(), Limits())
    assert (decision.action, decision.fence, decision.wait_s) == (Action.REPLACE, ("h0",), 0.0)
    assert decision.reason == "h0: dead on rank 3: replaced by a spare."


def test_without_a_verdict_nobody_is_fenced() -> None:
    assert decide(case(), History(), Limits()) == Decision(Action.RESTART, "No host is to blame: restarted as it was.")


def test_a_weak_verdict_fences_nobody() -> None:
    decision = decide(case(accused=(accused(confidence=0.7),)), History(), Limits())
    assert (decision.action, decision.fence) == (Action.RESTART, ())
    assert "0.70, less than 0.80" in decision.reason


def test_weak_verdicts_on_one_host_add_up_within_the_window() -> None:
    weak = case(accused=(accused(confidence=0.7),))
    before = History(suspicions=(Suspicion("h0", 900.0, 0.7),))
    assert decide(weak, before, Limits()).fence == ("h0",)
    assert decide(weak, before, Limits(window_s=50.0)).fence == ()
    assert decide(weak, History(suspicions=(Suspicion("h1", 900.0, 0.7),)), Limits()).fence == ()
    program = case(accused=(accused(confidence=0.7, blames=False),))
    assert decide(program, before, Limits()).fence == ()


def test_failures_in_the_same_step_are_one_suspicion() -> None:
    """What a program does in a step it does again: two verdicts of 0.7 on it are no more than one."""
    weak = case(accused=(accused(confidence=0.7),))
    history = applied(decide(weak, History(), Limits()), weak, History())
    assert history.suspicions == (Suspicion("h0", 1000.0, 0.7, 10),)
    assert decide(weak, history, Limits()).fence == ()
    assert decide(replace(weak, step=11), history, Limits()).fence == ("h0",)
    assert history.confidence_in("h0", 0.2, 0.0, 10) == pytest.approx(0.7)


def test_a_common_cause_suspects_nobody() -> None:
    several = case(accused=(accused("h0", 0.9), accused("h1", 0.9)))
    history = applied(decide(several, History(), Limits()), several, History())
    assert history.suspicions == ()
    assert decide(case(step=11, accused=(accused("h1", 0.05),)), history, Limits()).fence == ()


def test_a_failed_self_check_is_evidence_and_a_passed_one_is_no_pardon() -> None:
    weak = decide(case(accused=(accused(confidence=0.5, passed=False),)), History(), Limits())
    assert weak.fence == ("h0",)
    sure = decide(case(accused=(accused(passed=True),)), History(), Limits())
    assert sure.fence == ("h0",)


def test_a_host_that_passed_its_check_stays_where_there_is_no_spare() -> None:
    decision = decide(case(spares=0, accused=(accused(passed=True),)), History(), Limits())
    assert (decision.action, decision.fence) == (Action.RESTART, ())
    assert "passed its self-check" in decision.reason


def test_a_programs_fault_fences_no_host() -> None:
    decision = decide(case(accused=(accused(blames=False),)), History(), Limits())
    assert (decision.action, decision.fence) == (Action.RESTART, ())
    assert "the program" in decision.reason


def test_a_verdict_that_accuses_many_hosts_fences_none() -> None:
    decision = decide(case(accused=(accused("h0"), accused("h1"))), History(), Limits())
    assert (decision.action, decision.fence) == (Action.RESTART, ())
    assert "common cause" in decision.reason


def test_a_lost_host_is_replaced_and_not_fenced() -> None:
    lost = case(Trigger.HOST_LOST, lost=frozenset({"h1"}), accused=(accused("h1"),))
    decision = decide(lost, History(), Limits())
    assert (decision.action, decision.fence) == (Action.REPLACE, ())
    assert "h1 is gone" in decision.reason


def test_without_spares_the_run_stops() -> None:
    for one in (case(spares=0, accused=(accused(),)), case(Trigger.HOST_LOST, spares=0, lost=frozenset({"h1"}))):
        decision = decide(one, History(), Limits())
        assert decision.action is Action.STOP
        assert "has to be replaced, and 0 spares are left" in decision.reason


def test_failing_again_and_again_in_one_step_stops_or_skips_the_data() -> None:
    history = History((Restart(1.0, 10), Restart(2.0, 10)))
    decision = decide(case(), history, Limits())
    assert decision.action is Action.STOP
    assert "3 times in a row in step 11" in decision.reason
    skipping = decide(case(), history, Limits(skip_data=True))
    assert (skipping.action, skipping.skip_batch) == (Action.RESTART, 11)
    again = decide(case(), replace(history, skipped=(11,)), Limits(skip_data=True))
    assert again.skip_batch == 12
    enough = decide(case(), replace(history, skipped=(9, 10, 11)), Limits(skip_data=True))
    assert enough.action is Action.STOP


def test_the_batch_that_is_skipped_is_the_one_that_the_step_had() -> None:
    """The configuration passes over batch 3, so that step 10 trains on batch 11."""
    history, limits = History((Restart(1.0, 9), Restart(2.0, 9))), Limits(skip_data=True)
    first = decide(case(step=9, skip=(3,)), history, limits)
    assert first.skip_batch == batch_of(10, {3}) == 11
    assert batch_of(10, {3, 11}) == 12
    again = decide(case(step=9, skip=(3,)), replace(history, skipped=(11,)), limits)
    assert again.skip_batch == 12


def test_storage_that_fails_is_waited_for_and_not_taken_for_a_bad_step() -> None:
    history, waits = History(), []
    for _ in range(4):
        decision = decide(case(Trigger.STORAGE), history, Limits())
        assert decision.action is Action.RESTART
        waits.append(decision.wait_s)
        history = history.with_restart(Restart(1.0, 10, outside=True))
    assert waits == [5.0, 10.0, 20.0, 40.0]
    assert decide(case(), history, Limits()).action is Action.RESTART


def test_a_failure_elsewhere_in_between_is_progress_enough() -> None:
    history = History((Restart(1.0, 10), Restart(2.0, 12), Restart(3.0, 10)))
    assert decide(case(), history, Limits()).action is Action.RESTART


def test_the_wait_doubles_without_progress_and_ends_with_it() -> None:
    waits, history = [], History()
    for step in (20, 15, 12, 8, 30):
        decision = decide(case(step=step), history, Limits(same_step_failures=99))
        waits.append(decision.wait_s)
        history = history.with_restart(Restart(1.0, step))
    assert waits == [0.0, 5.0, 10.0, 20.0, 0.0]


def test_the_budget_of_restarts_is_of_a_window() -> None:
    limits = Limits(max_restarts=2, window_s=100.0)
    full = History((Restart(950.0, 1), Restart(960.0, 2)))
    assert decide(case(), full, limits).action is Action.STOP
    assert decide(case(moment_s=1055.0), full, limits).action is Action.RESTART


def test_too_many_fences_stop_the_run() -> None:
    history = History(fences=tuple(Fence(host, 900.0, "") for host in HOSTS[:4]))
    decision = decide(case(accused=(accused("h5"),)), history, Limits())
    assert decision.action is Action.STOP
    assert "look for a common cause" in decision.reason


def test_a_loss_that_is_not_finite_halts_unless_data_may_be_skipped() -> None:
    decision = decide(case(Trigger.NOT_FINITE), History(), Limits())
    assert decision.action is Action.STOP
    assert "last good state" in decision.reason
    skipping = decide(case(Trigger.NOT_FINITE), History(), Limits(skip_data=True))
    assert (skipping.action, skipping.skip_batch) == (Action.RESTART, 11)


def test_a_slow_host_is_replaced_after_a_checkpoint_and_only_where_a_spare_waits() -> None:
    slow = case(Trigger.SLOW, accused=(accused(),))
    assert decide(slow, History(), Limits()).action is Action.CHECKPOINT_AND_REPLACE
    assert decide(replace(slow, spares=0), History(), Limits()).action is Action.WATCH
    assert decide(case(Trigger.SLOW), History(), Limits()).action is Action.WATCH
    fenced = History(fences=tuple(Fence(host, 900.0, "") for host in HOSTS[:4]))
    assert decide(slow, fenced, Limits()).action is Action.WATCH


def test_who_is_asked_to_end_stops() -> None:
    assert decide(case(Trigger.ASKED), History(), Limits()).action is Action.STOP


def test_what_the_ranks_refuse_is_not_tried_again() -> None:
    assert decide(case(Trigger.REFUSED, step=None), History(), Limits()).action is Action.STOP


accusations = st.builds(
    Accused,
    st.sampled_from(HOSTS),
    st.floats(0, 1),
    st.booleans(),
    st.just("why"),
    st.sampled_from([None, True, False]),
)
incidents = st.tuples(
    st.sampled_from(list(Trigger)),
    st.floats(0, 5000),
    st.one_of(st.none(), st.integers(0, 5)),
    st.lists(accusations, max_size=4),
    st.frozensets(st.sampled_from(HOSTS), max_size=2),
    st.integers(0, 3),
)
some_limits = st.builds(
    Limits,
    max_restarts=st.integers(0, 5),
    window_s=st.floats(1, 20_000),
    max_fences=st.integers(0, 4),
    fences_at_once=st.integers(0, 3),
    min_confidence=st.floats(0.1, 1),
    same_step_failures=st.integers(1, 4),
    backoff_s=st.floats(0, 60),
    max_backoff_s=st.floats(0, 600),
    skip_data=st.booleans(),
    max_skips=st.integers(0, 3),
)


@settings(max_examples=150, deadline=None)
@given(some_limits, st.lists(incidents, min_size=1, max_size=25))
def test_whatever_comes_the_limits_hold(limits: Limits, sequence: list[tuple[Any, ...]]) -> None:
    history, now = History(), 0.0
    for trigger, gap_s, step, named, lost, spares in sequence:
        now += gap_s
        one = Case(
            trigger=trigger,
            moment_s=now,
            step=step,
            accused=tuple(named),
            lost=lost,
            spares=spares,
        )
        decision = decide(one, history, limits)
        assert decision.reason
        assert 0 <= decision.wait_s <= limits.max_backoff_s
        for host in decision.fence:
            assert host not in one.lost
            assert any(
                each.host == host
                and each.blames_host
                and (
                    history.confidence_in(host, each.confidence, now - limits.window_s, step) >= limits.min_confidence
                    or each.passed_check is False
                )
                for each in one.accused
            )
        assert len(decision.fence) <= limits.fences_at_once
        if decision.action in (Action.REPLACE, Action.CHECKPOINT_AND_REPLACE):
            assert len(decision.fence) + len(one.lost if decision.action is Action.REPLACE else ()) <= spares
        else:
            assert decision.fence == ()
        assert (decision.action is Action.CHECKPOINT_AND_REPLACE) <= (trigger in PLANNED)
        assert limits.skip_data or decision.skip_batch is None
        if decision.action is Action.STOP:
            return
        if decision.action is Action.WATCH:
            continue
        history = applied(decision, one, history)
        assert len(history.restarts_since(now - limits.window_s)) <= limits.max_restarts
        assert len(history.fences_since(now - limits.window_s)) <= limits.max_fences
        assert len(history.skipped) <= limits.max_skips
        assert history.failures_in_a_row_at(one.step) < limits.same_step_failures or limits.skip_data


@pytest.mark.parametrize("wrong", [{"max_restarts": -1}, {"min_confidence": 0}, {"min_confidence": 1.5}])
def test_limits_without_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="give"):
        Limits(**wrong)  # type: ignore[arg-type]
