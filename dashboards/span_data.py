"""The Timeline page's data: which ranks and steps are shown, their spans as arrays, and arrows from send to receive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..collectors.store import Attempt, Store
from ..profiler.errors import MegascopeError, UsageError
from ..profiler.topology import Topology
from ..profiler.vocabulary import WAITING_KINDS
from .binary import pack
from .heat_data import place_text, placement_of
from .verdicts import hang_of, peer_axis, stragglers_of
from .view import View
from .workbench import Workbench

MAX_SPANS = 300_000
MAX_RANKS = 256
IN_FLIGHT = "in flight"
HOST, COMMUNICATION = "host", "comm"
"""Communication from the host gets a lane for each axis: it overlaps the work that it runs beside."""
WORK = {HOST, "compute", "default"}
"""Lanes of work: the first of a rank."""
ALONE = "rank"
"""The choice of axis that shows one rank only."""

_SPANS = """
    SELECT e.rank, e.step, e.microbatch, e.chunk, e.stream, e.thread, e.start_ns, e.duration_ns, e.self_ns,
        e.exposed_ns, e.clock, e."group", e.sequence, e.peer, e.size_bytes, e.status, s.name, s.kind, s.axis
    FROM events_aligned e LEFT JOIN segments s ON s.segment = e.segment
    WHERE list_contains(?, e.rank) AND e.step BETWEEN ? AND ?
    LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class SpanChoice:
    """What the Timeline shows, with the page's defaults filled in."""

    rank: int
    axis: str
    ranks: tuple[int, ...]
    steps: tuple[int, int]
    first_step: int
    last_step: int


def choose_spans(view: View, bench: Workbench, attempt: Attempt) -> SpanChoice:
    """Fill in what the view leaves open. Raises UsageError for ranks, axes or steps that the attempt does not have."""
    known = [int(rank) for rank in placement_of(bench, attempt).ranks]
    if not known:
        raise MegascopeError(f"Attempt {attempt.attempt} of {attempt.run} has no ranks yet: wait for its first data.")
    first, last, whole = bench.cached(("steps", attempt.run, attempt.attempt), lambda: _steps(bench.store, attempt))
    rank = (
        view.rank if view.rank is not None else (view.ranks[0] if view.ranks else _default_rank(bench, attempt, known))
    )
    absent = [each for each in (rank, *view.ranks) if each not in known]
    if absent:
        raise UsageError(f"The run has no data of rank {absent[0]}: its ranks are {known[0]} to {known[-1]}.")
    steps = view.steps or (whole, whole)
    if steps[0] > last or steps[1] < first:
        raise UsageError(f"The run has no data of step {steps[0]}: its steps are {first} to {last}.")
    axis = view.axis or ("" if view.ranks else peer_axis(attempt) or ALONE)
    ranks = view.ranks if view.ranks and not view.axis else _group(attempt, rank, axis)
    ranks = tuple(each for each in ranks if each in set(known))
    return SpanChoice(rank, axis, ranks, steps, first, last)


def _default_rank(bench: Workbench, attempt: Attempt, known: Sequence[int]) -> int:
    """Who is at the root of a hang, or else accused of being slow, if the analyses are done; else the first rank."""
    verdicts = (hang_of(bench, attempt, wait_s=0).value, stragglers_of(bench, attempt, wait_s=0).value)
    culprits = [culprit for verdict in verdicts if verdict is not None for culprit in verdict.culprits]
    accused = [rank for culprit in culprits for rank in culprit.ranks]
    return next((rank for rank in accused if rank in known), known[0])


def _group(attempt: Attempt, rank: int, axis: str) -> tuple[int, ...]:
    if axis == ALONE:
        return (rank,)
    if axis not in attempt.layout:
        raise UsageError(f"The mesh has no axis {axis!r}. Choose one of {', '.join([*attempt.layout, ALONE])}.")
    mesh = Topology.from_mapping(attempt.layout)
    return mesh.group(axis, rank) if rank < mesh.world_size else (rank,)


