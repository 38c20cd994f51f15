"""What a store recorded of a job's steps, as arrays: a row for each operation, a column for each rank and step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...collectors.reading.store import Attempt
from ...profiler.vocabulary import PIPELINE_AXES, REPLICA_AXES, WAITING_KINDS, SegmentKind
from ..peers import FloatArray, IntArray, Placement
from .places import Places, find_places
from .program import Node
from .reasons import CannotReplayError
from .tables import Tables

MAX_CELLS = 20_000_000
"""Operations x ranks of a stage x steps, at most: 160 MB for each array of times."""

NONE = -1
"""Stands for a chunk or micro-batch that a span does not have."""

OUTER_AXES = frozenset({*PIPELINE_AXES, *REPLICA_AXES, "world"})
"""Axes whose communication is an operation of its own, also where it begins inside a backward."""

OUTSIDE = (SegmentKind.EVAL, SegmentKind.INIT, SegmentKind.COMPILE)
"""Kinds that are no part of a training step."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Pairs of a segment and its parent, as they occur: ``root`` is the segment that the pair's work counts to."""

    names: dict[int, str]
    kinds: dict[int, str]
    axes: dict[int, str | None]
    root: dict[tuple[int, int], int]
    inner: tuple[str, ...]

    def is_transfer(self, segment: int) -> bool:
        """Whether it is communication."""
        return self.kinds[segment] in WAITING_KINDS


@dataclass(frozen=True, slots=True)
class Recording:
    """Spans of the operations ``nodes`` [N], times [N, M, D, S] in ns after ``base_ns``; NaN where there is none.

    ``end`` is that of the first span of the name in a step, ``last_end`` of the last (gradients travel in several
    buckets), ``own`` the time of work by itself. ``groups``: of a transfer's node, the group of each member and replica
    [M, D], 0 for none; ``group_ranks`` are their members. ``axes`` are those that the nodes communicate over.
    """

    nodes: tuple[Node, ...]
    axes: tuple[str | None, ...]
    start: FloatArray
    end: FloatArray
    last_end: FloatArray
    own: FloatArray
    places: Places
    steps: IntArray
    base_ns: int
    groups: dict[int, IntArray]
    group_ranks: dict[int, tuple[int, ...]]

    def of_steps(self, chosen: npt.NDArray[np.bool_]) -> Recording:
        """The same of some of the steps, [S]."""
        times = {name: getattr(self, name)[..., chosen] for name in ("start", "end", "last_end", "own", "steps")}
        return replace(self, **times)


def load_recording(
    store: Tables,
    attempt: Attempt,
    placement: Placement,
    steps: Sequence[int],
    scheduled: Collection[str],
    *,
    known: Collection[int] = (),
) -> Recording:
    """Read the given steps; ``known`` are ranks of other steps, of which these may have no span yet.

    Raises CannotReplayError where the ranks cannot be arranged as stages, members and replicas.
    """
    where = f"step IN ({', '.join(str(int(step)) for step in steps)}) AND status = 'ok' AND duration_ns IS NOT NULL"
    segments = find_segments(store, attempt, where, scheduled)
    table = store.query(_rows_sql(segments, where), attempt=attempt)
    if not table.num_rows:
        raise CannotReplayError("the steps have no timed span")
    recorded = set(np.unique(table["rank"].to_numpy()).tolist()) | set(known)
    places = find_places(attempt, placement, recorded, segments.inner)
    recording = _arrange(table, segments, places, np.array(sorted(steps), np.int64))
    return _with_groups(store, attempt, recording, segments, table)


