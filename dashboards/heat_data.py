"""The Heatmap page's data: the matrix, the order of its rows, the worst ranks and cells, and the binary payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..collectors.store import Attempt
from ..heatmap.matrix import Matrix, load_placement, segment_matrix, segments_available
from ..heatmap.peers import Placement
from ..profiler.errors import MegascopeError, UsageError
from ..profiler.vocabulary import WAITING_KINDS
from .absence import pruned_texts
from .binary import pack
from .heat_bins import bin_size, hottest
from .verdicts import peer_axis, stragglers_of
from .view import View
from .workbench import Workbench

SLOW_RATIO = 1.10
"""A cell counts as slow in the table of ranks from this ratio to its peers on."""


@dataclass(frozen=True, slots=True)
class HeatChoice:
    """What the Heatmap shows, with the page's defaults filled in."""

    segment: str
    kind: str
    metric: str
    show: str
    order: str
    steps: tuple[int, int] | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of one host or of one index on an axis: label, first row, last row."""

    label: str
    first: int
    last: int


def segments_of(bench: Workbench, attempt: Attempt) -> list[dict[str, Any]]:
    """Segments with spans, the costliest first."""
    key = ("segments", attempt.run, attempt.attempt)
    return bench.cached(key, lambda: list(segments_available(bench.store, attempt).to_pylist()))


def placement_of(bench: Workbench, attempt: Attempt) -> Placement:
    """Where the ranks are."""
    return bench.cached(("placement", attempt.run, attempt.attempt), lambda: load_placement(bench.store, attempt))


def choose(view: View, bench: Workbench, attempt: Attempt) -> HeatChoice:
    """Fill in what the view leaves open. Raises UsageError for a segment or an order that the attempt does not have."""
    known = segments_of(bench, attempt)
    if not known:
        gone = " ".join(pruned_texts(bench, attempt, ("events", "rank_windows")))
        reason = f"no spans any more. {gone}" if gone else "no spans yet: wait for the first steps."
        raise MegascopeError(f"Attempt {attempt.attempt} of {attempt.run} has {reason}")
    kinds = {row["segment"]: str(row["kind"]) for row in reversed(known)}
    work = [row["segment"] for row in known if row["kind"] not in WAITING_KINDS]
    accused = _accused_segment(bench, attempt) if view.segment is None else None
    segment = view.segment or (accused if accused in kinds else None) or (work or [known[0]["segment"]])[0]
    if segment not in kinds:
        raise UsageError(f"The run has no segment {segment!r}. It has: {', '.join(kinds)}.")
    orders = orders_of(attempt)
    order = view.order or "rank"
    if order not in orders:
        raise UsageError(f"Rows cannot be ordered by {order!r}. Choose one of {', '.join(orders)}.")
    waits = kinds[segment] in WAITING_KINDS
    metric = view.metric or ("duration" if waits else "self")
    # Waiting is not work: a ratio to peers of a collective says who waited, so its plain value comes first.
    show = view.show or ("value" if waits or metric == "count" else "ratio")
    return HeatChoice(segment, kinds[segment], metric, show, order, view.steps, view.ranks)


def _accused_segment(bench: Workbench, attempt: Attempt) -> str | None:
    """The segment of the worst finding, if the analysis is done: what somebody who opens the page looks for."""
    verdict = stragglers_of(bench, attempt, wait_s=0).value
    return verdict.culprits[0].segment if verdict is not None and verdict.culprits else None


def orders_of(attempt: Attempt) -> dict[str, str]:
    """Ways to order the rows: value to text."""
    return {"rank": "rank", "host": "host", **{axis: f"{axis} index" for axis in attempt.layout}}


def matrix_of(bench: Workbench, attempt: Attempt, choice: HeatChoice) -> Matrix:
    """The matrix of a choice, over all ranks."""
    key = ("matrix", attempt.run, attempt.attempt, choice.segment, choice.metric, choice.steps)
    return bench.cached(key, lambda: segment_matrix(bench.store, attempt, choice.segment, choice.metric, choice.steps))


def row_order(matrix: Matrix, placement: Placement, choice: HeatChoice) -> tuple[npt.NDArray[np.int64], list[Section]]:
    """Rows of the matrix in the order in which they are shown, and the sections that they fall into."""
    rows = np.arange(len(matrix.ranks))
    if choice.ranks:
        rows = rows[np.isin(matrix.ranks, choice.ranks)]
        if not len(rows):
            raise UsageError(f"None of the ranks {', '.join(map(str, choice.ranks[:8]))} is in this run.")
    if choice.order == "rank":
        return rows, []
    labels = _labels(matrix.ranks[rows], placement, choice.order)
    order = sorted(range(len(rows)), key=lambda at: (labels[at], int(matrix.ranks[rows[at]])))
    sections: list[Section] = []
    for position, at in enumerate(order):
        text = f"{choice.order} {labels[at][1]}"
        if sections and sections[-1].label == text:
            sections[-1] = Section(text, sections[-1].first, position)
        else:
            sections.append(Section(text, position, position))
    return rows[np.array(order, np.int64)], sections


def _labels(ranks: npt.NDArray[np.int64], placement: Placement, order: str) -> list[tuple[int, str]]:
    """Sort key and text of each rank's section."""
    if order == "host":
        return [(0, placement.host_of(int(rank)) or "unknown") for rank in ranks]
    return [(int(index), str(index) if index >= 0 else "unknown") for index in placement.coordinate(order, ranks)]


