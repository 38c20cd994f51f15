"""The verdict as the 3D page has it: culprits with their evidence, what to do next, and what the data cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...viz3d.advice import next_steps
from ...viz3d.states import RankState, Snapshot
from ...viz3d.verdict import CulpritKind, HangVerdict, describe

CAUSES = {
    CulpritKind.DEAD: "process gone",
    CulpritKind.EXCEPTION: "exception",
    CulpritKind.HOST_STUCK: "stuck",
    CulpritKind.DEVICE_STUCK: "device stuck",
    CulpritKind.MISMATCH: "another operation",
    CulpritKind.MISSING_CALL: "call left out",
    CulpritKind.ITERATION_DESYNC: "another step",
    CulpritKind.DIVERGED: "another branch",
    CulpritKind.ORDER_INVERSION: "order inverted",
    CulpritKind.P2P_CYCLE: "send/receive circle",
    CulpritKind.NETWORK: "network?",
    CulpritKind.LIBRARY: "library?",
    CulpritKind.INIT: "set-up",
}
"""A root's cause in a word or two, for its label in the picture."""

MOST_CULPRITS = 12
"""So many are told; how many more there are stands below them."""


def verdict_of(verdict: HangVerdict, snapshot: Snapshot) -> dict[str, Any]:
    """The verdict as plain JSON; ``snapshot`` is the look that it was read from."""
    notes = []
    if verdict.unexplained:
        notes.append(f"Not explained: ranks {_some(verdict.unexplained)}.")
    if verdict.missing:
        notes.append(f"Without data: ranks {_some(verdict.missing)}.")
    notes += [f"Not judged, {one.signal}: {one.reason}." for one in verdict.abstained]
    culprits = [
        {
            "ranks": list(culprit.ranks),
            "hosts": list(culprit.hosts[:8]),
            "kind": str(culprit.kind),
            "cause": CAUSES.get(culprit.kind, str(culprit.kind)),
            "segment": culprit.segment,
            "title": describe(culprit),
            "step": _step(snapshot.states.get(culprit.ranks[0]) if culprit.ranks else None),
            "evidence": [one.statement for one in culprit.evidence],
            "next": list(next_steps(culprit)),
        }
        for culprit in verdict.culprits[:MOST_CULPRITS]
    ]
    return {
        "state": str(verdict.verdict),
        "sentence": verdict.sentence(),
        "culprits": culprits,
        "more": max(0, len(verdict.culprits) - MOST_CULPRITS),
        "notes": notes,
    }


def _step(state: RankState | None) -> int | None:
    return None if state is None else state.step


def _some(ranks: Sequence[int], most: int = 20) -> str:
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return ", ".join(map(str, ranks[:most])) + more
