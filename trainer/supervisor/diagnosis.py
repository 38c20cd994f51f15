"""From a trigger to a case: asks for the verdict, ends the ranks, has suspected hosts checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...collectors.incidents.question import Question
from .accusing import FIRM, accused_by_hang, says_not_finite, says_storage
from .attempt import AttemptState
from .hub import Hub
from .job import Job
from .journal import Record
from .policy import Accused, Trigger

SLOW = frozenset({"slow", "running"})

Turn = Callable[[float], None]


def ask_hang(
    job: Job, state: AttemptState, record: Record, turn: Turn, moved: Callable[[], bool]
) -> Mapping[str, Any] | None:
    """Ask `megascope hang` until its verdict is firm, or patience is at an end; the last verdict, None without any.

    ``turn`` lets a moment pass, ``moved`` tells whether the job goes on after all: then nobody is accused. A job that
    stands still and is only called slow, as in a long checkpoint, gets the patience that a stall has.
    """
    began = time.monotonic()
    verdict: Mapping[str, Any] | None = None
    while True:
        question = Question("hang", job.store, job.run, state.number, timeout_s=job.patience.verdict_s)
        try:
            while (answer := question.poll()) is None:
                turn(0.2)
        finally:
            question.close()
        if answer.verdict is None:
            record.note("not-diagnosed", problem=answer.problem, took_s=round(answer.took_s, 2))
        else:
            verdict = answer.verdict
            record.note("asked-hang", verdict=verdict["verdict"], took_s=round(answer.took_s, 2))
            if verdict["verdict"] in FIRM and verdict["culprits"]:
                return verdict
        is_slow = verdict is not None and verdict["verdict"] in SLOW and record.kind.endswith(Trigger.STALLED)
        patience_s = job.patience.stall_s if is_slow else job.patience.verdict_s
        if moved() or time.monotonic() - began > patience_s:
            return verdict
        turn(0.5)


def refine(trigger: Trigger, verdict: Mapping[str, Any] | None) -> Trigger:
    """The trigger, once the verdict tells more."""
    if verdict is not None and trigger is Trigger.EXITED and says_not_finite(verdict):
        return Trigger.NOT_FINITE
    if verdict is not None and trigger is Trigger.EXITED and says_storage(verdict):
        return Trigger.STORAGE
    return trigger


def end_ranks(job: Job, state: AttemptState, hub: Hub, turn: Turn) -> bool:
    """Have all ranks of an attempt ended; whether they have within the patience there is for it."""
    left = [host for host in state.hosts if not state.is_still(host)]
    for host in left:
        if host in hub.nodes:
            hub.nodes[host].tell({"do": "stop"})
    deadline = time.monotonic() + job.patience.stop_s
    while not all(state.is_still(host) for host in state.hosts):
        if time.monotonic() > deadline:
            return False
        turn(0.1)
    return True


def check_hosts(
    job: Job, state: AttemptState, hub: Hub, accused: tuple[Accused, ...], record: Record, turn: Turn
) -> tuple[Accused, ...]:
    """The accused with the results of their hosts' self-checks; without a command for it, as they are."""
    hosts = sorted({one.host for one in accused if one.blames_host} & set(hub.nodes))
    if not job.self_check or not hosts:
        return accused
    state.checks.clear()
    for host in hosts:
        order = {"do": "check", "command": list(job.self_check), "timeout_s": job.patience.check_s}
        hub.nodes[host].tell(order)
    deadline = time.monotonic() + job.patience.check_s + 5
    while time.monotonic() < deadline and any(host not in state.checks and host in hub.nodes for host in hosts):
        turn(0.1)
    for host in hosts:
        result = state.checks.get(host)
        passed = None if result is None else result.passed
        report = "it did not answer" if result is None else result.report[-500:]
        record.note("self-check", host=host, passed=passed, report=report)
    return tuple(
        replace(one, passed_check=state.checks[one.host].passed) if one.host in state.checks else one for one in accused
    )


def accused_of(verdict: Mapping[str, Any] | None) -> tuple[Accused, ...]:
    """Whom a verdict of `megascope hang` accuses; nobody without one."""
    return () if verdict is None else accused_by_hang(verdict)