def _steps(store: Store, attempt: Attempt) -> tuple[int, int, int]:
    """First step, last step, and the newest step that all ranks have completed."""
    rows = store.query(
        "SELECT step, count(DISTINCT rank) AS ranks FROM steps GROUP BY step ORDER BY step", attempt=attempt
    ).to_pylist()
    if not rows:
        sql = "SELECT DISTINCT step, 1 AS ranks FROM events WHERE step IS NOT NULL ORDER BY step"
        rows = store.query(sql, attempt=attempt).to_pylist()
    if not rows:
        raise MegascopeError(f"Attempt {attempt.attempt} of {attempt.run} has no steps yet: wait for the first ones.")
    most = max(row["ranks"] for row in rows)
    whole = [row["step"] for row in rows if row["ranks"] == most]
    return rows[0]["step"], rows[-1]["step"], whole[-1]


def spans_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """Everything that the timeline's canvas needs; times are ns from the first start, NaN for what is missing.

    Spans come sorted by lane, start and longest first. Raises UsageError where the choice holds too many.
    """
    choice = choose_spans(view, bench, attempt)
    if len(choice.ranks) > MAX_RANKS:
        raise UsageError(f"The view has {len(choice.ranks)} ranks; the timeline draws {MAX_RANKS}. Name fewer ranks.")
    parameters = [list(choice.ranks), *choice.steps, MAX_SPANS + 1]
    spans = bench.store.query(_SPANS, parameters, attempt)
    if spans.num_rows > MAX_SPANS:
        raise UsageError(f"The view has more than {MAX_SPANS:,} spans. Choose fewer steps or fewer ranks.")
    spans = _with_in_flight(bench.store, attempt, choice, spans)
    if not spans.num_rows:
        raise MegascopeError(f"No spans of these ranks in steps {choice.steps[0]} to {choice.steps[1]}.")
    return _packed(bench, attempt, choice, spans)


def _packed(bench: Workbench, attempt: Attempt, choice: SpanChoice, spans: pa.Table) -> bytes:
    base = int(spans["start_ns"].combine_chunks().to_numpy(zero_copy_only=False).min())
    lanes, lane = _lanes(spans, choice.ranks)
    segments, segment = _coded(list(zip(*(spans[name].to_pylist() for name in ("name", "kind", "axis")), strict=True)))
    start = spans["start_ns"].to_numpy() - base
    duration = _floats(spans, "duration_ns")
    order = np.lexsort((-np.nan_to_num(duration), start, lane))
    arrays: dict[str, npt.NDArray[Any]] = {
        "lane": lane[order],
        "segment": segment[order],
        "start": start[order].astype(np.float64),
        "duration": duration[order],
    }
    for name, column in _FLOATS.items():
        arrays[name] = _floats(spans, column)[order]
    words: dict[str, list[Any]] = {}
    for name, plural in (("status", "statuses"), ("clock", "clocks")):
        words[plural], codes = _coded(spans[name].to_pylist())
        arrays[name] = codes[order].astype(np.uint8)
    arrays["arrow_from"], arrays["arrow_to"] = _arrows(spans.take(pa.array(order)))
    placement = placement_of(bench, attempt)
    meta = {
        "key": f"{attempt.run}|{attempt.attempt}|{choice.ranks}|{choice.steps}",
        "base_ns": str(base),
        "rank": choice.rank,
        "axis": choice.axis,
        "range": f"{choice.steps[0]}:{choice.steps[1]}",
        "lanes": lanes,
        "segments": [{"name": name or "unknown", "kind": kind or "", "axis": axis} for name, kind, axis in segments],
        "hosts": {rank: placement.host_of(rank) for rank in choice.ranks},
        "places": {rank: place_text(placement, rank) for rank in choice.ranks},
        "steps": _step_starts(bench.store, attempt, choice, base),
        **words,
    }
    return pack(meta, arrays)


_FLOATS = {
    "self": "self_ns",
    "exposed": "exposed_ns",
    "step": "step",
    "microbatch": "microbatch",
    "chunk": "chunk",
    "peer": "peer",
    "sequence": "sequence",
    "size": "size_bytes",
}


def _floats(spans: pa.Table, column: str) -> npt.NDArray[np.float64]:
    """A column as float64; NULL is NaN."""
    return np.asarray(spans[column].cast(pa.float64()).combine_chunks().to_numpy(zero_copy_only=False), np.float64)


def _coded(values: Sequence[Any]) -> tuple[list[Any], npt.NDArray[np.int32]]:
    """The distinct values in the order of their first use, and each value's index among them."""
    index: dict[Any, int] = {}
    codes = np.fromiter((index.setdefault(value, len(index)) for value in values), np.int32, len(values))
    return list(index), codes


