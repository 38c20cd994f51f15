"""The Timeline page's data: the spans of the shown ranks and steps as arrays, and arrows from send to receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..collectors.store import Attempt
from ..profiler.errors import MegascopeError, UsageError
from ..profiler.vocabulary import WAITING_KINDS
from .absence import why_no_spans
from .alignment import SAME_CLOCK, clocks_of
from .binary import pack
from .heat_data import place_texts, placement_of
from .span_choice import SpanChoice, choose_spans
from .view import View
from .workbench import Workbench

MAX_SPANS = 300_000
MAX_RANKS = 256
IN_FLIGHT = "in flight"
HOST, COMMUNICATION = "host", "comm"
"""Communication from the host gets a lane for each axis: it overlaps the work that it runs beside."""
WORK = {HOST, "compute", "default"}
"""Lanes of work: the first of a rank."""

_SPANS = """
    SELECT e.rank, e.step, e.microbatch, e.chunk, e.stream, e.thread, coalesce(e.start_ns, e.host_start_ns) AS start_ns,
        e.duration_ns, e.self_ns, e.exposed_ns, e.clock, e."group", e.sequence, e.peer, e.size_bytes, e.status,
        s.name, s.kind, s.axis
    FROM events_aligned e LEFT JOIN segments s ON s.segment = e.segment
    WHERE list_contains(?, e.rank) AND e.step BETWEEN ? AND ?
    LIMIT ?
"""


def spans_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """Everything that the timeline's canvas needs; times are ns from the first start, NaN for what is missing.

    Spans come sorted by lane, start and longest first. Raises UsageError where the choice holds too many.
    """
    choice = choose_spans(view, bench, attempt)
    if len(choice.ranks) > MAX_RANKS:
        raise UsageError(f"The view has {len(choice.ranks)} ranks; the timeline draws {MAX_RANKS}. Name fewer ranks.")
    clocks_of(bench, attempt)  # so that the spans are aligned by what is known of the clocks
    parameters = [list(choice.ranks), *choice.steps, MAX_SPANS + 1]
    spans = bench.store.query(_SPANS, parameters, attempt)
    if spans.num_rows > MAX_SPANS:
        raise UsageError(f"The view has more than {MAX_SPANS:,} spans. Choose fewer steps or fewer ranks.")
    spans = _with_in_flight(bench, attempt, choice, spans)
    if not spans.num_rows:
        raise MegascopeError(why_no_spans(bench, attempt, choice.steps))
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
        "hosts": _host_texts(bench, attempt, {rank: placement.host_of(rank) for rank in choice.ranks}),
        "places": dict(zip(choice.ranks, place_texts(placement, choice.ranks), strict=True)),
        "steps": _step_starts(bench, attempt, choice, base),
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


def _host_texts(bench: Workbench, attempt: Attempt, hosts: Mapping[int, str | None]) -> dict[int, str | None]:
    """The ranks' hosts, and of several hosts those that cannot be aligned with the others."""
    clocks = clocks_of(bench, attempt)
    if len(set(hosts.values())) <= 1:
        return dict(hosts)
    return {
        rank: host if host is None or rank in clocks else f"{host} (by its own clock)" for rank, host in hosts.items()
    }


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


def _step_starts(bench: Workbench, attempt: Attempt, choice: SpanChoice, base: int) -> list[list[int]]:
    """Starts of the shown steps on the reference host's clock as [rank, step, ns from the base]."""
    if choice.steps[1] - choice.steps[0] > 500:
        return []
    rows = bench.store.query(
        """SELECT rank, step, start_ns FROM steps
           WHERE list_contains(?, rank) AND step BETWEEN ? AND ? ORDER BY rank, step""",
        [list(choice.ranks), *choice.steps],
        attempt,
    )
    clocks = clocks_of(bench, attempt)
    return [
        [row["rank"], row["step"], clocks.get(row["rank"], SAME_CLOCK).aligned_ns(row["start_ns"]) - base]
        for row in rows.to_pylist()
    ]


def _with_in_flight(bench: Workbench, attempt: Attempt, choice: SpanChoice, spans: pa.Table) -> pa.Table:
    """Add what the shown ranks were in at their last heartbeat, while the attempt has not ended: begun, not ended."""
    if attempt.end_ns is not None and attempt.exit_reason == "finished":
        return spans
    rows = bench.store.query(
        """WITH newest AS (
               SELECT rank, step, moment_ns, in_flight FROM heartbeats WHERE list_contains(?, rank)
               QUALIFY row_number() OVER (PARTITION BY rank ORDER BY moment_ns DESC) = 1)
           SELECT rank, step, moment_ns, unnest(in_flight, recursive := true) FROM newest
           WHERE step BETWEEN ? AND ? ORDER BY rank""",
        [list(choice.ranks), *choice.steps],
        attempt,
    ).to_pylist()
    if not rows:
        return spans
    clocks = clocks_of(bench, attempt)
    more = [
        {
            **{name: row.get(name) for name in ("rank", "step", "microbatch", "group", "sequence", "peer", "kind")},
            "start_ns": clocks.get(row["rank"], SAME_CLOCK).aligned_ns(row["begun_ns"]),
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
