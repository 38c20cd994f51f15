"""The binary payload of the heatmap's canvas: ranks by steps, or hosts by GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt
from ...heatmap.matrix import Matrix
from ...profiler.errors import MegascopeError, UsageError
from ..binary import pack
from ..moments import step_moments
from ..verdicts import peer_axis
from ..view import METRICS, View
from ..workbench import Workbench
from .address import source_of
from .bins import bin_size, few_cells, hottest
from .data import HeatChoice, choose, matrix_of, placement_of, rows_of
from .grid import lay_out
from .rows import UNKNOWN, FloatArray, IntArray, Rows, host_names, per_rank, place_texts, planes_of
from .transfers import TRANSFER, missing_transfers

Arrays = dict[str, npt.NDArray[Any]]


def heat_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """Everything that the heatmap's canvas needs: planes float32 with NaN for what is missing.

    Ranks by steps: planes [rows x steps] or, of more cells than a screen takes, [bin rows x bin columns] with ``row``
    and ``column`` of the cell that stands for each bin. A view with a ``zoom`` gets its rows and steps alone, so that a
    part of a large matrix has its single cells. Hosts by GPUs: planes [grid rows x grid columns] with ``at``,
    the place of each cell's rank in ``ranks`` (-1: a gap), its worst ratio and the column of that step.
    """
    choice, placement = choose(view, bench, attempt), placement_of(bench, attempt)
    matrix = matrix_of(bench, attempt, choice)
    if not len(matrix.steps) or not np.isfinite(matrix.values).any():
        _refuse(bench, attempt, choice)
    found = rows_of(matrix, placement, choice)
    if view.zoom is not None and not choice.is_by_hosts:
        matrix, found = _part(matrix, found, view.zoom)
    meta = _meta(bench, attempt, choice, matrix, found)
    planes = planes_of(matrix, found.rows)
    if choice.is_by_hosts:
        slots = _local_ranks(bench, attempt, matrix.ranks[found.rows])
        return _by_hosts(meta, planes, choice, found, slots)
    return by_steps(meta, planes, choice.show, choice.above)


def _part(matrix: Matrix, found: Rows, zoom: tuple[int, ...]) -> tuple[Matrix, Rows]:
    """The matrix and its rows within a zoom: rows [first, last], and columns that have one of its steps [first, last].

    Raises UsageError where there are none.
    """
    rows = found.rows[zoom[0] : zoom[1] + 1]
    inside = (matrix.steps + matrix.step_width > zoom[2]) & (matrix.steps <= zoom[3])
    if not len(rows) or not inside.any():
        raise UsageError("The picture has no such rows and steps: look at the whole of it, and zoom in again.")
    planes = {name: plane[:, inside] for name, plane in planes_of(matrix, rows).items()}
    part = replace(
        matrix,
        ranks=matrix.ranks[rows],
        steps=matrix.steps[inside],
        values=planes["value"],
        peers_median=planes["peers"],
        ratio=planes["ratio"],
        z=planes["z"],
    )
    return part, Rows(np.arange(len(rows)), ())


def _refuse(bench: Workbench, attempt: Attempt, choice: HeatChoice) -> None:
    if choice.metric == TRANSFER:
        raise MegascopeError(missing_transfers(bench.store, attempt, choice.segment, choice.steps))
    if choice.metric == "exposed":
        raise MegascopeError(
            f"{choice.segment} has no exposed time in these steps: it is recorded for communication only."
        )
    raise MegascopeError(f"{choice.segment} was not recorded in these steps. Choose other steps.")


def _meta(bench: Workbench, attempt: Attempt, choice: HeatChoice, matrix: Matrix, found: Rows) -> dict[str, Any]:
    placement, moments = placement_of(bench, attempt), step_moments(bench, attempt)
    ranks = [int(rank) for rank in matrix.ranks[found.rows]]
    ended = [moments.ended(int(step) + matrix.step_width - 1) for step in matrix.steps]
    if choice.parts is not None:
        ended = [choice.parts.base_ns + (int(part) + 1) * choice.parts.length_ns for part in matrix.steps]
    return {
        "source": source_of(bench, attempt, choice),
        "segment": choice.segment,
        "metric": "spans" if choice.metric == "count" else METRICS[choice.metric].partition(" (")[0],
        "unit": "spans" if choice.metric == "count" else "ms",
        "show": choice.show,
        "shape": choice.shape,
        "over": choice.over,
        "ranks": ranks,
        "steps": [int(step) for step in matrix.steps],
        "step_width": matrix.step_width,
        "part_s": None if choice.parts is None else choice.parts.length_ns / 1e9,
        "moments": [None if moment is None else str(moment) for moment in ended],
        "hosts": host_names(placement, matrix.ranks[found.rows]),
        "places": place_texts(placement, ranks),
        "sections": [[section.label, section.first, section.last] for section in found.sections],
        "link": View(run=attempt.run, attempt=attempt.attempt, axis=peer_axis(attempt)).search().removeprefix("?"),
        "job": View(run=attempt.run, attempt=attempt.attempt).search().removeprefix("?"),
    }


def by_steps(meta: dict[str, Any], planes: Mapping[str, FloatArray], show: str, above: float | None = None) -> bytes:
    """Ranks by steps: ``planes`` [R, S] in the order of ``meta``'s ranks and steps, binned where they are large."""
    size = bin_size(*planes["value"].shape)
    if size == (1, 1):
        return pack(meta, {name: plane.astype(np.float32) for name, plane in planes.items()})
    row, column = _standing(planes, show, above, size)
    arrays: Arrays = {
        name: np.where(row < 0, np.nan, plane[row, column]).astype(np.float32) for name, plane in planes.items()
    }
    return pack(
        meta | {"bin": size, "few": few_cells()},
        arrays | {"row": row.astype(np.int32), "column": column.astype(np.int32)},
    )


