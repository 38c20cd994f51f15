"""The Heatmap page's data: what is shown, its matrix, the worst ranks and cells in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...collectors.reading.store import Attempt
from ...heatmap.matrix import Matrix, load_placement, segment_matrix, segments_available
from ...heatmap.peers import Placement, peer_counts, row_median
from ...heatmap.verdict import Culprit, CulpritKind
from ...profiler.errors import MegascopeError, UsageError
from ...profiler.vocabulary import WAITING_KINDS, SegmentKind
from ..absence import pruned_texts
from ..moments import chosen_steps
from ..verdicts import stragglers_of
from ..view import View
from ..workbench import Workbench
from .percentiles import PERCENTILES, percentile_matrix
from .rows import ORDERS, FloatArray, Rows, arrange, groups_of, over_steps, place_texts, plane_of
from .segments import glance_at
from .times import Parts, parts_of, segments_in_time, time_matrix
from .transfers import TRANSFER, transfer_matrix

__all__ = ["HeatChoice", "choose", "matrix_of", "place_texts", "placement_of", "rows_of", "worst_cells", "worst_ranks"]

SLOW_RATIO = 1.10
"""A cell counts as slow in the table of ranks from this ratio to its peers on, if no other is chosen."""


@dataclass(frozen=True, slots=True)
class HeatChoice:
    """What the Heatmap shows, with the page's defaults filled in; ``group`` is empty for none.

    ``parts``: the parts of time that stand in the place of steps, in a run whose spans belong to none.
    """

    segment: str
    kind: str
    metric: str
    show: str
    order: str
    group: str
    shape: str
    over: str
    above: float | None
    steps: tuple[int, int] | None
    ranks: tuple[int, ...]
    parts: Parts | None = None

    @property
    def is_by_hosts(self) -> bool:
        """Whether a cell is a rank on its host, and not a rank in a step."""
        return self.shape == "hosts"

    @property
    def is_waiting(self) -> bool:
        """Whether a long time is somebody's waiting for the others: those who wait least come first then."""
        return self.kind == SegmentKind.COLLECTIVE and self.metric not in ("count", TRANSFER)


def segments_of(bench: Workbench, attempt: Attempt) -> list[dict[str, Any]]:
    """Segments with spans that belong to steps, the costliest first; where no span does, of all spans."""

    def load() -> list[dict[str, Any]]:
        found = segments_available(bench.store, attempt)
        return list((found if found.num_rows else segments_in_time(bench.store, attempt)).to_pylist())

    return bench.cached(("segments", attempt.run, attempt.attempt), load)


def _parts(bench: Workbench, attempt: Attempt) -> Parts | None:
    """Parts of time, if the attempt has spans and none belongs to a step."""

    def load() -> Parts | None:
        stepless = segments_of(bench, attempt) and not segments_available(bench.store, attempt).num_rows
        return parts_of(bench.store, attempt) if stepless else None

    return bench.cached(("parts", attempt.run, attempt.attempt), load)


def placement_of(bench: Workbench, attempt: Attempt) -> Placement:
    """Where the ranks are."""
    return bench.cached(("placement", attempt.run, attempt.attempt), lambda: load_placement(bench.store, attempt))


def steps_of(bench: Workbench, attempt: Attempt, view: View) -> tuple[int, int] | None:
    """First and last of the steps that the view chooses by number or by time; None for all, and where there are none.

    Raises MegascopeError where no step began in the chosen time.
    """
    return None if _parts(bench, attempt) else chosen_steps(bench, attempt, view)


