"""Spans to numbers: what each rank spent in a segment in each step, apart for every chunk."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..collectors.reading.store import Attempt, Store
from ..profiler.vocabulary import WAITING_KINDS, SegmentKind
from .peers import FloatArray, IntArray, peers_median

WORK_KINDS = tuple(kind for kind in SegmentKind if kind not in WAITING_KINDS | {SegmentKind.INIT, SegmentKind.COMPILE})
"""Kinds that are compared as work. Communication contains waiting; init and compile happen once, in any order."""

EVERY_RANK_KINDS = (SegmentKind.COMPUTE, SegmentKind.OPTIMIZER)
"""Kinds of work that every rank of a stage has in every step."""

NS_PER_MS = 1e6

_TIMES = {
    "self": "self_ns",
    "duration": "duration_ns",
    "exposed": "exposed_ns",
    "count": "1",
}
METRICS = tuple(_TIMES)


@dataclass(frozen=True, slots=True)
class SegmentCells:
    """One segment over ranks and steps.

    ``total_ms`` and ``count`` are [C, R, S] by chunk, rank and step, NaN and 0 where nothing was measured;
    ``first_ns`` and ``last_ns`` are the start of the first and the end of the last span, [R, S], as float64
    nanoseconds after ``base_ns``, on each recording host's clock. Where ``step_width`` is not 1, a column stands for so
    many steps from the given one on, and totals and counts are averages per step. ``scale`` [C, R, S] is what the
    totals were divided by, where ranks had unequally many tokens.
    """

    name: str
    kind: str
    ranks: IntArray
    steps: IntArray
    total_ms: FloatArray
    count: FloatArray
    first_ns: FloatArray
    last_ns: FloatArray
    base_ns: int
    step_width: int = 1
    scale: FloatArray | None = None

    def per_span_ms(self) -> FloatArray:
        """Mean over the spans of a step, [R, S]."""
        return _ratio(np.nansum(self.total_ms, axis=0), self.count.sum(axis=0))

    def per_step_ms(self) -> FloatArray:
        """Sum over the spans of a step, [R, S]; NaN where there are none."""
        total: FloatArray = np.where(self.count.sum(axis=0) > 0, np.nansum(self.total_ms, axis=0), np.nan)
        return total

    def compared(self, roles: IntArray, excluded: Any = None) -> tuple[FloatArray, FloatArray]:
        """Own and peers' mean time per span in milliseconds, each [R, S].

        Peers are compared chunk by chunk, and the chunks weighted by the rank's own spans; a chunk that no peer
        ran counts on neither side.
        """
        mean = _ratio(self.total_ms, self.count)
        reference = np.stack([peers_median(chunk, roles, excluded) for chunk in mean])
        weight = np.where(np.isfinite(reference) & np.isfinite(mean), self.count, 0.0)
        spans = weight.sum(axis=0)
        own = _ratio((np.nan_to_num(mean) * weight).sum(axis=0), spans)
        peers = _ratio((np.nan_to_num(reference) * weight).sum(axis=0), spans)
        return own, peers


def total_work(cells: Sequence[SegmentCells], roles: IntArray) -> FloatArray:
    """Own time per step over all given segments, [R, S] in ms, of ranks with the given peer groups [R].

    NaN where a rank has no time for compute or an optimizer that most of its peers have in that step: what was not
    measured is unknown, and not none. Other work is taken to be none: not every rank loads data or saves.
    """
    every = np.stack([one.per_step_ms() for one in cells])
    unknown = np.asarray(~np.isfinite(every).any(axis=0), np.bool_)
    for one, own in zip(cells, every, strict=True):
        if one.kind not in EVERY_RANK_KINDS:
            continue
        has = np.isfinite(own)
        for role in np.unique(roles):
            here = np.flatnonzero(roles == role)
            most = 2 * has[here].sum(axis=0) > len(here)
            unknown[here] |= ~has[here] & most
    total: FloatArray = np.where(unknown, np.nan, np.nansum(every, axis=0))
    return total


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    result: FloatArray = np.divide(above, below, out=np.full(np.broadcast(above, below).shape, np.nan), where=below > 0)
    return result


def load_cells(
    store: Store,
    attempt: Attempt,
    *,
    metric: str = "self",
    names: Collection[str] = (),
    kinds: Collection[str] = (),
    steps: tuple[int, int] | None = None,
) -> pa.Table:
    """Sums per rank, step, segment and chunk, straight from the spans; the columns that `pivot` takes.

    Spans whose times are not to be trusted (status other than ok) or missing are left out: they are not zero.
    """
    value = _TIMES[metric]
    condition = ["status = 'ok'", "step IS NOT NULL", "kind IS NOT NULL", f"{value} IS NOT NULL"]
    parameters: list[object] = []
    for column, wanted in (("segment_name", names), ("kind", kinds)):
        if wanted:
            condition.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            parameters += [str(item) for item in wanted]
    if steps is not None:
        condition.append("step BETWEEN ? AND ?")
        parameters += list(steps)
    sql = f"""
        SELECT rank, step, segment_name AS name, kind, coalesce(chunk, 0) AS chunk,
               count(*) AS spans, sum({value})::DOUBLE AS total,
               min(start_ns) AS first_ns, max(start_ns + coalesce(duration_ns, 0)) AS last_ns
        FROM spans WHERE {" AND ".join(condition)} GROUP BY ALL"""
    return store.query(sql, parameters, attempt=attempt)


def pivot(table: pa.Table, ranks: Sequence[int] | None = None) -> list[SegmentCells]:
    """Rows of `load_cells` (times in nanoseconds) to one `SegmentCells` a segment, by name and kind.

    ``ranks`` adds rows for ranks without data and leaves out all others.
    """
    names = np.asarray(table["name"].to_pylist(), dtype=object)
    kinds = np.asarray(table["kind"].to_pylist(), dtype=object)
    columns = {key: table[key].to_numpy() for key in ("rank", "step", "chunk", "spans", "total", "first_ns", "last_ns")}
    if ranks is not None:
        keep = np.isin(columns["rank"], np.asarray(ranks, np.int64))
        names, kinds = names[keep], kinds[keep]
        columns = {key: column[keep] for key, column in columns.items()}
    all_ranks = np.unique(columns["rank"] if ranks is None else np.asarray(ranks, np.int64)).astype(np.int64)
    all_steps = np.unique(columns["step"]).astype(np.int64)
    result = []
    for name, kind in sorted(set(zip(names, kinds, strict=True))):
        here = (names == name) & (kinds == kind)
        part = {key: column[here] for key, column in columns.items()}
        result.append(_cells(str(name), str(kind), part, all_ranks, all_steps))
    return result


def _cells(name: str, kind: str, part: dict[str, Any], ranks: IntArray, steps: IntArray) -> SegmentCells:
    chunks, chunk = np.unique(part["chunk"], return_inverse=True)
    row, column = np.searchsorted(ranks, part["rank"]), np.searchsorted(steps, part["step"])
    shape = (len(chunks), len(ranks), len(steps))
    total, count = np.full(shape, np.nan), np.zeros(shape)
    total[chunk, row, column] = part["total"] / NS_PER_MS
    count[chunk, row, column] = part["spans"]
    base_ns = int(part["first_ns"].min()) if len(part["first_ns"]) else 0
    first, last = np.full(shape[1:], np.inf), np.full(shape[1:], -np.inf)
    np.minimum.at(first, (row, column), (part["first_ns"] - base_ns).astype(float))
    np.maximum.at(last, (row, column), (part["last_ns"] - base_ns).astype(float))
    first[~np.isfinite(first)] = np.nan
    last[~np.isfinite(last)] = np.nan
    return SegmentCells(name, kind, ranks, steps, total, count, first, last, base_ns)
