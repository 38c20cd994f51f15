"""The heatmap as a Plotly figure, for notebooks: no hot cell is lost, however many rows share a pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..profiler.errors import UsageError
from .matrix import Matrix
from .peers import FloatArray

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_ROWS = 400
"""Rows drawn at most. Plotly drops rows where they exceed pixels, and with them what the heatmap is for."""

SHOWN = ("ratio", "value", "z")

# Blue - grey - orange - brown: told apart with all common colour blindnesses, and by lightness alone.
DIVERGING = [[0.0, "#2166ac"], [0.5, "#f0f0ee"], [0.75, "#c44900"], [1.0, "#6b1f00"]]
SEQUENTIAL = "Cividis"


@dataclass(frozen=True, slots=True)
class Binned:
    """A plane [B, S] in which every row stands for one or more ranks: ``first`` and ``last`` rank index of each row
    [B], and the index of the rank whose value is shown [B, S] (-1 where none has one)."""

    values: FloatArray
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    winner: npt.NDArray[np.int64]


def bin_rows(plane: FloatArray, rows: int = MAX_ROWS) -> Binned:
    """Join neighbouring rows of a plane [R, S] to at most ``rows``, keeping each column's largest value; NaN loses.

    Raises UsageError for fewer than one row.
    """
    if rows < 1:
        raise UsageError(f"A heatmap of {rows} rows cannot be drawn: ask for at least one.")
    count = plane.shape[0]
    bins = min(count, rows)
    bounds = (np.arange(bins + 1) * count) // max(bins, 1)
    filled = np.where(np.isfinite(plane), plane, -np.inf)
    values = np.full((bins, plane.shape[1]), np.nan)
    winner = np.full((bins, plane.shape[1]), -1, np.int64)
    for number in range(bins):
        part = filled[bounds[number] : bounds[number + 1]]
        best = part.argmax(axis=0)
        value = np.take_along_axis(part, best[None], axis=0)[0]
        known = np.isfinite(value)
        values[number, known] = value[known]
        winner[number, known] = best[known] + bounds[number]
    return Binned(values, bounds[:-1], bounds[1:] - 1, winner)


def heatmap_figure(matrix: Matrix, show: str = "ratio", rows: int = MAX_ROWS) -> go.Figure:
    """Figure of a matrix: ``show`` is ratio (to the peers), value (ms, or spans) or z. Missing cells stay empty.

    Raises UsageError for another ``show``, ModuleNotFoundError where plotly is not installed.
    """
    import plotly.graph_objects as go  # noqa: PLC0415 - analysis works without plotly

    if show not in SHOWN:
        raise UsageError(f"A heatmap cannot show {show!r}: choose one of {', '.join(SHOWN)}.")
    plane = {"ratio": matrix.ratio, "value": matrix.values, "z": matrix.z}[show]
    binned = bin_rows(plane, rows)
    names = [_row_name(matrix, int(a), int(b)) for a, b in zip(binned.first, binned.last, strict=True)]
    trace = go.Heatmap(
        x=matrix.steps.tolist(),
        y=names,
        z=[[float(value) if np.isfinite(value) else None for value in row] for row in binned.values],
        text=[[_evidence(matrix, int(row), at) for at, row in enumerate(line)] for line in binned.winner],
        hoverinfo="text",
        hoverongaps=False,
        colorbar={"title": show if show != "value" else "spans" if matrix.metric == "count" else "ms"},
        **_scale(show, plane),
    )
    figure = go.Figure(trace)
    figure.update_layout(
        title=f"{matrix.segment}, {matrix.metric}: {show}",
        xaxis_title="step",
        yaxis={"autorange": "reversed", "type": "category"},
    )
    return figure


def _row_name(matrix: Matrix, first: int, last: int) -> str:
    if first == last:
        return f"rank {matrix.ranks[first]}"
    return f"ranks {matrix.ranks[first]} to {matrix.ranks[last]}"


def _evidence(matrix: Matrix, row: int, column: int) -> str:
    """What stands behind a cell."""
    if row < 0:
        return "no data"
    unit = "spans" if matrix.metric == "count" else "ms"
    text = f"rank {matrix.ranks[row]}, step {matrix.steps[column]}: {matrix.values[row, column]:.4g} {unit}"
    if np.isfinite(matrix.ratio[row, column]):
        text += f"; peers {matrix.peers_median[row, column]:.4g} {unit}, x{matrix.ratio[row, column]:.3g}"
        text += f", z {matrix.z[row, column]:.3g}"
    return text


def _scale(show: str, plane: FloatArray) -> dict[str, object]:
    """Colours and their limits: fixed middle for ratio and z, the extremes of the data for a value."""
    if show == "value":
        return {"colorscale": SEQUENTIAL}
    if show == "z":
        return {"colorscale": DIVERGING, "zmin": -6.0, "zmax": 6.0}
    known = plane[np.isfinite(plane)]
    away = float(np.quantile(np.abs(known - 1), 0.998)) if known.size else 0.0
    limit = min(2.0, max(0.25, away))
    return {"colorscale": DIVERGING, "zmin": 1 - limit, "zmax": 1 + limit}
