"""What is behind the heatmap: its cells as CSV, and an SQL query that gives the same numbers."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.csv

from ...collectors.reading.store import Attempt
from ...heatmap.peers import row_median
from ...heatmap.source import Source, choose_source
from ...profiler.errors import UsageError
from ...profiler.vocabulary import stage_axis
from ..view import View
from ..workbench import Workbench
from .data import HeatChoice, choose, matrix_of, placement_of, rows_of
from .percentiles import PERCENTILES
from .rows import IntArray, host_names, per_rank, planes_of
from .times import time_sql
from .tokens import spread_of
from .transfers import TRANSFER, transfer_sql

EXPORTED_CELLS = 2_000_000
"""About 200 MB of CSV."""


def heat_csv(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """The shown cells in the order of the rows, from the threshold on if there is one.

    Columns: rank, host, one an axis, step (of rollups the first of its window; where spans belong to no step, the
    number of a part of time), value, peers, ratio, z; and, where ranks had unequally many tokens, how many
    over their peers'. Of hosts by GPUs a row a rank: instead of the step, the worst ratio and its step, and the median
    of its tokens. Raises UsageError beyond `EXPORTED_CELLS`.
    """
    choice, placement = choose(view, bench, attempt), placement_of(bench, attempt)
    matrix = matrix_of(bench, attempt, choice)
    rows = rows_of(matrix, placement, choice).rows
    planes, ranks = planes_of(matrix, rows), matrix.ranks[rows]
    spread = spread_of(bench, attempt, choice, matrix)
    beside = None if spread is None else spread.beside[rows]
    if choice.is_by_hosts:
        numbers, worst = per_rank(planes, choice.show, choice.over)
        steps = np.where(np.isfinite(numbers["worst"]), matrix.steps[worst], -1)
        numbers["worst_ratio"] = numbers.pop("worst")
        more = {"worst_step": pa.array(steps, mask=steps < 0)}
        numbers |= {} if beside is None else {"tokens": row_median(beside)}
    else:
        ranks, steps = np.repeat(ranks, len(matrix.steps)), np.tile(matrix.steps, len(ranks))
        numbers, more = {name: plane.ravel() for name, plane in planes.items()}, {"step": pa.array(steps)}
        numbers |= {} if beside is None else {"tokens": beside.ravel()}
    keep = np.ones(len(ranks), bool) if choice.above is None else numbers["ratio"] >= choice.above
    if keep.sum() > EXPORTED_CELLS:
        raise UsageError(
            f"The heatmap has {keep.sum():,} cells; the page exports {EXPORTED_CELLS:,}. Choose fewer steps or ranks."
        )
    columns = _places(bench, attempt, ranks) | more
    columns |= {name: pa.array(line, from_pandas=True) for name, line in numbers.items()}
    text = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(columns).filter(pa.array(keep)), text)
    return text.getvalue()


def _places(bench: Workbench, attempt: Attempt, ranks: IntArray) -> dict[str, pa.Array]:
    placement = placement_of(bench, attempt)
    unique, back = np.unique(ranks, return_inverse=True)
    hosts = pa.array(host_names(placement, unique), pa.string()).take(pa.array(back))
    indices = {axis: placement.coordinate(axis, ranks) for axis in placement.coordinates}
    axes = {axis: pa.array(line, mask=line < 0) for axis, line in indices.items()}
    return {"rank": pa.array(ranks), "host": hosts, **axes}


def heat_sql(bench: Workbench, attempt: Attempt, choice: HeatChoice) -> str:
    """A query for the SQL page: the value of each cell, and beside it the median of the ranks of the same stage."""
    if choice.parts is not None:
        return time_sql(choice.segment, choice.metric, choice.parts) + " ORDER BY total / count(*) DESC LIMIT 1000"
    key = ("source", attempt.run, attempt.attempt, choice.steps)
    source = bench.cached(key, lambda: choose_source(bench.store, attempt, choice.steps))
    is_rolled_up = source.source == Source.ROLLUPS and choice.metric != TRANSFER
    cells = _from_rollups(choice, source.step_width) if is_rolled_up else _from_spans(choice)
    if is_rolled_up and choice.metric in PERCENTILES:
        return cells + "ORDER BY rank, step"
    stages = stage_axis(attempt.layout)
    by = "step" if stages is None else f"{stages}, step"
    return f"""WITH cells AS (
{cells})
-- Beside it the median of the stage; the page leaves the rank itself out and compares chunk by chunk.
SELECT cells.*, host, median(value) OVER peers AS stage_median, value / median(value) OVER peers AS ratio
FROM cells LEFT JOIN ranks USING (rank)
WINDOW peers AS (PARTITION BY {by})
ORDER BY ratio DESC NULLS LAST LIMIT 1000"""


def _between(column: str, choice: HeatChoice) -> str:
    return "" if choice.steps is None else f" AND {column} BETWEEN {choice.steps[0]} AND {choice.steps[1]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _from_spans(choice: HeatChoice) -> str:
    if choice.metric == TRANSFER:
        rows = transfer_sql(choice.segment, choice.steps)
        return f"SELECT rank, step, sum(total) / sum(spans) / 1e6 AS value FROM (\n{rows}\n) GROUP BY rank, step\n"
    column = f"{'self' if choice.metric in PERCENTILES else choice.metric}_ns"
    value = f"avg({column}) / 1e6"
    if choice.metric in PERCENTILES:
        value = f"quantile_cont({column}, {PERCENTILES[choice.metric] / 100:g}) / 1e6"
    condition = f" AND {column} IS NOT NULL"
    if choice.metric == "count":
        value, condition = "count(*)", ""
    return f"""  SELECT rank, step, {value} AS value
  FROM spans
  WHERE segment_name = {_quoted(choice.segment)} AND status = 'ok'
    AND step IS NOT NULL{condition}{_between("step", choice)}
  GROUP BY rank, step
"""


def _from_rollups(choice: HeatChoice, width: int) -> str:
    value, group = (
        f"sum({choice.metric}_sum_ns) / sum({choice.metric}_count) / 1e6 AS value",
        "GROUP BY rank, first_step\n",
    )
    if choice.metric == "count":
        value = f"sum(duration_count) / {width} AS value"
    if choice.metric in PERCENTILES:
        value, group = "self_bins, self_bin_counts", ""
    return f"""  SELECT rank, first_step AS step, {value}
  FROM rank_windows JOIN segments USING (segment)
  WHERE name = {_quoted(choice.segment)} AND window_steps = {width}{_between("first_step", choice)}
  {group}"""
