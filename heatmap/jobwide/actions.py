"""When the actions of the schedule really began: of a sample of ranks and steps, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...profiler.vocabulary import ActionKind
from ..cells import NS_PER_MS
from ..clocks import RankClocks
from ..observations import Observations
from ..peers import FloatArray, IntArray
from .replicas import replicas_of

MAX_REPLICAS = 8
MAX_STEPS = 16
"""What is sampled: an order that is not the scheduled one, or a barrier, is there in every step and on every rank."""

ROUNDING_NS = 10_000
"""A span that ends so little after another began came before it: times are rounded, on devices to 256 ns."""

COMPUTE = (str(ActionKind.FORWARD), str(ActionKind.BACKWARD))

Key = tuple[str, int, int]
"""Action, chunk and micro-batch."""


@dataclass(frozen=True, slots=True)
class StageActions:
    """The compute actions of a stage, in scheduled order: ``keys`` [A] of ``ranks`` [G] in ``steps`` [S].

    ``start_ms`` and ``idle_ms`` [G, S, A]: when an action began, on the reference host's clock and after a moment of
    the job's own, and for how long the rank had had nothing in flight before; NaN where a span is missing, and
    ``start_ms`` where a clock is not known. ``order`` [G, S, A] are the positions in the observed order.
    """

    stage: int
    keys: tuple[Key, ...]
    ranks: IntArray
    steps: IntArray
    start_ms: FloatArray
    idle_ms: FloatArray
    order: FloatArray
    uncertainty_ms: float


def scheduled_compute(store: Store, attempt: Attempt) -> dict[int, list[Key]]:
    """The compute actions of each stage in scheduled order."""
    rows = store.query(
        f"""SELECT stage, action, chunk, microbatch FROM schedule
            WHERE action IN {COMPUTE} AND microbatch IS NOT NULL ORDER BY stage, position""",
        attempt=attempt,
    ).to_pylist()
    result: dict[int, list[Key]] = {}
    for row in rows:
        result.setdefault(row["stage"], []).append((row["action"], row["chunk"] or 0, row["microbatch"]))
    return result


def observed_actions(
    store: Store,
    attempt: Attempt,
    seen: Observations,
    scheduled: Mapping[int, list[Key]],
    steps: IntArray | None = None,
) -> list[StageActions]:
    """What a sample of the ranks of every stage did; a stage whose spans carry no micro-batches is left out.

    ``steps`` are ascending; None: a sample of those observed.
    """
    ranks, stages = _sample(seen)
    if steps is None:
        steps = seen.steps[np.unique(np.linspace(0, len(seen.steps) - 1, MAX_STEPS).astype(int))]
    if not len(ranks) or not len(steps):
        return []
    table = _spans(store, attempt, ranks, steps)
    result = []
    for stage in sorted(scheduled):
        own = ranks[stages == stage]
        if len(own) and len(scheduled[stage]) > 1:
            found = _of_stage(table, seen, stage, scheduled[stage], own, steps)
            if np.isfinite(found.idle_ms).any():
                result.append(found)
    return result


def _sample(seen: Observations) -> tuple[IntArray, IntArray]:
    """One rank of each stage and replica, of the first replicas, and their stages."""
    stages, replicas = seen.placement.roles(seen.ranks), replicas_of(seen)
    chosen = np.flatnonzero((stages >= 0) & (replicas >= 0) & (replicas < MAX_REPLICAS))
    _, first = np.unique(np.stack([stages[chosen], replicas[chosen]]), axis=1, return_index=True)
    rows = chosen[first]
    return seen.ranks[rows], stages[rows]


def _spans(store: Store, attempt: Attempt, ranks: IntArray, steps: IntArray) -> pa.Table:
    """Spans of the sample by rank and step, but sends, which end when somebody else has received, and what is inside
    a layer."""
    in_ranks, in_steps = (", ".join(str(int(one)) for one in ids) for ids in (ranks, steps))
    return store.query(
        f"""SELECT rank, step, segment_name AS name, kind = 'compute' AS works, coalesce(chunk, 0)::INT AS chunk,
                   coalesce(microbatch, -1)::INT AS microbatch, start_ns, start_ns + duration_ns AS end_ns
            FROM spans WHERE status = 'ok' AND duration_ns IS NOT NULL AND rank IN ({in_ranks})
                AND step IN ({in_steps}) AND NOT starts_with(segment_name, 'send_')
                AND coalesce(axis, '') <> 'tp' ORDER BY rank, step""",
        attempt=attempt,
    )


def _of_stage(
    table: pa.Table, seen: Observations, stage: int, keys: list[Key], ranks: IntArray, steps: IntArray
) -> StageActions:
    place = {key: at for at, key in enumerate(keys)}
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    base_ns = int(columns["start_ns"].min()) if table.num_rows else 0
    shape = (len(ranks), len(steps), len(keys))
    start, idle, order = (np.full(shape, np.nan) for _ in range(3))
    numbers = columns["rank"].astype(np.int64) * (int(steps[-1]) + 1) + columns["step"]
    for row, rank in enumerate(ranks.tolist()):
        for column, step in enumerate(steps.tolist()):
            number = rank * (int(steps[-1]) + 1) + step
            here = slice(*np.searchsorted(numbers, [number, number + 1]))
            starts = (columns["start_ns"][here] - base_ns).astype(float)
            ends = np.sort((columns["end_ns"][here] - base_ns).astype(float))
            named = zip(*(columns[name][here].tolist() for name in ("name", "chunk", "microbatch")), strict=True)
            for at, (key, works) in enumerate(zip(named, columns["works"][here].tolist(), strict=True)):
                position = place.get(key)
                if position is None or not works or start[row, column, position] <= starts[at]:
                    continue  # an evaluation may run the same again
                before = int(np.searchsorted(ends, starts[at] + ROUNDING_NS, side="right"))
                start[row, column, position] = starts[at]
                idle[row, column, position] = max(starts[at] - ends[before - 1], 0.0) / NS_PER_MS if before else np.nan
            known = np.flatnonzero(np.isfinite(start[row, column]))
            order[row, column, known] = np.argsort(np.argsort(start[row, column, known]))
    aligned, uncertainty_ms = _aligned(start, seen, ranks, base_ns)
    return StageActions(stage, tuple(keys), ranks, steps, aligned, idle, order, uncertainty_ms)


def _aligned(start: FloatArray, seen: Observations, ranks: IntArray, base_ns: int) -> tuple[FloatArray, float]:
    """Times [G, S, A] on the reference host's clock in ms, and by what an order of ranks may be wrong; NaN: unknown."""
    rows = np.searchsorted(seen.ranks, ranks)
    clocks = RankClocks(tuple(seen.clocks.hosts[row] for row in rows), seen.clocks.uncertainty_ns[rows])
    aligned = clocks.aligned_ns(start.reshape(len(ranks), -1), base_ns).reshape(start.shape) / NS_PER_MS
    return aligned, float(np.max(clocks.uncertainty_ns)) / NS_PER_MS