def _standing(
    planes: Mapping[str, FloatArray], show: str, above: float | None, size: tuple[int, int]
) -> tuple[IntArray, IntArray]:
    """Row and column of the cell that stands for each bin: the hottest, of those from the threshold on if any are."""
    shown = planes[show]
    row, column = hottest(shown, size)
    measured_row, measured_column = hottest(planes["value"], size)  # where nobody has peers, that is not missing
    row, column = np.where(row < 0, measured_row, row), np.where(row < 0, measured_column, column)
    if above is None:
        return row, column
    passing = np.where(planes["ratio"] >= above, shown, np.nan)
    above_row, above_column = hottest(passing, size)
    return np.where(above_row >= 0, above_row, row), np.where(above_row >= 0, above_column, column)


def _by_hosts(
    meta: dict[str, Any], planes: dict[str, FloatArray], choice: HeatChoice, found: Rows, slots: list[int]
) -> bytes:
    hosts = [host or UNKNOWN for host in meta["hosts"]]
    grid = lay_out(hosts, slots, () if choice.group == "host" else found.sections)
    numbers, worst = per_rank(planes, choice.show, choice.over)
    arrays: Arrays = {
        name: np.where(grid.at < 0, np.nan, line[grid.at]).astype(np.float32) for name, line in numbers.items()
    }
    arrays["at"] = grid.at.astype(np.int32)
    arrays["worst_column"] = np.where(grid.at < 0, -1, worst[grid.at]).astype(np.int32)
    shape = {"rows": grid.at.shape[0], "columns": grid.at.shape[1], "gpus": grid.gpus, "hosts": list(grid.hosts)}
    sections = [[section.label, section.first, section.last] for section in grid.sections]
    return pack(meta | {"grid": shape, "sections": sections}, arrays)


def _local_ranks(bench: Workbench, attempt: Attempt, ranks: IntArray) -> list[int]:
    """Each rank's place on its host, -1 where it is not known."""

    def load() -> dict[int, int]:
        table = bench.store.query("SELECT rank, local_rank FROM ranks WHERE local_rank IS NOT NULL", attempt=attempt)
        return dict(zip(table["rank"].to_pylist(), table["local_rank"].to_pylist(), strict=True))

    known = bench.cached(("local ranks", attempt.run, attempt.attempt), load)
    return [known.get(int(rank), -1) for rank in ranks]
