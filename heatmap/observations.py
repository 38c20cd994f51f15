"""Everything that the straggler analysis looks at, loaded from a store once: cells, places, step times, waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..collectors.reading.store import Attempt, Store
from .cells import EVERY_RANK_KINDS, NS_PER_MS, WORK_KINDS, SegmentCells, load_cells, pivot
from .clocks import RankClocks, load_rank_clocks
from .matrix import load_placement
from .peers import FloatArray, IntArray, Placement, column_median
from .rank_tokens import RankTokens, load_rank_tokens
from .source import Choice, Source, choose_source
from .window_cells import observe_windows, ranks_of
from .windows import COARSEST, segment_ids

MAX_WARM_UP = 2

MOST_JUDGED = 2_000_000
"""Raw spans from which on a verdict is from rollups, though pictures are drawn of more: they are read several times,
by all analyses together for about five seconds of a core."""

MAIN_KINDS = EVERY_RANK_KINDS
"""Kinds of work that every step has."""


@dataclass(frozen=True, slots=True)
class Observations:
    """The input of `judge`: all arrays over the same ranks [R] and steps [S].

    ``step_ms`` [S] is the median rank's step time. ``waits_ms`` [R, S] is the exposed time in communication, None
    where no communication was recorded at all. ``clocks`` are those of the ranks' hosts. ``missing`` are ranks that the
    job has and the store does not; ``warm_up`` the steps that were left out; ``unmeasured`` names and kinds of work
    without trusted times; ``stepless`` counts the spans that belong to no step, where none does. ``last_step`` is the
    last one recorded, ``asked`` the steps (first, last) that were asked for: of rollups only whole windows are read.
    ``source`` tells whether spans or rollups were read; of rollups, each of the ``steps`` is the first of a window, and
    all numbers are averages per step over it. ``left_out`` tells in words which ranks were not recorded on purpose.
    ``tokens`` are those of the ranks' own work, where they tell them and have unequally many.
    """

    cells: tuple[SegmentCells, ...]
    placement: Placement
    ranks: IntArray
    steps: IntArray
    step_ms: FloatArray
    waits_ms: FloatArray | None
    clocks: RankClocks
    missing: tuple[int, ...] = ()
    missing_count: int = 0
    warm_up: tuple[int, ...] = ()
    unmeasured: tuple[tuple[str, str], ...] = ()
    stepless: int = 0
    last_step: int | None = None
    asked: tuple[int, int] | None = None
    source: Choice = field(default_factory=lambda: Choice(Source.SPANS, 0))

    def last_of(self, step: int, width: int) -> int:
        """Last step of the column that begins with a step; the newest column may not be complete yet."""
        last = step + width - 1
        return last if self.last_step is None else min(last, self.last_step)

    left_out: str | None = None
    tokens: RankTokens | None = None


def observe(
    store: Store, attempt: Attempt, *, steps: tuple[int, int] | None = None, ranks: list[int] | None = None
) -> Observations:
    """Load what an attempt's ranks did in the given steps (first and last; all if None).

    ``ranks`` limits who is looked at, peers included. The first steps of an attempt are always left out. Rollups are
    read instead of spans where these are absent or too many (`choose_source`).
    """
    choice = choose_source(store, attempt, steps, MOST_JUDGED)
    if choice.source == Source.ROLLUPS:
        return _observe_rollups(store, attempt, choice, steps, ranks)
    warm_up = _warm_up(store, attempt)
    table = load_cells(store, attempt, kinds=[str(kind) for kind in WORK_KINDS], steps=steps)
    table = table.filter(pa.array(~np.isin(table["step"].to_numpy(), np.array(warm_up, np.int64))))
    placement = load_placement(store, attempt)
    known = {*placement.ranks.tolist(), *table["rank"].to_pylist()}
    chosen = sorted(known if ranks is None else known & set(ranks))
    cells = tuple(pivot(table, chosen))
    all_ranks = np.array(chosen, np.int64)
    all_steps = cells[0].steps if cells else np.zeros(0, np.int64)
    seen = _with_data(cells, all_ranks)
    missing = tuple(rank for rank, has in zip(chosen, seen, strict=True) if not has)
    absent = 0 if ranks is not None or attempt.left_out else max((attempt.world_size or 0) - len(chosen), 0)
    return Observations(
        cells,
        placement,
        all_ranks,
        all_steps,
        _step_times(store, attempt, all_ranks, all_steps, cells),
        _waits(store, attempt, all_ranks, all_steps),
        load_rank_clocks(store, attempt, [placement.host_of(rank) for rank in chosen]),
        missing,
        len(missing) + absent,
        tuple(step for step in warm_up if steps is None or steps[0] <= step <= steps[1]),
        _unmeasured(store, attempt),
        0 if cells else _stepless(store, attempt),
        int(all_steps[-1]) if len(all_steps) else None,
        steps,
        choice,
        attempt.left_out,
        load_rank_tokens(store, attempt, cells, all_ranks, all_steps, placement.roles(all_ranks), has_spans=True),
    )


def _observe_rollups(
    store: Store, attempt: Attempt, choice: Choice, steps: tuple[int, int] | None, ranks: list[int] | None
) -> Observations:
    """The same from windows of steps. The first window holds the first steps, and is left out if others remain."""
    placement = load_placement(store, attempt)
    known = ranks_of(store, attempt, placement)
    chosen = known if ranks is None else np.intersect1d(known, ranks)
    windows, warm_up = choice.first_steps(steps), np.zeros(0, np.int64)
    if len(windows) > 2 and choice.windows is not None and windows[0] == choice.windows[0]:
        warm_up = np.arange(windows[0], windows[0] + choice.step_width)
        windows = windows[1:]
    kinds = [str(kind) for kind in WORK_KINDS]
    found = observe_windows(store, attempt, chosen, windows, kinds, choice.step_width)
    seen = np.array(_with_data(found.cells, chosen), bool)
    missing = tuple(int(rank) for rank in chosen[~seen])
    absent = 0 if ranks is not None or attempt.left_out else max((attempt.world_size or 0) - len(chosen), 0)
    return Observations(
        found.cells,
        placement,
        chosen,
        found.first_steps,
        found.step_ms,
        found.waits_ms,
        RankClocks.of_one_host(len(chosen)),  # when spans began is not in rollups: there is nothing to align
        missing,
        len(missing) + absent,
        tuple(int(step) for step in warm_up),
        _never_ok(store, attempt),
        last_step=found.last_step,
        asked=steps,
        source=choice,
        left_out=attempt.left_out,
        tokens=load_rank_tokens(
            store, attempt, found.cells, chosen, found.first_steps, placement.roles(chosen), has_spans=choice.is_whole
        ),
    )


def _with_data(cells: tuple[SegmentCells, ...], ranks: IntArray) -> list[bool]:
    seen = np.zeros(len(ranks), bool)
    for one in cells:
        seen |= (one.count.sum(axis=0) > 0).any(axis=1)
    return [bool(has) for has in seen]


def _warm_up(store: Store, attempt: Attempt) -> list[int]:
    """First steps of an attempt: two, or one of fewer than a dozen; and those after them that take twice as long."""
    sql = "SELECT step, median(duration_ns) AS took FROM steps GROUP BY step ORDER BY step"
    table = store.query(sql, attempt=attempt)
    if not table.num_rows:
        found = store.query("SELECT DISTINCT step FROM events WHERE step IS NOT NULL ORDER BY 1", attempt=attempt)
        steps = [int(step) for step in found["step"].to_pylist()]
        return steps[: MAX_WARM_UP if len(steps) >= 12 else min(1, len(steps) - 1)]
    steps = [int(step) for step in table["step"].to_pylist()]
    took = np.array([np.nan if value is None else value for value in table["took"].to_pylist()], float)
    first = MAX_WARM_UP if len(steps) >= 12 else min(1, len(steps) - 1)
    usual = np.nanmedian(took[first:]) if np.isfinite(took[first:]).any() else np.inf
    while first < len(steps) // 10 and took[first] > 2 * usual:
        first += 1
    return steps[:first]


def _step_times(
    store: Store, attempt: Attempt, ranks: IntArray, steps: IntArray, cells: tuple[SegmentCells, ...]
) -> FloatArray:
    """Median over the ranks of each step's duration; where `steps` has none, from the first span to the last."""
    sql = "SELECT rank, step, duration_ns / 1e6 AS ms FROM steps WHERE duration_ns IS NOT NULL"
    table = store.query(sql, attempt=attempt)
    matrix = on_grid(table, "ms", ranks, steps)
    result = column_median(matrix)
    if cells:
        base_ns = min(one.base_ns for one in cells)
        first = np.stack([one.first_ns + (one.base_ns - base_ns) for one in cells])
        last = np.stack([one.last_ns + (one.base_ns - base_ns) for one in cells])
        spans = np.where(np.isfinite(last).any(axis=0), _extreme(last, np.max) - _extreme(first, np.min), np.nan)
        result = np.where(np.isfinite(result), result, column_median(spans / NS_PER_MS))
    return result


