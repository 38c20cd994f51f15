"""What the 3D page tells beside one look: the moments before it, and the Python stacks that agents took."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...collectors.reading.store import Attempt, Store
from ...viz3d.actions import parse_actions
from ...viz3d.graph import build_graph
from ...viz3d.snapshot import take_snapshot
from ...viz3d.states import Snapshot
from .model import Drawn, moment_of

MOST_MOMENTS = 60
RANKS_IN_LOOKS = 60_000
"""A file of its own has so many ranks in all its earlier looks together: of a large job fewer moments."""

LOOKS_BYTES = 8 * 2**20
"""All earlier looks of such a file together, as JSON; the newest are kept."""

STACKS_BYTES = 512 * 2**10
"""All stacks of such a file together; those of the accused are kept first."""


@dataclass(frozen=True, slots=True)
class Past:
    """Where a verdict's past stands, for a file that opens without a server."""

    store: Store
    attempt: Attempt

    def told(self, drawn: Drawn) -> dict[str, Any]:
        """What the model of a file has beside `model.model_of`: ``moments`` and the ``looks`` at them, how many
        ``earlier`` ones are left out, and ``stacks``; bounded by the limits of this module."""
        rows = self.store.read("incidents", self.attempt, ["opened_ns", "actions"]).to_pylist()
        moments = heartbeat_moments(self.store, self.attempt, drawn.snapshot.moment_ns)
        looks = self._looks(drawn, moments[:-1])
        return {
            "moments": [*sorted(looks, key=int), *(str(one) for one in moments[-1:])],
            "looks": looks,
            "earlier": max(0, len(moments) - 1 - len(looks)),
            "stacks": _bounded(stacks_in(rows), drawn.roots),
        }

    def _looks(self, drawn: Drawn, moments: list[int]) -> dict[str, Any]:
        """Earlier moments as the slider shows them, the newest that there is room for."""
        ranks, room = drawn.ranks, LOOKS_BYTES
        looks: dict[str, Any] = {}
        for moment in reversed(moments[-max(1, RANKS_IN_LOOKS // max(1, len(ranks))) :]):
            snapshot = take_snapshot(self.store, self.attempt, moment)
            look = moment_of(without_verdict(snapshot, drawn), ranks)
            room -= len(json.dumps(look, separators=(",", ":")))
            if room < 0:
                break
            looks[str(moment)] = look
        return looks


def without_verdict(snapshot: Snapshot, drawn: Drawn) -> Drawn:
    """The same ranks at another moment, at which nobody was judged: their states and waits."""
    return Drawn(snapshot, build_graph(snapshot), None, (), {}, drawn.shown)


def heartbeat_moments(store: Store, attempt: Attempt, moment_ns: int) -> list[int]:
    """Moments to step through, up to a look: each after a heartbeat of the rank with most, before its next.

    A rank that died early would end the steps at its death; between two heartbeats of one that lives, those that
    live have one, too. Empty where there is no heartbeat before the look.
    """
    rows = store.query(
        """SELECT DISTINCT moment_ns FROM heartbeats
           WHERE moment_ns <= ? AND rank = (
               SELECT rank FROM heartbeats WHERE moment_ns <= ? GROUP BY rank
               ORDER BY count(DISTINCT moment_ns) DESC, max(moment_ns) DESC, rank LIMIT 1)
           ORDER BY moment_ns DESC LIMIT ?""",
        [moment_ns, moment_ns, MOST_MOMENTS + 1],
        attempt,
    )
    beats = sorted(int(one) for one in rows["moment_ns"].to_pylist())
    between = [first + (second - first) // 2 for first, second in itertools.pairwise(beats)]
    return [*between, moment_ns][-MOST_MOMENTS:] if between else []


def stacks_in(incidents: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Rank -> its newest Python stack, as the actions of incidents keep it."""
    found: dict[str, str] = {}
    for row in sorted(incidents, key=lambda one: int(one["opened_ns"])):
        for action in parse_actions(row["actions"]):
            text = action.get("stack")
            if isinstance(text, str) and action.get("rank") is not None:
                found[str(action["rank"])] = text
    return found


def _bounded(stacks: Mapping[str, str], first: Iterable[int]) -> dict[str, str]:
    order = dict.fromkeys([*(str(rank) for rank in first), *stacks])
    kept: dict[str, str] = {}
    room = STACKS_BYTES
    for rank in order:
        if rank in stacks and (room := room - len(stacks[rank].encode())) >= 0:
            kept[rank] = stacks[rank]
    return kept
