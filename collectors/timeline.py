"""The timeline of an attempt as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from ..profiler.errors import MegascopeError
from ..profiler.topology import stable_id
from ..profiler.vocabulary import WAITING_KINDS, SegmentKind
from .clocks.clocks import load_clocks
from .lanes import Lanes
from .reading.store import Attempt, Store

Progress = Callable[[int, int], None]
"""Called with the number of spans written and the number to write."""

_SPANS = """
    SELECT events.step, microbatch, chunk, stream, thread, coalesce(start_ns, host_start_ns) AS start_ns,
        duration_ns, self_ns, exposed_ns, "group",
        "sequence", peer, size_bytes, status, coalesce(segments.name, 'segment ' || events.segment) AS name,
        segments.kind AS kind, segments.axis AS axis
    FROM events_aligned events LEFT JOIN segments USING (segment)
    WHERE rank = ? AND {steps}
    ORDER BY start_ns, duration_ns DESC
"""

_FLOW_BITS = 52
"""Viewers in JavaScript keep no larger integer exact."""


def export_chrome(
    store: Store,
    attempt: Attempt,
    out: Path,
    *,
    ranks: Sequence[int] | None = None,
    steps: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the spans of ``ranks`` (None: all) in ``steps`` (first and last, both included) and return their number.

    Hosts whose clocks cannot be aligned are shown by their own, and are named in ``otherData``.

    A process is a rank, a thread one of its host threads or device streams, with communication apart; arrows lead from
    each send to its receive. Times are microseconds since the first span, whose UTC moment is in ``otherData``. A name
    that ends in .gz is compressed. Memory stays bounded: spans are streamed, rank by rank.

    Raises MegascopeError where there is nothing to write, and OSError where ``out`` cannot be written.
    """
    load_clocks(store, attempt)  # so that the view aligns by all that can be known
    chosen, total, first_ns = _select(store, attempt, ranks, steps)
    if total == 0:
        raise MegascopeError(
            f"Attempt {attempt.attempt} of run {attempt.run} has no spans of these ranks and steps in {store.root}: "
            "choose others."
        )
    temporary = out.with_name(out.name + ".tmp")
    try:
        with _open(temporary, compressed=out.suffix == ".gz") as file:
            written = _Export(store, attempt, file, first_ns, steps).write(chosen, total, progress)
        temporary.replace(out)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return written


@contextlib.contextmanager
def _open(path: Path, *, compressed: bool) -> Iterator[IO[str]]:
    if not compressed:
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    with gzip.open(path, "wb", compresslevel=4) as raw, TextIOWrapper(raw, encoding="utf-8") as file:
        yield file


def _steps_clause(steps: tuple[int, int] | None) -> tuple[str, list[object]]:
    return ("true", []) if steps is None else ("events.step BETWEEN ? AND ?", list(steps))


def _select(
    store: Store, attempt: Attempt, ranks: Sequence[int] | None, steps: tuple[int, int] | None
) -> tuple[list[int], int, int]:
    """The ranks that have spans, the number of spans, and the first start (ns, UTC)."""
    clause, parameters = _steps_clause(steps)
    rows = store.query(
        "SELECT rank, count(*) AS spans, min(coalesce(start_ns, host_start_ns)) AS first_ns "
        f"FROM events_aligned events WHERE {clause} GROUP BY rank ORDER BY rank",
        parameters,
        attempt,
    ).to_pylist()
    if ranks is not None:
        wanted = set(ranks)
        rows = [row for row in rows if row["rank"] in wanted]
    first_ns = min((row["first_ns"] for row in rows), default=0)
    return [row["rank"] for row in rows], sum(row["spans"] for row in rows), first_ns