def action_name(key: Key) -> str:
    """An action in words."""
    action, chunk, microbatch = key
    return f"{action} of micro-batch {microbatch}" + (f" (chunk {chunk})" if chunk else "")


def place_sql(attempt: Attempt, stage: StageActions, at: int) -> str:
    """Median place, from 1, that an action has among the compute of a step."""
    number = "row_number() OVER (PARTITION BY rank, step ORDER BY start_ns) AS place"
    works = f"s.kind = 'compute' AND s.name IN {COMPUTE}"
    inner = f"SELECT x.*, s.name, s.kind, {number} {_sampled(attempt, stage)} AND {works}"
    return f"SELECT median(place) FROM ({inner}) WHERE {_is_action(stage.keys[at])}"


def idle_sql(attempt: Attempt, stage: StageActions, at: int) -> str:
    """Mean time in ms for which a rank has nothing in flight before an action."""
    columns = (
        "SELECT x.rank, x.step, s.name, s.kind, x.chunk, x.microbatch, x.start_ns, x.start_ns + x.duration_ns AS end_ns"
    )
    but = "NOT starts_with(s.name, 'send_') AND coalesce(s.axis, '') <> 'tp'"
    spans = f"{columns} {_sampled(attempt, stage)} AND {but}"
    own = f"SELECT * FROM ({spans}) WHERE {_is_action(stage.keys[at])}"
    return (
        f"SELECT avg(idle) FROM (SELECT greatest(o.start_ns - max(b.end_ns), 0) / 1e6 AS idle FROM ({own}) o "
        f"JOIN ({spans}) b ON b.rank = o.rank AND b.step = o.step AND b.end_ns <= o.start_ns + {ROUNDING_NS} "
        f"GROUP BY o.rank, o.step, o.start_ns)"
    )


def _sampled(attempt: Attempt, stage: StageActions) -> str:
    ranks, steps = (", ".join(str(int(one)) for one in ids) for ids in (stage.ranks, stage.steps))
    return (
        f"FROM events x JOIN segments s USING (run, attempt, segment) WHERE x.run = {literal(attempt.run)} "
        f"AND x.attempt = {attempt.attempt} AND x.status = 'ok' AND x.rank IN ({ranks}) AND x.step IN ({steps})"
    )


def _is_action(key: Key) -> str:
    return f"kind = 'compute' AND name = {literal(key[0])} AND coalesce(chunk, 0) = {key[1]} AND microbatch = {key[2]}"
