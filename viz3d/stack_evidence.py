"""What the Python stacks that an agent took of a stalled job tell of the culprits."""

from __future__ import annotations

from dataclasses import replace

from ..collectors.reading.store import Attempt, Store
from ..collectors.reading.views import literal
from ..collectors.verdicts import Evidence
from .actions import parse_actions
from .verdict import HangVerdict

MAX_RANKS = 4
_CALLS = 3


def with_stacks(store: Store, attempt: Attempt, verdict: HangVerdict) -> HangVerdict:
    """The verdict, with one piece of evidence more for each culprit's rank whose stack is known."""
    if not verdict.culprits:
        return verdict
    stacks = load_stacks(store, attempt)
    culprits = tuple(
        replace(culprit, evidence=(*culprit.evidence, *_told(attempt, culprit.ranks, stacks)))
        for culprit in verdict.culprits
    )
    return replace(verdict, culprits=culprits) if stacks else verdict


def load_stacks(store: Store, attempt: Attempt) -> dict[int, str]:
    """Rank to its newest stack, innermost call first; those that could not be taken are left out."""
    rows = store.query(
        "SELECT actions FROM incidents WHERE actions LIKE '%\"stack\"%' ORDER BY opened_ns", attempt=attempt
    ).to_pylist()
    found: dict[int, str] = {}
    for row in rows:
        for action in parse_actions(row["actions"]):
            stack, rank = action.get("stack"), action.get("rank")
            if isinstance(stack, str) and isinstance(rank, int) and stack and not stack.startswith("("):
                found[rank] = stack
    return found


def _told(attempt: Attempt, ranks: tuple[int, ...], stacks: dict[int, str]) -> list[Evidence]:
    found = []
    for rank in [one for one in ranks if one in stacks][:MAX_RANKS]:
        calls = stacks[rank].splitlines()[:_CALLS]
        sql = (
            f"SELECT action->>'$.stack' AS stack FROM (SELECT unnest(json_extract(actions, '$[*]')) AS action "
            f"FROM incidents WHERE run = {literal(attempt.run)} AND attempt = {attempt.attempt} "
            f"AND actions IS NOT NULL) WHERE action->>'$.action' = 'stack' AND (action->>'$.rank')::INT = {rank}"
        )
        found.append(Evidence(f"rank {rank} is in {', called by '.join(calls)}", None, None, "incidents", sql))
    return found
