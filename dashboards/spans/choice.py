"""Which ranks and steps the Timeline shows: what the address leaves open, filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...heatmap.peers import Placement
from ...profiler.errors import MegascopeError, UsageError
from ..curves import ranks_read
from ..heat.data import placement_of
from ..moments import chosen_steps
from ..verdicts import hang_of, peer_axis, stragglers_of
from ..view import View, ranks_text
from ..workbench import Workbench

NEAREST_RANKS = 64
"""A larger group is shown by so many of its ranks around the chosen one: as many as a screen can be scrolled through.
Ranks that are named in the address are shown as they are."""

ALONE, EVERYONE = "rank", "all"
"""The choices of axis that show one rank only, and all ranks."""


@dataclass(frozen=True, slots=True)
class SpanChoice:
    """What the Timeline shows, with the page's defaults filled in.

    ``group_size`` is larger than the number of ``ranks`` where only the nearest ones of a group are shown.
    """

    rank: int
    axis: str
    ranks: tuple[int, ...]
    group_size: int
    steps: tuple[int, int]
    first_step: int
    last_step: int


def choose_spans(view: View, bench: Workbench, attempt: Attempt) -> SpanChoice:
    """Fill in what the view leaves open. Raises UsageError for ranks, axes or steps that the attempt does not have."""
    placement = placement_of(bench, attempt)
    known = dict.fromkeys(int(rank) for rank in placement.ranks)
    if not known:
        raise MegascopeError(f"Attempt {attempt.attempt} of {attempt.run} has no ranks yet: wait for its first data.")
    first, last, whole = bench.cached(("steps", attempt.run, attempt.attempt), lambda: _steps(bench.store, attempt))
    named = view.rank if view.rank is not None else next(iter(view.ranks), None)
    rank = _default_rank(bench, attempt, list(known)) if named is None else named
    absent = [each for each in (rank, *view.ranks) if each not in known]
    if absent:
        raise UsageError(f"The run has no data of rank {absent[0]}: its ranks are {ranks_text(list(known), 12)}.")
    steps = chosen_steps(bench, attempt, view) or (whole, whole)
    if steps[0] > last or steps[1] < first:
        raise UsageError(f"The run has no data of step {steps[0]}: its steps are {first} to {last}.")
    axis = view.axis or ("" if view.ranks else peer_axis(attempt) or ALONE)
    group = group_of(attempt, placement, axis, rank) if axis else view.ranks
    ranks = nearest(group, rank) if axis else group
    return SpanChoice(rank, axis, ranks, len(group), steps, first, last)


def _default_rank(bench: Workbench, attempt: Attempt, known: Sequence[int]) -> int:
    """Who is at the root of a hang, or else accused of being slow, if the analyses are done; else the first rank."""
    stuck, slow = hang_of(bench, attempt, wait_s=0).value, stragglers_of(bench, attempt, wait_s=0).value
    accused = [] if stuck is None else [rank for root in stuck.verdict.culprits for rank in root.ranks]
    accused += [] if slow is None else [rank for culprit in slow.culprits for rank in culprit.ranks]
    return next((rank for rank in accused if rank in known), known[0])


def group_of(attempt: Attempt, placement: Placement, axis: str, rank: int) -> tuple[int, ...]:
    """The ranks whose recorded coordinates differ from the rank's on one axis only, in the order of that axis.

    The rank alone where its place is not known on every axis. Raises UsageError for an axis that the mesh lacks.
    """
    if axis == ALONE:
        return (rank,)
    if axis == EVERYONE:
        return tuple(int(each) for each in placement.ranks)
    if axis not in attempt.layout:
        raise UsageError(
            f"The mesh has no axis {axis!r}. Choose one of {', '.join([*attempt.layout, EVERYONE, ALONE])}."
        )
    needed = [each for each, size in attempt.layout.items() if size > 1 or each == axis]
    own = placement.at(np.array([rank], np.int64))[0]
    columns = [placement.coordinates[each] for each in needed if each in placement.coordinates]
    if len(columns) < len(needed) or own < 0 or any(column[own] < 0 for column in columns):
        return (rank,)
    along = placement.coordinates[axis]
    same = along >= 0
    for column in columns:
        if column is not along:
            same &= column == column[own]
    members = np.flatnonzero(same)
    return tuple(int(each) for each in placement.ranks[members[np.argsort(along[members], kind="stable")]])


def nearest(group: tuple[int, ...], rank: int, limit: int = NEAREST_RANKS) -> tuple[int, ...]:
    """At most ``limit`` ranks of a group that lie around one of them."""
    first = max(0, min(group.index(rank) - limit // 2, len(group) - limit))
    return group[first : first + limit]


def _steps(store: Store, attempt: Attempt) -> tuple[int, int, int]:
    """First step, last step, and the newest step that all ranks have completed, as far as they are read."""
    sql = f"SELECT step, count(DISTINCT rank) AS ranks FROM steps WHERE {ranks_read(attempt)} GROUP BY 1 ORDER BY 1"
    rows = store.query(sql, attempt=attempt).to_pylist()
    if not rows:
        sql = "SELECT DISTINCT step, 1 AS ranks FROM events WHERE step IS NOT NULL ORDER BY step"
        rows = store.query(sql, attempt=attempt).to_pylist()
    if not rows:
        raise MegascopeError(f"Attempt {attempt.attempt} of {attempt.run} has no steps yet: wait for the first ones.")
    most = max(row["ranks"] for row in rows)
    whole = [row["step"] for row in rows if row["ranks"] == most]
    return rows[0]["step"], rows[-1]["step"], whole[-1]
