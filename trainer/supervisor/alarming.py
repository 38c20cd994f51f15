"""What the supervisor raises alarms for, through the one hook: a host fenced, a restart, a run that is stopped."""

from __future__ import annotations

from ...collectors.alarms.teller import Teller
from .journal import Record
from .policy import Action, Case, Decision

FENCED, RESTARTED, STOPPED = "supervise-fenced", "supervise-restarted", "supervise-stopped"
"""Kinds of its alarms: what it did. That ranks died or stand still is told by the agents."""


def alarm_of_decision(alarms: Teller, run: str, record: Record, case: Case, decision: Decision) -> None:
    """Tell of a decision that changes what runs. A stop is told where the run ends."""
    ranks = sorted({int(rank) for one in (record.verdict or {}).get("culprits", ()) for rank in one["ranks"]})
    if decision.action in (Action.STOP, Action.WATCH):
        return
    sentence = f"Run {run}, attempt {record.attempt}: {decision.action} after {case.trigger}. {decision.reason}"
    if decision.fence:
        alarms.tell(FENCED, sentence, run, record.attempt, ranks=ranks, hosts=decision.fence, severity="high")
    else:
        hosts = sorted(case.lost)
        alarms.tell(RESTARTED, sentence, run, record.attempt, ranks=ranks, hosts=hosts)


def alarm_of_stop(alarms: Teller, run: str, attempt: int, reason: str) -> None:
    """Tell of a run that does not go on by itself any more."""
    alarms.tell(STOPPED, f"Run {run} is stopped after attempt {attempt}: {reason}", run, attempt, severity="high")