def _extreme(values: FloatArray, pick: object) -> FloatArray:
    fill = -np.inf if pick is np.max else np.inf
    filled = np.where(np.isfinite(values), values, fill)
    result: FloatArray = filled.max(axis=0) if pick is np.max else filled.min(axis=0)
    return np.where(np.isfinite(result), result, np.nan)


def _waits(store: Store, attempt: Attempt, ranks: IntArray, steps: IntArray) -> FloatArray | None:
    table = store.query(
        """SELECT rank, step, count(*) AS spans, sum(exposed_ns) / 1e6 AS ms FROM spans
           WHERE kind IN ('collective', 'p2p') AND step IS NOT NULL GROUP BY ALL""",
        attempt=attempt,
    )
    return on_grid(table, "ms", ranks, steps) if table.num_rows else None


def on_grid(table: pa.Table, column: str, ranks: IntArray, steps: IntArray) -> FloatArray:
    """Rows of (rank, step, value) to a matrix [R, S]; what is not there is NaN."""
    result = np.full((len(ranks), len(steps)), np.nan)
    rank, step = table["rank"].to_numpy(), table["step"].to_numpy()
    keep = np.isin(rank, ranks) & np.isin(step, steps)
    row, place = np.searchsorted(ranks, rank[keep]), np.searchsorted(steps, step[keep])
    result[row, place] = np.asarray(table[column].to_numpy(zero_copy_only=False), float)[keep]
    return result