class _Export:
    """One file being written."""

    def __init__(
        self, store: Store, attempt: Attempt, file: IO[str], first_ns: int, steps: tuple[int, int] | None
    ) -> None:
        self._store, self._attempt, self._file = store, attempt, file
        self._first_ns, self._steps = first_ns, steps
        self._separator = "\n"
        self._digits = 1

    def write(self, ranks: Sequence[int], total: int, progress: Progress | None) -> int:
        """Write the whole document; the number of spans."""
        self._file.write('{"traceEvents": [')
        places = {row["rank"]: row for row in self._store.read("ranks", self._attempt).to_pylist()}
        self._digits, written = len(str(max(ranks, default=0))), 0
        for index, rank in enumerate(ranks):
            self._describe_rank(rank, index, places.get(rank, {}))
            for count in self._write_rank(rank):
                written += count
                if progress is not None:
                    progress(written, total)
        about = {
            "run": self._attempt.run,
            "attempt": self._attempt.attempt,
            "first_span_utc_ns": str(self._first_ns),
            "hosts_on_a_clock_of_their_own": load_clocks(self._store, self._attempt).unaligned(
                place.get("host") for place in places.values()
            ),
        }
        self._file.write(f'\n], "displayTimeUnit": "ms", "otherData": {json.dumps(about)}}}\n')
        return written

    def _emit(self, event: str) -> None:
        self._file.write(self._separator + event)
        self._separator = ",\n"

    def _describe_rank(self, rank: int, index: int, place: dict[str, Any]) -> None:
        known = {"run", "attempt", "rank", "host", "local_rank", "device", "pid"}
        coordinates = " ".join(f"{axis}{value}" for axis, value in place.items() if axis not in known)
        label = f"rank {rank:0{self._digits}d}"  # Perfetto's viewer sorts by name what has as many spans
        name = " ".join(filter(None, (label, coordinates, place.get("host"))))
        self._metadata("process_name", rank, {"name": name})
        self._metadata("process_sort_index", rank, {"sort_index": index})

    def _metadata(self, name: str, rank: int, args: dict[str, Any], lane: int = 0) -> None:
        event = {"ph": "M", "name": name, "pid": rank, "tid": lane, "args": args}
        self._emit(json.dumps(event))

    def _write_rank(self, rank: int) -> Iterator[int]:
        """Write the spans of one rank; yields the number of spans of each piece."""
        lanes = Lanes()
        clause, parameters = _steps_clause(self._steps)
        sql = _SPANS.format(steps=clause)
        for batch in self._store.stream(sql, [rank, *parameters], self._attempt):
            for span in batch.to_pylist():
                self._write_span(rank, span, lanes)
            yield batch.num_rows
        for number, name in lanes.names().items():
            self._metadata("thread_name", rank, {"name": name}, number)
            self._metadata("thread_sort_index", rank, {"sort_index": number}, number)

    def _write_span(self, rank: int, span: dict[str, Any], lanes: Lanes) -> None:
        start_ns = span["start_ns"] - self._first_ns
        duration_ns = span["duration_ns"]
        lane = lanes.place(_lane_name(span), start_ns, start_ns + (duration_ns or 0))
        name, category = json.dumps(span["name"]), span["kind"] or "host"
        where = f'"pid": {rank}, "tid": {lane}, "ts": {_microseconds(start_ns)}'
        args = json.dumps(_args(span))
        if duration_ns is None:  # nothing was measured: a moment, not a slice without length
            self._emit(f'{{"ph": "i", "s": "t", "name": {name}, "cat": "{category}", {where}, "args": {args}}}')
            return
        length = f'"dur": {_microseconds(duration_ns)}'
        self._emit(f'{{"ph": "X", "name": {name}, "cat": "{category}", {where}, {length}, "args": {args}}}')
        if span["kind"] == SegmentKind.P2P and None not in (span["group"], span["sequence"], span["peer"]):
            self._write_arrow(rank, span, lane, start_ns, duration_ns)

    def _write_arrow(self, rank: int, span: dict[str, Any], lane: int, start_ns: int, duration_ns: int) -> None:
        """One end of the arrow from a send to its receive: both know group, direction and sequence."""
        is_send = "send" in span["name"]
        source, target = (rank, span["peer"]) if is_send else (span["peer"], rank)
        key = (str(span["group"]), str(source), str(target), str(span["sequence"]))
        identity = stable_id("arrow", *key) >> (63 - _FLOW_BITS)
        moment_ns = start_ns if is_send else start_ns + max(0, duration_ns - 1)
        where = f'"pid": {rank}, "tid": {lane}, "ts": {_microseconds(moment_ns)}'
        end = '"ph": "s"' if is_send else '"ph": "f", "bp": "e"'
        self._emit(f'{{{end}, "id": {identity}, "name": "p2p", "cat": "p2p", {where}}}')


def _lane_name(span: dict[str, Any]) -> str:
    """Work lies on its thread or stream; communication beside it, an axis a lane, since it overlaps work."""
    stream, thread = span["stream"] or "host", span["thread"]
    place = f"thread {thread}" if stream == "host" and thread is not None else stream
    if span["kind"] not in WAITING_KINDS:
        return place
    return f"{place} {span['axis'] or span['kind']} communication"


def _microseconds(nanoseconds: int) -> str:
    """Exact microseconds: a float would lose the nanoseconds of a long run."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


_COPIED = ("step", "microbatch", "chunk", "group", "sequence", "peer")


def _args(span: dict[str, Any]) -> dict[str, Any]:
    """What a viewer shows of a selected slice; what is unknown is left out."""
    args = {name: span[name] for name in _COPIED if span[name] is not None}
    if "group" in args:
        args["group"] = str(args["group"])  # 63 bits: more than a viewer's numbers hold
    for name in ("self_ns", "exposed_ns"):
        if span[name] is not None:
            args[name.replace("_ns", "_ms")] = span[name] / 1e6
    if span["size_bytes"] is not None:
        args["bytes"] = span["size_bytes"]
    return args | {"status": span["status"]}
