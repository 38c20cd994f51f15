"""What to do about an incident: a pure function of the case, of what was done before, and of the limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from ..skipping import batch_of
from .history import Fence, History, Restart, RollBack, Suspicion
from .limits import Limits


class Trigger(StrEnum):
    """What made the supervisor look."""

    EXITED = "exited"
    HOST_LOST = "host-lost"
    STALLED = "stalled"
    NOT_STARTED = "not-started"
    REFUSED = "refused"
    SLOW = "slow"
    DEVICE_ERROR = "device-error"
    NOT_FINITE = "not-finite"
    STORAGE = "storage"
    DIVERGED = "diverged"
    ASKED = "asked"


PLANNED = frozenset({Trigger.SLOW, Trigger.DEVICE_ERROR, Trigger.ASKED})
"""The job still trains: it is stopped after a checkpoint, or left alone."""


class Action(StrEnum):
    """What is done."""

    RESTART = "restart"
    REPLACE = "replace"
    CHECKPOINT_AND_REPLACE = "checkpoint-and-replace"
    ROLL_BACK = "roll-back"
    WATCH = "watch"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Accused:
    """A host that a verdict names. ``confidence``: 0 to 1; ``blames_host`` is False where the program is to blame.

    ``passed_check``: whether the host's self-check found it sound; None where none was made, or it said nothing.
    """

    host: str
    confidence: float
    blames_host: bool
    reason: str
    passed_check: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One incident as it stands once it is diagnosed. ``step``: the last completed one, None before the first.

    ``skip``: batches that the configuration passes over. ``back``: where to go back to from a loss that diverges.
    """

    trigger: Trigger
    moment_s: float
    step: int | None
    accused: tuple[Accused, ...] = ()
    lost: frozenset[str] = frozenset()
    spares: int = 0
    skip: tuple[int, ...] = ()
    back: RollBack | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why in one sentence. ``fence``: hosts never to be used again; ``lost`` ones are only replaced."""

    action: Action
    reason: str
    fence: tuple[str, ...] = ()
    wait_s: float = 0.0
    skip_batch: int | None = None
    back: RollBack | None = None


def decide(case: Case, history: History, limits: Limits) -> Decision:
    """The decision on a case. A host is fenced only on evidence: never because the job failed, or a verdict is weak.

    Weak verdicts that name the same host again and again, within the window, add up.
    """
    since_s = case.moment_s - limits.window_s
    accused = tuple(
        replace(one, confidence=history.confidence_in(one.host, one.confidence, since_s, case.step))
        if one.blames_host
        else one
        for one in case.accused
    )
    case = replace(case, accused=accused)
    if case.trigger is Trigger.ASKED:
        return Decision(Action.STOP, "The supervisor was asked to end: start the same run again to go on.")
    if case.trigger is Trigger.REFUSED:
        return Decision(Action.STOP, "The ranks refuse the configuration or what it points at: correct it.")
    if case.trigger in PLANNED and not case.lost:
        return _planned(case, history, limits)
    if case.trigger is Trigger.DIVERGED and (not case.lost or case.back is not None):
        return _diverged(case, history, limits)
    if case.trigger is Trigger.NOT_FINITE and not limits.skip_data:
        return Decision(
            Action.STOP,
            "The loss is not finite: the job is halted at the checkpoint of its last good state; the same data would "
            "bring it again.",
        )
    return _after_failure(case, history, limits)


def applied(decision: Decision, case: Case, history: History) -> History:
    """The history once a decision is carried out: what was fenced, who was suspected, and the restart."""
    for host in decision.fence:
        history = history.with_fence(Fence(host, case.moment_s, decision.reason))
    named = [one for one in case.accused if one.blames_host]
    if len({one.host for one in named}) == 1:  # several at once have a common cause, which suspects none of them
        best = max(named, key=lambda one: one.confidence)
        if best.host not in decision.fence:
            history = history.with_suspicion(Suspicion(best.host, case.moment_s, best.confidence, case.step))
    if decision.back is not None:
        history = replace(history, roll_backs=(*history.roll_backs, decision.back))
    if decision.action is Action.STOP:
        return history
    planned = decision.action in (Action.CHECKPOINT_AND_REPLACE, Action.ROLL_BACK)
    restart = Restart(case.moment_s, case.step, planned, case.trigger is Trigger.STORAGE)
    return history.with_restart(restart, decision.skip_batch)


def _planned(case: Case, history: History, limits: Limits) -> Decision:
    fence, doubt = _to_fence(case.accused, limits)
    if not fence:
        return Decision(Action.WATCH, doubt or "No verdict names a host: the job goes on, and is watched.")
    if len(fence) > case.spares:
        return Decision(Action.WATCH, f"{_names(fence)} should be replaced, but there is no spare: the job goes on.")
    if len(history.fences_since(case.moment_s - limits.window_s)) + len(fence) > limits.max_fences:
        return Decision(Action.WATCH, f"{_names(fence)} is not fenced, as {limits.max_fences} hosts were already.")
    if len(history.restarts_since(case.moment_s - limits.window_s)) >= limits.max_restarts:
        return Decision(Action.WATCH, f"{_names(fence)} is not replaced: no restart is left in the budget.")
    return Decision(
        Action.CHECKPOINT_AND_REPLACE, f"{_reasons(case.accused, fence)}: replaced after a checkpoint.", fence
    )


def against_going_back(history: History, limits: Limits, moment_s: float) -> str:
    """Why the limits do not let a run go back from a loss that diverges; empty where they do."""
    if not limits.roll_back:
        return "The loss diverges: going back to an earlier checkpoint is not allowed."
    if len(history.roll_backs) >= limits.max_roll_backs:
        return (
            f"The loss diverges again after {len(history.roll_backs)} returns to earlier checkpoints: another batch "
            "does not help."
        )
    if len(history.restarts_since(moment_s - limits.window_s)) >= limits.max_restarts:
        return "The loss diverges, and no restart is left in the budget."
    return ""


def _diverged(case: Case, history: History, limits: Limits) -> Decision:
    if case.lost and case.back is not None:  # the ranks have ended: where the run stops, who starts it again goes back
        decision = _after_failure(case, history, limits)
        return replace(decision, reason=f"{decision.reason} {_reason_to_go(case.back)}", back=case.back)
    if against := against_going_back(history, limits, case.moment_s):
        return Decision(Action.WATCH, against)
    if case.back is None:
        return Decision(Action.WATCH, "The loss diverges, and no checkpoint from before is near enough to go back to.")
    return Decision(Action.ROLL_BACK, _reason_to_go(case.back), back=case.back)


def _reason_to_go(back: RollBack) -> str:
    return (
        f"The loss diverges: back to the checkpoint of step {back.to}, and batches {back.first} to {back.last} are "
        "passed over."
    )


def _after_failure(case: Case, history: History, limits: Limits) -> Decision:
    recent = history.restarts_since(case.moment_s - limits.window_s)
    if len(recent) >= limits.max_restarts:
        return Decision(Action.STOP, f"{len(recent)} restarts within {limits.window_s / 3600:g} h: the budget is used.")
    skip_batch = None
    repeated = 1 + history.failures_in_a_row_at(case.step)
    is_bad_data = case.trigger is Trigger.NOT_FINITE
    is_outside = case.trigger is Trigger.STORAGE  # whatever the step, the next save fails: time may help
    if (repeated >= limits.same_step_failures and not is_outside) or is_bad_data:
        failing = 0 if case.step is None else case.step + 1
        if not limits.skip_data or len(history.skipped) >= limits.max_skips:
            return Decision(
                Action.STOP, f"The job failed {repeated} times in a row in step {failing}: a restart does not help."
            )
        skip_batch = batch_of(failing, {*case.skip, *history.passed_over})
    fence, doubt = _to_fence([one for one in case.accused if one.host not in case.lost], limits)
    needed = len(fence) + len(case.lost)
    if needed > case.spares and fence and not case.lost and _all_passed(case.accused, fence):
        doubt = f"{_names(fence)} passed its self-check, and there is no spare: the job is restarted where it was."
        fence, needed = (), 0
    if needed > case.spares:
        return Decision(
            Action.STOP,
            f"{_names((*fence, *sorted(case.lost)))} has to be replaced, and {case.spares} spares are "
            "left: add hosts and start the same run again.",
        )
    if len(history.fences_since(case.moment_s - limits.window_s)) + len(fence) > limits.max_fences:
        return Decision(
            Action.STOP,
            f"{limits.max_fences} hosts were fenced within {limits.window_s / 3600:g} h and {_names(fence)} would be "
            "next: look for a common cause.",
        )
    without_progress = history.restarts_without_progress(case.step) + is_outside
    wait_s = min(limits.backoff_s * 2.0 ** (without_progress - 1), limits.max_backoff_s) if without_progress else 0.0
    if fence or case.lost:
        told = [_reasons(case.accused, fence)] if fence else []
        told += [f"{_names(sorted(case.lost))} is gone"] if case.lost else []
        return Decision(Action.REPLACE, f"{'; '.join(told)}: replaced by a spare.", fence, wait_s, skip_batch)
    return Decision(Action.RESTART, doubt or "No host is to blame: restarted as it was.", (), wait_s, skip_batch)


def _to_fence(accused: Iterable[Accused], limits: Limits) -> tuple[tuple[str, ...], str]:
    """Hosts with evidence enough against them, and otherwise why there are none."""
    # A failed self-check is evidence of its own, but only against a host that a verdict led to.
    named = [one for one in accused if one.blames_host]
    sure = [one for one in named if one.confidence >= limits.min_confidence or one.passed_check is False]
    hosts = tuple(dict.fromkeys(one.host for one in sure))
    if len(hosts) > limits.fences_at_once:
        return (), f"The verdict accuses {len(hosts)} hosts at once: a common cause is likelier, and none is fenced."
    if hosts:
        return hosts, ""
    if named:
        best = max(named, key=lambda one: one.confidence)
        return (), (
            f"{best.host} is suspected with a confidence of {best.confidence:.2f}, less than "
            f"{limits.min_confidence:.2f}: it is not fenced."
        )
    return (), next((f"{one.reason}: the program, and not a host, is to blame." for one in accused), "")


def _all_passed(accused: Iterable[Accused], hosts: Iterable[str]) -> bool:
    chosen = set(hosts)
    return all(one.passed_check is True for one in accused if one.host in chosen and one.blames_host)


def _names(hosts: Iterable[str]) -> str:
    return ", ".join(hosts)


def _reasons(accused: Iterable[Accused], hosts: Iterable[str]) -> str:
    chosen = set(hosts)
    return "; ".join(dict.fromkeys(f"{one.host}: {one.reason}" for one in accused if one.host in chosen))