def place_texts(placement: Placement, ranks: Sequence[int]) -> list[str]:
    """Each rank's coordinates in words, such as "pp1 dp0 tp1"."""
    wanted = np.array(ranks, np.int64)
    columns = {axis: placement.coordinate(axis, wanted).tolist() for axis in placement.coordinates}
    return [
        " ".join(f"{axis}{column[at]}" for axis, column in columns.items() if column[at] >= 0)
        for at in range(len(wanted))
    ]


def heat_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """Everything that the heatmap's canvas needs: planes float32 [rows x steps] with NaN for what is missing."""
    choice = choose(view, bench, attempt)
    matrix, placement = matrix_of(bench, attempt, choice), placement_of(bench, attempt)
    rows, sections = row_order(matrix, placement, choice)
    if not matrix.steps.size and choice.metric == "exposed":
        raise MegascopeError(
            f"{choice.segment} has no exposed time in these steps: it is recorded for communication only."
        )
    if not matrix.steps.size:
        raise MegascopeError(f"{choice.segment} was not recorded in these steps. Choose other steps.")
    ranks = [int(rank) for rank in matrix.ranks[rows]]
    link = View(run=attempt.run, attempt=attempt.attempt, axis=peer_axis(attempt))
    meta: dict[str, Any] = {
        "key": [attempt.run, attempt.attempt, choice.segment, choice.metric, choice.show, choice.order, ranks[0]],
        "segment": choice.segment,
        "metric": "spans" if choice.metric == "count" else f"{choice.metric} time",
        "unit": "spans" if choice.metric == "count" else "ms",
        "show": choice.show,
        "ranks": ranks,
        "steps": [int(step) for step in matrix.steps],
        "step_width": matrix.step_width,
        "hosts": [placement.host_of(rank) for rank in ranks],
        "places": place_texts(placement, ranks),
        "sections": [[section.label, section.first, section.last] for section in sections],
        "link": link.search().removeprefix("?"),
    }
    meta["key"] = "|".join(str(part) for part in meta["key"])
    planes = {"value": matrix.values, "peers": matrix.peers_median, "ratio": matrix.ratio, "z": matrix.z}
    planes = {name: plane[rows] for name, plane in planes.items()}
    size = bin_size(len(rows), len(matrix.steps))
    if size == (1, 1):
        return pack(meta, {name: plane.astype(np.float32) for name, plane in planes.items()})
    row, column = hottest(planes[choice.show], size)
    arrays: dict[str, npt.NDArray[Any]] = {
        name: np.where(row < 0, np.nan, plane[row, column]).astype(np.float32) for name, plane in planes.items()
    }
    return pack(meta | {"bin": size}, arrays | {"row": row.astype(np.int32), "column": column.astype(np.int32)})


def worst_ranks(matrix: Matrix, limit: int = 8) -> list[dict[str, Any]]:
    """Ranks by the mean of their ratios to their peers over the steps: chronic and heavy delays both come up.

    Each: rank, ratio (that mean), slow (share of its steps from `SLOW_RATIO` on), worst_step and worst_ratio.
    """
    known = np.isfinite(matrix.ratio)
    count = known.sum(axis=1)
    ratio = np.where(known, matrix.ratio, 0.0)
    mean = np.divide(ratio.sum(axis=1), count, out=np.full(len(count), -np.inf), where=count > 0)
    found = []
    for row in np.argsort(-mean, kind="stable")[:limit]:
        if count[row]:
            worst = int(ratio[row].argmax())
            found.append(
                {
                    "rank": int(matrix.ranks[row]),
                    "ratio": float(mean[row]),
                    "slow": float((ratio[row] >= SLOW_RATIO).sum() / count[row]),
                    "worst_step": int(matrix.steps[worst]),
                    "worst_ratio": float(ratio[row, worst]),
                }
            )
    return found


def worst_cells(matrix: Matrix, limit: int = 6) -> list[dict[str, Any]]:
    """Single cells with the largest z: rank, step, value, peers, ratio, z."""
    z = np.where(np.isfinite(matrix.z), matrix.z, -np.inf)
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