def _rows_sql(segments: Segments, where: str) -> str:
    """A row for each rank, step and operation; communication by its chunk alone, wherever it was issued."""
    pairs = ", ".join(f"({segment}, {parent})" for segment, parent in segments.root) or "(0, 0)"
    transfers, collectives = (
        ", ".join(str(one) for one, kind in segments.kinds.items() if kind in kinds) or "0"
        for kinds in (WAITING_KINDS, {SegmentKind.COLLECTIVE})
    )
    return f"""
        SELECT rank, step, segment, CASE WHEN segment IN ({transfers}) THEN 0 ELSE coalesce(parent, 0) END AS parent,
            coalesce(chunk, {NONE}) AS chunk,
            CASE WHEN segment IN ({collectives}) THEN {NONE} ELSE coalesce(microbatch, {NONE}) END AS microbatch,
            min(start_ns) AS first_ns, arg_min(start_ns + duration_ns, start_ns) AS end_ns,
            max(start_ns + duration_ns) AS last_ns, sum(coalesce(self_ns, duration_ns))::DOUBLE AS own,
            any_value("group") AS "group"
        FROM events WHERE {where} AND (segment, coalesce(parent, 0)) IN ({pairs}) GROUP BY ALL"""


def find_segments(store: Tables, attempt: Attempt, where: str, scheduled: Collection[str]) -> Segments:
    """Which segments ran inside which, without communication inside work and without what is no part of a step.

    ``scheduled`` are the names of the schedule's actions: they are operations also where something encloses them.
    """
    rows = store.query("SELECT segment, name, kind, axis FROM segments", attempt=attempt).to_pylist()
    names = {row["segment"]: str(row["name"]) for row in rows}
    kinds = {row["segment"]: str(row["kind"]) for row in rows}
    axes = {row["segment"]: row["axis"] for row in rows}
    found = store.query(
        f"SELECT DISTINCT segment, coalesce(parent, 0) AS parent FROM events WHERE {where}", attempt=attempt
    ).to_pylist()
    pairs = [(row["segment"], row["parent"]) for row in found if row["segment"] in kinds]
    parents: dict[int, set[int]] = {}
    for segment, parent in pairs:
        parents.setdefault(segment, set()).add(parent)
    inner = {
        axes[segment]
        for segment, parent in pairs
        if kinds[segment] in WAITING_KINDS and kinds.get(parent) == SegmentKind.COMPUTE and axes[segment]
    } - OUTER_AXES
    root: dict[tuple[int, int], int] = {}
    for segment, parent in pairs:
        around = _around(segment, parent, parents)
        inside = parent != 0 and kinds[segment] in WAITING_KINDS and axes[segment] in inner
        if inside or any(one not in kinds or kinds[one] in OUTSIDE for one in around):
            continue
        if kinds[segment] in WAITING_KINDS:
            root[segment, parent] = root[segment, 0] = segment
        else:
            root[segment, parent] = next((one for one in around if names[one] in scheduled), around[-1])
    return Segments(names, kinds, axes, root, tuple(sorted(str(axis) for axis in inner)))


def _around(segment: int, parent: int, parents: dict[int, set[int]]) -> list[int]:
    """The segment of a pair's spans and those around it, from the inside out."""
    around = [segment]
    while parent and parent not in around:
        around.append(parent)
        above = parents.get(parent, {0})
        parent = 0 if 0 in above else min(above)
    return around


