"""Where an analysis takes its numbers from: raw spans, or rollups where those are absent or too many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np

from ..collectors.reading.kept import kept
from ..collectors.reading.store import Attempt, Store
from ..collectors.rollups.windows import WINDOW_STEPS
from .peers import IntArray
from .windows import COARSEST, window_range

MANY_SPANS = 5_000_000
"""Raw spans from which on rollups are read instead: about a second of DuckDB on two cores."""

COMPLETE_SHARE = 0.98
"""Spans are all there from this share of those in rollups on: a commit may come between the two counts."""

MANY_CELLS = 4_000_000
"""Cells of a matrix of ranks by windows from which on longer windows are taken: 32 MB for each of its planes."""


class Source(StrEnum):
    """What the numbers were taken from."""

    SPANS = "spans"
    ROLLUPS = "rollups"


@dataclass(frozen=True, slots=True)
class Choice:
    """The source, the spans that are in the store, and in a few words why rollups were taken (empty for spans).

    ``step_width`` is the number of steps that a column of a matrix stands for; of rollups, ``windows`` are the first
    steps of the first and of the last window of that length. ``is_whole``: the store holds all spans.
    """

    source: Source
    spans: int
    reason: str = ""
    step_width: int = 1
    windows: tuple[int, int] | None = None
    is_whole: bool = True

    def first_steps(self, steps: tuple[int, int] | None = None) -> IntArray:
        """First steps of all windows, [W]; of those inside the given steps (first, last), else those touching them."""
        if self.windows is None:
            return np.zeros(0, np.int64)
        every, width = np.arange(self.windows[0], self.windows[1] + 1, self.step_width), self.step_width
        if steps is None:
            return every
        inside = every[(every >= steps[0]) & (every + width - 1 <= steps[1])]
        return inside if len(inside) else every[(every + width > steps[0]) & (every <= steps[1])]


def choose_source(
    store: Store, attempt: Attempt, steps: tuple[int, int] | None = None, most_spans: int | None = None
) -> Choice:
    """Spans where all are there and not too many, else rollups; spans too where there are no rollups.

    Too many are more than ``most_spans``, at most `MANY_SPANS`; None: these.

    How many spans there are is known from the manifests alone; rollups tell how many there were. ``steps`` (first and
    last) narrow what would be read: of an even job, to their share. Of rollups the shortest windows are taken of which
    none of the steps was pruned and which make no more than `MANY_CELLS` cells.
    """
    most = MANY_SPANS if most_spans is None else min(most_spans, MANY_SPANS)
    spans = sum(entry.rows for entry in store.entries("events", attempt))
    counted, ranks = kept(store, ("rolled up", attempt.run, attempt.attempt), lambda: _rolled_up(store, attempt))
    if not counted:
        return Choice(Source.SPANS, spans)
    is_whole = spans >= COMPLETE_SHARE * counted
    if not is_whole:
        text = f"the store holds {spans:,} raw spans of {counted:,} that were recorded" if spans else "no raw spans"
    elif spans > most:
        text = f"{spans:,} raw spans are too many to be read at once"
    else:
        return Choice(Source.SPANS, spans)
    choice = _with_windows(store, attempt, Choice(Source.ROLLUPS, spans, text, is_whole=is_whole), steps, ranks)
    if is_whole and steps is not None and choice.windows is not None:
        recorded = choice.windows[1] - choice.windows[0] + choice.step_width
        if spans * min(1.0, (steps[1] - steps[0] + 1) / recorded) <= most:
            return Choice(Source.SPANS, spans)
    return choice


def _rolled_up(store: Store, attempt: Attempt) -> tuple[int, int]:
    """Spans counted in rollups, and ranks that have any."""
    if not any(entry.rows for entry in store.entries("rank_windows", attempt)):
        return 0, 0
    sql = f"""SELECT coalesce(sum(duration_count), 0) AS spans, count(DISTINCT rank) AS ranks
              FROM rank_windows WHERE window_steps = {COARSEST}"""
    row = store.query(sql, attempt=attempt).to_pylist()[0]
    return int(row["spans"]), int(row["ranks"])


def _with_windows(store: Store, attempt: Attempt, choice: Choice, steps: tuple[int, int] | None, ranks: int) -> Choice:
    """The choice with the length of its windows and how far they reach."""
    pruned = {one.level: one.last_step for one in store.pruned(attempt) if one.table == "rank_windows"}
    for length in WINDOW_STEPS:
        last_pruned = pruned.get(length, -1)
        if length != COARSEST and (last_pruned is None or last_pruned >= (0 if steps is None else steps[0])):
            continue
        key = ("window range", attempt.run, attempt.attempt, length)
        reach = kept(store, key, partial(window_range, store, attempt, length))
        found = replace(choice, step_width=length, windows=reach)
        if length == COARSEST or len(found.first_steps(steps)) * ranks <= MANY_CELLS:
            return found
    return choice