def _lanes(spans: pa.Table, ranks: Sequence[int]) -> tuple[list[list[Any]], npt.NDArray[np.int32]]:
    """Lanes as [rank, label], by rank in the given order, then by stream and thread; and the lane of each span."""
    place = {rank: at for at, rank in enumerate(ranks)}
    streams = [
        (axis or COMMUNICATION) if (stream or HOST) == HOST and kind in WAITING_KINDS else stream or HOST
        for stream, kind, axis in zip(*(spans[name].to_pylist() for name in ("stream", "kind", "axis")), strict=True)
    ]
    threads = spans["thread"].to_pylist()
    keys = list(zip(spans["rank"].to_pylist(), streams, [thread or 0 for thread in threads], strict=True))
    several = {stream for stream in set(streams) if len({key[2] for key in keys if key[1] == stream}) > 1}
    found = sorted(set(keys), key=lambda key: (place[key[0]], key[1] == IN_FLIGHT, key[1] not in WORK, key[2], key[1]))
    number = {key: at for at, key in enumerate(found)}
    labels = [[rank, f"{stream} {thread}" if stream in several else stream] for rank, stream, thread in found]
    return labels, np.fromiter((number[key] for key in keys), np.int32, len(keys))


def _arrows(spans: pa.Table) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Indices of the spans of each send and of its receive: the same group, direction and sequence."""
    kinds, names = spans["kind"].to_pylist(), spans["name"].to_pylist()
    columns = [spans[name].to_pylist() for name in ("group", "rank", "peer", "sequence")]
    sends: dict[tuple[Any, ...], int] = {}
    receives: dict[tuple[Any, ...], int] = {}
    for at, (kind, name, group, rank, peer, sequence) in enumerate(zip(kinds, names, *columns, strict=True)):
        if kind != "p2p" or peer is None or sequence is None:
            continue
        if "recv" in name or "receive" in name:
            receives[group, peer, rank, sequence] = at
        else:
            sends[group, rank, peer, sequence] = at
    pairs = [(at, receives[key]) for key, at in sends.items() if key in receives]
    both = np.array(pairs, np.int32).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _step_starts(store: Store, attempt: Attempt, choice: SpanChoice, base: int) -> list[list[int]]:
    """Starts of the shown steps on the ranks' aligned clocks as [rank, step, ns from the base]."""
    if choice.steps[1] - choice.steps[0] > 500:
        return []
    rows = store.query(
        "SELECT rank, step, start_ns FROM steps WHERE list_contains(?, rank) AND step BETWEEN ? AND ?",
        [list(choice.ranks), *choice.steps],
        attempt,
    )
    return [[row["rank"], row["step"], row["start_ns"] - base] for row in rows.to_pylist()]


def _with_in_flight(store: Store, attempt: Attempt, choice: SpanChoice, spans: pa.Table) -> pa.Table:
    """Add what the shown ranks were in at their last heartbeat, while the attempt has not ended: begun, not ended."""
    if attempt.end_ns is not None and attempt.exit_reason == "finished":
        return spans
    rows = store.query(
        """WITH newest AS (
               SELECT rank, step, moment_ns, in_flight FROM heartbeats WHERE list_contains(?, rank)
               QUALIFY row_number() OVER (PARTITION BY rank ORDER BY moment_ns DESC) = 1)
           SELECT rank, step, moment_ns, unnest(in_flight, recursive := true) FROM newest
           WHERE step BETWEEN ? AND ?""",
        [list(choice.ranks), *choice.steps],
        attempt,
    ).to_pylist()
    if not rows:
        return spans
    more = [
        {
            **{name: row.get(name) for name in ("rank", "step", "microbatch", "group", "sequence", "peer", "kind")},
            "start_ns": row["begun_ns"],
            "duration_ns": max(0, row["moment_ns"] - row["begun_ns"]),
            "name": row["segment"],
            "stream": IN_FLIGHT,
            "thread": 0,
            "clock": "host",
            "status": IN_FLIGHT,
        }
        for row in rows
        if row["begun_ns"] is not None
    ]
    return pa.concat_tables([spans, pa.Table.from_pylist(more, schema=spans.schema)])