def _stepless(store: Store, attempt: Attempt) -> int:
    """Spans without a step, in an attempt that has no span with one."""
    table = store.query("SELECT count(*) AS spans FROM events HAVING count(step) = 0", attempt=attempt)
    return int(table["spans"][0].as_py()) if table.num_rows else 0


def _unmeasured(store: Store, attempt: Attempt) -> tuple[tuple[str, str], ...]:
    """Segments of work that ran, but none of whose spans has a time that can be trusted."""
    table = store.query(
        f"""SELECT segment_name AS name, kind FROM spans
            WHERE step IS NOT NULL AND kind IN ({", ".join(f"'{kind}'" for kind in WORK_KINDS)})
            GROUP BY segment_name, kind
            HAVING count(*) FILTER (status = 'ok' AND self_ns IS NOT NULL) = 0 ORDER BY 1, 2""",
        attempt=attempt,
    )
    return tuple((str(row["name"]), str(row["kind"])) for row in table.to_pylist())


def _never_ok(store: Store, attempt: Attempt) -> tuple[tuple[str, str], ...]:
    """The same where rollups are read, which hold spans of status ok alone: of the kinds that every step has."""
    known = segment_ids(store, attempt, kinds=[str(kind) for kind in MAIN_KINDS]).to_pylist()
    rolled = store.query(f"SELECT DISTINCT segment FROM rank_windows WHERE window_steps = {COARSEST}", attempt=attempt)
    has_rollups = set(rolled["segment"].to_pylist())
    measured = {(row["name"], row["kind"]) for row in known if row["segment"] in has_rollups}
    return tuple(sorted({(row["name"], row["kind"]) for row in known} - measured))
