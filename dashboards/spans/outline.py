"""The Timeline's coarse level: what every shown rank spent its time on, in columns of steps over the whole run.

From rollups; where there are none, from raw spans if they are not too many; else the steps alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt
from ...collectors.rollups.windows import WINDOW_STEPS
from ...profiler.errors import MegascopeError
from ...profiler.vocabulary import WAITING_KINDS, SegmentKind
from ..binary import pack
from ..heat.data import place_texts, placement_of
from ..span_clock import aligned_starts
from ..view import View
from ..workbench import Workbench
from .choice import SpanChoice, choose_spans
from .table import check_ranks

MOST_COLUMNS = 1200
"""More are not told apart on a screen."""

MOST_SPANS = 5_000_000
"""Raw spans that are added up where there are no rollups."""

KINDS = ("compute", "backward", "data", "optimizer", "other", "collective", "p2p")
"""What time is told apart by: work first, then waiting."""

_STEPS = """
    SELECT rank, step // {width} AS place, min(step) AS first_step, max(step) AS last_step,
        arg_min(start_ns, step) AS start_ns, max(start_ns + coalesce(duration_ns, 0)) AS end_ns
    FROM steps WHERE rank IN ({ranks}) GROUP BY ALL ORDER BY rank, place
"""
_WINDOWS = """
    SELECT rank, segment, first_step // {width} AS place, sum(self_sum_ns) AS self_ns,
        sum(exposed_sum_ns) AS exposed_ns, sum(duration_count) AS spans
    FROM rank_windows WHERE window_steps = {window} AND rank IN ({ranks}) GROUP BY ALL
"""
_SPANS = """
    SELECT rank, segment, step // {width} AS place, sum(self_ns) AS self_ns, sum(exposed_ns) AS exposed_ns,
        count(*) AS spans
    FROM events WHERE status = 'ok' AND step IS NOT NULL AND rank IN ({ranks}) GROUP BY ALL