def choose(view: View, bench: Workbench, attempt: Attempt) -> HeatChoice:
    """Fill in what the view leaves open. Raises UsageError for a segment or an order that the attempt does not have."""
    known = segments_of(bench, attempt)
    if not known:
        gone = " ".join(pruned_texts(bench, attempt, ("events", "rank_windows")))
        reason = f"no spans any more. {gone}" if gone else "no spans yet: wait for the first steps."
        raise MegascopeError(f"Attempt {attempt.attempt} of {attempt.run} has {reason}")
    steps = steps_of(bench, attempt, view)
    kinds = {row["segment"]: str(row["kind"]) for row in reversed(known)}
    work = [row["segment"] for row in known if row["kind"] not in WAITING_KINDS]
    accused = _accused(bench, attempt, steps) if view.segment is None else None
    led = [] if view.segment else [accused.segment] if accused else _slowest_segment(bench, attempt, steps)
    segment = view.segment or [*(name for name in led if name in kinds), *work, known[0]["segment"]][0]
    if segment not in kinds:
        raise UsageError(f"The run has no segment {segment!r}. It has: {', '.join(kinds)}.")
    order, group = _order_of(view, attempt)
    waits = kinds[segment] in WAITING_KINDS
    metric = view.metric or ("duration" if waits else "self")
    # Waiting is not work: a ratio to peers of a collective says who waited, so its plain value comes first.
    plain = waits or metric == "count" or not _has_peers(bench, attempt)
    # The ranks of a stage are compared with each other alone: its excess over other stages is no ratio.
    plain |= accused is not None and accused.segment == segment and accused.kind == CulpritKind.STAGE
    return HeatChoice(
        segment,
        kinds[segment],
        metric,
        view.show or ("value" if plain else "ratio"),
        order,
        group,
        view.shape or "steps",
        view.over or "mean",
        view.above,
        steps,
        view.ranks,
        _parts(bench, attempt),
    )


def _order_of(view: View, attempt: Attempt) -> tuple[str, str]:
    """Order and group; a group given as the order means the same by rank."""
    groups = groups_of(attempt)
    order, group = view.order or "rank", view.group or ""
    if order not in ORDERS and order in groups:
        order, group = "rank", order
    if order not in ORDERS:
        raise UsageError(f"Rows cannot be ordered by {order!r}. Choose one of {', '.join(ORDERS)}.")
    if group not in groups:
        raise UsageError(f"Rows cannot be grouped by {group!r}. Choose one of {', '.join(filter(None, groups))}.")
    return order, group


def _has_peers(bench: Workbench, attempt: Attempt) -> bool:
    placement = placement_of(bench, attempt)
    roles = placement.roles(placement.ranks)
    return not len(roles) or bool((peer_counts(roles, np.ones(len(roles), bool)) > 0).any())


def _accused(bench: Workbench, attempt: Attempt, steps: tuple[int, int] | None) -> Culprit | None:
    """The worst finding, if the analysis is done: what somebody who opens the page looks for."""
    verdict = stragglers_of(bench, attempt, steps, wait_s=0).value
    return verdict.culprits[0] if verdict is not None and verdict.culprits else None


def _slowest_segment(bench: Workbench, attempt: Attempt, steps: tuple[int, int] | None) -> list[str]:
    """Where the analysis accused nobody: the segment at which a rank lost the most, if it is clearly slower."""
    if not stragglers_of(bench, attempt, steps, wait_s=0).stamp:
        return []
    found = glance_at(bench, attempt, steps).value or []
    return [found[0].segment] if found and found[0].ratio >= SLOW_RATIO else []


def matrix_of(bench: Workbench, attempt: Attempt, choice: HeatChoice) -> Matrix:
    """The matrix of a choice, over all ranks that the job has: those without any data too."""
    key = ("matrix", attempt.run, attempt.attempt, choice.segment, choice.metric, choice.steps)

    def load() -> Matrix:
        if choice.parts is not None:
            found = time_matrix(bench.store, attempt, choice.segment, choice.metric, choice.parts)
        elif choice.metric in PERCENTILES:
            found = percentile_matrix(bench.store, attempt, choice.segment, choice.metric, choice.steps)
        elif choice.metric == TRANSFER:
            found = transfer_matrix(bench.store, attempt, choice.segment, choice.steps)
        else:
            found = segment_matrix(bench.store, attempt, choice.segment, choice.metric, choice.steps)
        return _with_all_ranks(found, 0 if attempt.left_out else attempt.world_size or 0)

    return bench.cached(key, load)