def _arrange(table: pa.Table, segments: Segments, places: Places, steps: IntArray) -> Recording:
    """Rows to arrays."""
    columns = {
        name: table[name].to_numpy().astype(np.int64) for name in table.column_names if name not in ("own", "group")
    }
    pairs, at = _distinct(columns["segment"], columns["parent"])
    root = np.array([segments.root.get((a, b), 0) for a, b in pairs.T.tolist()], np.int64)[at]
    lane = places.lanes()[columns["rank"]]
    width = places.ranks[0].size
    kept = (root != 0) & (lane >= 0)
    is_own = (root == columns["segment"])[kept]
    root, lane = root[kept], lane[kept]
    columns = {name: values[kept] for name, values in columns.items()}
    keys, node = _distinct(lane // width, root, columns["chunk"], columns["microbatch"])
    shape = (keys.shape[1], *places.ranks.shape[1:], len(steps))
    check_cells(shape)
    flat = (node * width + lane % width) * len(steps) + np.searchsorted(steps, columns["step"])
    base = int(columns["first_ns"].min())
    own = np.bincount(flat, table["own"].to_numpy()[kept], minlength=int(np.prod(shape))).reshape(shape)
    start, end, last = (np.full(int(np.prod(shape)), np.nan) for _ in range(3))
    mine = flat[is_own]
    for values, name in ((start, "first_ns"), (end, "end_ns"), (last, "last_ns")):
        values[mine] = columns[name][is_own] - base
    nodes = tuple(
        Node(int(stage), segments.names[segment], _known(chunk), _known(microbatch), segments.is_transfer(segment))
        for stage, segment, chunk, microbatch in keys.T.tolist()
    )
    axes = tuple(segments.axes[segment] for segment in keys[1].tolist())
    return Recording(
        nodes, axes, start.reshape(shape), end.reshape(shape), last.reshape(shape), own, places, steps, base, {}, {}
    )  # fmt: skip


def check_cells(shape: Sequence[int]) -> None:
    """Raise CannotReplayError where arrays of this shape, operations first, have more than `MAX_CELLS`."""
    if np.prod(shape, dtype=float) > MAX_CELLS:
        raise CannotReplayError(f"the ranks' steps have too little in common: {shape[0]:,} different operations")


def _distinct(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct rows of several columns [K, U], sorted, and which of them each row is [N].

    Columns are numbered and packed into one integer: sorting rows takes ten times as long.
    """
    packed = np.zeros(len(columns[0]), np.int64)
    levels = [np.unique(column) for column in columns]
    for column, level in zip(columns, levels, strict=True):
        packed = packed * len(level) + np.searchsorted(level, column)
    numbers, rows = np.unique(packed, return_inverse=True)
    parts = np.unravel_index(numbers, [len(level) for level in levels])
    return np.stack([level[part] for level, part in zip(levels, parts, strict=True)]), rows


def _known(value: int) -> int | None:
    return None if value == NONE else value


def _with_groups(
    store: Tables, attempt: Attempt, recording: Recording, segments: Segments, table: pa.Table
) -> Recording:
    """Note the groups of all collectives."""
    wanted = [one for one, kind in segments.kinds.items() if kind == SegmentKind.COLLECTIVE]
    wanted = [one for one in wanted if any(root == one for root in segments.root.values())]
    if not wanted:
        return recording
    table = table.filter(pc.and_(pc.is_in(table["segment"], pa.array(wanted)), pc.is_valid(table["group"])))
    if not table.num_rows:
        return recording
    _, which = _distinct(*(table[name].to_numpy().astype(np.int64) for name in ("rank", "segment", "chunk")))
    rows = table.take(pa.array(np.unique(which, return_index=True)[1])).to_pylist()  # one of each operation of a rank
    lanes, shape = recording.places.lanes(), recording.places.ranks.shape
    numbers = {(node.stage, node.name, node.chunk): number for number, node in enumerate(recording.nodes)}
    for row in rows:
        if row["rank"] >= len(lanes) or lanes[row["rank"]] < 0:
            continue
        stage, member, replica = np.unravel_index(int(lanes[row["rank"]]), shape)
        number = numbers.get((int(stage), segments.names[row["segment"]], _known(row["chunk"])))
        if number is not None:
            groups = recording.groups.setdefault(number, np.zeros(shape[1:], np.int64))
            groups[member, replica] = row["group"]
    known = {int(group) for groups in recording.groups.values() for group in np.unique(groups)}
    for row in store.query('SELECT "group", ranks FROM groups', attempt=attempt).to_pylist():
        if row["group"] in known:
            recording.group_ranks[row["group"]] = tuple(row["ranks"])
    return recording