"""


def has_outline(bench: Workbench, attempt: Attempt) -> bool:
    """Whether there is a coarse level at all: steps are stored."""
    return any(entry.rows for entry in bench.store.entries("steps", attempt))


def outline_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """Rows of ranks by columns of steps: ``rank`` (its place among ``meta.ranks``), ``first_step``, ``last_step``,
    ``start`` and ``end`` (ns from ``meta.base_ns``), each [K], and ``share`` [K x kinds] of `KINDS`, 0 to 1; NaN
    where nothing is stored of it.

    Work counts by its self time, communication by how long the rank's work waited for it; what is left was neither.
    Raises MegascopeError where no steps are stored, UsageError for too many ranks.
    """
    choice = choose_spans(view, bench, attempt)
    check_ranks(choice)
    key = ("outline", attempt.run, attempt.attempt, choice.ranks)
    return bench.cached(key, lambda: _payload(bench, attempt, choice))


def _payload(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> bytes:
    has_windows = any(entry.rows for entry in bench.store.entries("rank_windows", attempt))
    window, width = _width(choice, has_windows=has_windows)
    ranks = ", ".join(str(rank) for rank in choice.ranks)
    steps = bench.store.query(_STEPS.format(width=width, ranks=ranks), attempt=attempt)
    if not steps.num_rows:
        raise MegascopeError(f"No steps of these ranks are stored of {attempt.run}: choose other ranks.")
    rank = steps["rank"].to_numpy().astype(np.int32)
    start = aligned_starts(bench, attempt, rank, steps["start_ns"].to_numpy())
    length = (steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()).astype(np.float64)
    sums, per_step = _sums(bench, attempt, choice, steps["place"].to_numpy(), rank, window, width)
    base = int(start.min())
    place = {each: at for at, each in enumerate(choice.ranks)}
    share = np.divide(sums, length[:, None], out=np.zeros_like(sums), where=length[:, None] > 0)
    share /= np.fmax(1.0, share.sum(axis=1, keepdims=True))  # work of several threads may be longer than the step
    meta = {
        "base_ns": str(base),
        "ranks": list(choice.ranks),
        "places": place_texts(placement_of(bench, attempt), choice.ranks),
        "rank": choice.rank,
        "kinds": list(KINDS),
        "width": width,
        "source": "rollups" if has_windows else "spans",
        "spans_per_step": per_step,
        "first_step": choice.first_step,
        "last_step": choice.last_step,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "rank": np.array([place[each] for each in rank.tolist()], np.int32),
        "first_step": steps["first_step"].to_numpy().astype(np.float64),
        "last_step": steps["last_step"].to_numpy().astype(np.float64),
        "start": (start - base).astype(np.float64),
        "end": (start - base).astype(np.float64) + length,
        "share": share.astype(np.float32).reshape(-1),
    }
    return pack(meta, arrays)


def _width(choice: SpanChoice, *, has_windows: bool) -> tuple[int, int]:
    """Length of the windows that are read, and of a column, in steps."""
    steps = choice.last_step - choice.first_step + 1
    if not has_windows:
        return 1, max(1, -(-steps // MOST_COLUMNS))
    window = next((each for each in WINDOW_STEPS if steps <= each * MOST_COLUMNS), WINDOW_STEPS[-1])
    return window, window * max(1, -(-steps // (window * MOST_COLUMNS)))


def _sums(
    bench: Workbench,
    attempt: Attempt,
    choice: SpanChoice,
    places: npt.NDArray[np.int64],
    rank: npt.NDArray[np.int32],
    window: int,
    width: int,
) -> tuple[npt.NDArray[np.float64], float | None]:
    """Time of every row by kind, [K x kinds] ns, NaN where none is known; and spans of all shown ranks in a step
    (None: not known)."""
    sums = np.full((len(rank), len(KINDS)), np.nan)
    is_rolled_up = any(entry.rows for entry in bench.store.entries("rank_windows", attempt))
    spans = sum(entry.rows for entry in bench.store.entries("events", attempt))
    if not is_rolled_up and not 0 < spans <= MOST_SPANS:
        return sums, None
    sql = (_WINDOWS if is_rolled_up else _SPANS).format(
        width=width, window=window, ranks=", ".join(str(each) for each in choice.ranks)
    )
    rows = bench.store.query(sql, attempt=attempt)
    kinds = _kinds(bench, attempt)
    told = rows["exposed_ns"].null_count < rows.num_rows and (rows["exposed_ns"].fill_null(0).to_numpy() > 0).any()
    row_of = {key: at for at, key in enumerate(zip(rank.tolist(), places.tolist(), strict=True))}
    columns = (rows[name].to_pylist() for name in ("rank", "place", "segment", "self_ns", "exposed_ns"))
    for each_rank, place, segment, self_ns, exposed_ns in zip(*columns, strict=True):
        kind, waits = kinds.get(segment, ("other", False))
        at = row_of.get((each_rank, place))
        time_ns = exposed_ns if waits and told else self_ns
        if at is not None and time_ns is not None:
            if np.isnan(sums[at, 0]):
                sums[at] = 0.0
            sums[at, KINDS.index(kind)] += max(0, time_ns)
    steps = choice.last_step - choice.first_step + 1
    return sums, float(rows["spans"].to_numpy().sum()) / steps if rows.num_rows else None


def _kinds(bench: Workbench, attempt: Attempt) -> dict[int, tuple[str, bool]]:
    """Segment to one of `KINDS` and whether it waits for other ranks."""
    rows = bench.store.query("SELECT segment, name, kind FROM segments", attempt=attempt).to_pylist()
    return {row["segment"]: (_kind(str(row["name"]), str(row["kind"])), row["kind"] in WAITING_KINDS) for row in rows}


def _kind(name: str, kind: str) -> str:
    if kind == SegmentKind.COMPUTE:
        return "backward" if "backward" in name else "compute"
    return kind if kind in KINDS else "other"