def _with_all_ranks(matrix: Matrix, world_size: int) -> Matrix:
    """The same with rows of NaN for the ranks that the store knows nothing of: absent is not healthy."""
    ranks = np.union1d(matrix.ranks, np.arange(world_size))
    if len(ranks) == len(matrix.ranks):
        return matrix
    row = np.searchsorted(ranks, matrix.ranks)

    def widened(plane: FloatArray) -> FloatArray:
        result = np.full((len(ranks), len(matrix.steps)), np.nan)
        result[row] = plane
        return result

    return replace(
        matrix,
        ranks=ranks,
        values=widened(matrix.values),
        peers_median=widened(matrix.peers_median),
        ratio=widened(matrix.ratio),
        z=widened(matrix.z),
    )


def rows_of(matrix: Matrix, placement: Placement, choice: HeatChoice) -> Rows:
    """The rows of a choice in their order."""
    scores = over_steps(plane_of(matrix, choice.show), choice.over)
    if choice.is_waiting:
        scores = -scores
    return arrange(matrix, placement, ranks=choice.ranks, order=choice.order, group=choice.group, scores=scores)


def worst_ranks(
    matrix: Matrix, limit: int = 8, above: float = SLOW_RATIO, *, least_first: bool = False
) -> list[dict[str, Any]]:
    """Ranks by the mean of their ratios to their peers over the steps: chronic and heavy delays both come up.

    Each: rank, ratio (that mean), slow (share of its steps from the ratio ``above`` on), worst_step and worst_ratio.
    ``least_first``, for waiting: the lowest ratios, and the share of steps up to 1 / ``above``.
    """
    known = np.isfinite(matrix.ratio)
    count = known.sum(axis=1)
    sign = -1.0 if least_first else 1.0
    ratio, key = np.where(known, matrix.ratio, np.nan), np.where(known, sign * matrix.ratio, -np.inf)
    mean = np.where(count > 0, sign * over_steps(matrix.ratio, "mean"), -np.inf)
    is_slow = ratio <= 1 / above if least_first else ratio >= above
    found = []
    for row in np.argsort(-mean, kind="stable")[:limit]:
        if count[row]:
            worst = int(key[row].argmax())
            found.append(
                {
                    "rank": int(matrix.ranks[row]),
                    "ratio": float(sign * mean[row]),
                    "slow": float(is_slow[row].sum() / count[row]),
                    "worst_step": int(matrix.steps[worst]),
                    "worst_ratio": float(ratio[row, worst]),
                }
            )
    return found


def worst_cells(matrix: Matrix, limit: int = 6, *, least_first: bool = False) -> list[dict[str, Any]]:
    """Single cells with the largest z (``least_first``: the smallest): rank, step, value, peers, ratio, z."""
    z = np.where(np.isfinite(matrix.z), -matrix.z if least_first else matrix.z, -np.inf)
    count = min(limit, z.size)
    if not count:
        return []
    flat = np.argpartition(z, z.size - count, axis=None)[-count:]
    flat = flat[np.argsort(-z.ravel()[flat])]
    cells = []
    for at in flat:
        row, column = divmod(int(at), z.shape[1])
        if np.isfinite(z[row, column]):
            cells.append(
                {
                    "rank": int(matrix.ranks[row]),
                    "step": int(matrix.steps[column]),
                    "value": float(matrix.values[row, column]),
                    "peers": float(matrix.peers_median[row, column]),
                    "ratio": float(matrix.ratio[row, column]),
                    "z": float(matrix.z[row, column]),
                }
            )
    return cells


def slowest_steps(matrix: Matrix, limit: int = 14) -> list[dict[str, Any]]:
    """Cells by their ratio to the same rank's median: rank, step, value, peers (that median), ratio.

    For jobs in which no rank does the same work as another.
    """
    usual = row_median(matrix.values)[:, None]
    ratio = np.divide(matrix.values, usual, out=np.full_like(matrix.values, np.nan), where=usual > 0)
    flat = np.argsort(-np.nan_to_num(ratio, nan=-np.inf), axis=None, kind="stable")[:limit]
    places = [divmod(int(at), max(1, ratio.shape[1])) for at in flat]
    return [
        {
            "rank": int(matrix.ranks[row]),
            "step": int(matrix.steps[column]),
            "value": float(matrix.values[row, column]),
            "peers": float(usual[row, 0]),
            "ratio": float(ratio[row, column]),
        }
        for row, column in places
        if np.isfinite(ratio[row, column])
    ]
