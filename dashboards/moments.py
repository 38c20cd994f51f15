"""When steps ran, in UTC: turns times into steps for the pages, and steps into the moments that the 3D page takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..collectors.reading.store import Attempt
from ..profiler.errors import MegascopeError
from .alignment import clocks_of
from .span_clock import aligned_starts
from .view import View
from .workbench import Workbench

IntArray = npt.NDArray[np.int64]

FIRST_RANKS = 512

_LOWEST = "SELECT coalesce(min(rank), 0) AS rank FROM {}"

_STEPS = """
    SELECT step, min(rank) AS rank, min(start_ns) AS began, max(start_ns + coalesce(duration_ns, 0)) AS ended
    FROM steps LEFT JOIN (SELECT rank, host FROM ranks) USING (rank)
    WHERE rank BETWEEN ? AND ? GROUP BY step, host ORDER BY step
"""
"""Of the first `FIRST_RANKS`, in one block: a step of a job that meets in every step begins nearly at once for all. By
host, whose ranks have one clock."""


@dataclass(frozen=True, slots=True)
class StepMoments:
    """Steps [S], ascending, with the moments at which each began and ended, UTC ns [S], on the reference clock.

    Hosts whose clock is not known are left out, unless it is known of none.
    """

    steps: IntArray
    began_ns: IntArray
    ended_ns: IntArray

    def ended(self, step: int) -> int | None:
        """When a step ended; None where that is not stored."""
        at = int(np.searchsorted(self.steps, step))
        return int(self.ended_ns[at]) if at < len(self.steps) and self.steps[at] == step else None


def step_moments(bench: Workbench, attempt: Attempt) -> StepMoments:
    """When the attempt's steps ran; empty where no steps are stored."""

    def load() -> StepMoments:
        table = _first_steps(bench, attempt)
        step, rank, began, ended = (
            table[name].to_numpy().astype(np.int64) for name in ("step", "rank", "began", "ended")
        )
        known = np.isin(rank, list(clocks_of(bench, attempt)))
        kept = known if known.any() else np.ones(len(rank), bool)
        ranks = rank[kept].astype(np.int32)
        steps, firsts = np.unique(step[kept], return_index=True)
        if not len(steps):
            return StepMoments(steps, steps, steps)
        began, ended = (aligned_starts(bench, attempt, ranks, moments[kept]) for moments in (began, ended))
        return StepMoments(steps, np.minimum.reduceat(began, firsts), np.maximum.reduceat(ended, firsts))

    return bench.cached(("moments", attempt.run, attempt.attempt), load)


def _first_steps(bench: Workbench, attempt: Attempt) -> pa.Table:
    """Rows of `_STEPS`, of which numbers for ranks let whole files be passed over, as a subquery would not.

    The lowest rank is that of ``ranks``; where its neighbours have no steps, the lowest that has any.
    """
    for name in ("ranks", "steps"):
        low = bench.store.query(_LOWEST.format(name), attempt=attempt).to_pylist()[0]["rank"]
        table: pa.Table = bench.store.query(_STEPS, [low, low + FIRST_RANKS - 1], attempt)
        if table.num_rows:
            break
    return table


def chosen_steps(bench: Workbench, attempt: Attempt, view: View) -> tuple[int, int] | None:
    """First and last step of the view's steps and times together; None for all.

    A step belongs to a time if it began from ``since`` on and before ``until``. Raises MegascopeError where none did.
    """
    if view.since is None and view.until is None:
        return view.steps
    moments = step_moments(bench, attempt)
    inside = np.ones(len(moments.steps), bool)
    if view.since is not None:
        inside &= moments.began_ns >= view.since
    if view.until is not None:
        inside &= moments.began_ns < view.until
    if view.steps is not None:
        inside &= (moments.steps >= view.steps[0]) & (moments.steps <= view.steps[1])
    if not inside.any():
        raise MegascopeError(f"No such step of {attempt.run}, attempt {attempt.attempt}, began then: give other times.")
    found = moments.steps[inside]
    return int(found[0]), int(found[-1])
