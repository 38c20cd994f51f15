"""Steps of an attempt sent as OpenTelemetry traces, a step at a time, with an honest count."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from ...profiler.errors import MegascopeError
from ..clocks.clocks import load_clocks
from ..reading.store import Attempt, Store
from .sending import EndpointError, Sender
from .traces import Traces

BATCH_SPANS = 1000
"""Spans of one request: about half a MB before compression, below what collectors take by default."""

_SPANS = """
    SELECT rank, step, microbatch, chunk, stream, thread, events.segment, parent,
        coalesce(start_ns, host_start_ns) AS start_ns, start_ns IS NOT NULL AS is_aligned, host_start_ns,
        coalesce(enqueue_ns, host_start_ns) AS begun_ns, duration_ns, self_ns, exposed_ns,
        events."group", "sequence", peer, size_bytes, clock, status,
        coalesce(segments.name, 'segment ' || events.segment) AS name, segments.kind AS kind, segments.axis AS axis,
        groups.kind AS group_kind
    FROM events_aligned events LEFT JOIN segments USING (segment) LEFT JOIN groups ON groups."group" = events."group"
    WHERE {where}
    ORDER BY step, rank, begun_ns, duration_ns DESC NULLS FIRST
"""
_WHERE = "step BETWEEN ? AND ?"
_OF_RANKS = " AND list_contains(?, rank)"
_STEPS = "SELECT rank, step, start_ns, duration_ns FROM steps WHERE step = ?"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Sent:
    """What an endpoint took. ``spans_sent`` counts also those of whole steps and ranks, without ``spans_rejected``."""

    endpoint: str
    run: str
    attempt: int
    traces: int
    spans_sent: int
    spans_rejected: int
    hosts_on_a_clock_of_their_own: tuple[str, ...]


def export_otlp(
    store: Store,
    attempt: Attempt,
    sender: Sender,
    *,
    steps: tuple[int, int],
    ranks: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Sent:
    """Send the spans of ``ranks`` (None: all) in ``steps`` (first and last, both included); what was taken.

    Times are UTC ns of the reference clock; hosts that cannot be aligned with it keep their own, and are named.
    Memory is bounded by one rank's step and one batch. MegascopeError where there is nothing to send, and where the
    endpoint does not take it: that one says how much it had taken.
    """
    clocks = load_clocks(store, attempt)
    parameters: list[object] = [*steps, *([list(ranks)] if ranks is not None else [])]
    where = _WHERE + (_OF_RANKS if ranks is not None else "")
    counted = store.query(f"SELECT count(*) AS spans FROM events WHERE {where}", parameters, attempt)
    total = int(counted["spans"][0].as_py())
    if total == 0:
        raise MegascopeError(
            f"Attempt {attempt.attempt} of run {attempt.run} has no spans of these ranks and steps in {store.root}: "
            "choose others."
        )
    places = {int(row["rank"]): row for row in store.read("ranks", attempt).to_pylist()}
    traces = Traces(attempt.run, attempt.attempt, places, None if ranks is None else frozenset(ranks))
    batch = _Batch(sender, total, progress)
    rows = _rows(store, attempt, _SPANS.format(where=where), parameters)
    whole_steps: list[int] = []
    try:
        for step, found in itertools.groupby(rows, key=lambda row: int(row["step"])):
            _send_step(store, attempt, traces, batch, step, found)
            batch.flush()
            whole_steps.append(step)
    except EndpointError as error:
        done = f" ({len(whole_steps)} whole steps)" if whole_steps else ""
        raise MegascopeError(
            f"The endpoint {sender.url} does not take the spans ({error}): {sender.sent:,} were sent{done}, the rest "
            f"of the {total:,} in the store was not. Check it, or give another --endpoint."
        ) from error
    unaligned = clocks.unaligned(place.get("host") for place in places.values())
    counts = (len(whole_steps), sender.sent, sender.rejected)
    return Sent(sender.url, attempt.run, attempt.attempt, *counts, tuple(map(str, unaligned)))


def _rows(store: Store, attempt: Attempt, sql: str, parameters: Sequence[object]) -> Iterator[Mapping[str, Any]]:
    for piece in store.stream(sql, parameters, attempt):
        yield from piece.to_pylist()


def _send_step(
    store: Store, attempt: Attempt, traces: Traces, batch: _Batch, step: int, rows: Iterator[Mapping[str, Any]]
) -> None:
    """Send one trace: each rank as it comes, and the step above them once their extent is known."""
    whole = {int(row["rank"]): row for row in store.query(_STEPS, [step], attempt).to_pylist()}
    starts, ends = [], []
    for rank, found in itertools.groupby(rows, key=lambda row: int(row["rank"])):
        of_rank = traces.of_rank(step, rank, list(found), whole.get(rank))
        starts.append(of_rank.start_ns)
        ends.append(of_rank.end_ns)
        batch.add(of_rank.spans)
    batch.add([traces.root(step, min(starts), max(ends))])


class _Batch:
    """Spans that wait until there are enough for a request."""

    def __init__(self, sender: Sender, total: int, progress: Progress | None) -> None:
        self._sender, self._total, self._progress = sender, total, progress
        self._spans: list[ReadableSpan] = []

    def add(self, spans: Sequence[ReadableSpan]) -> None:
        """Add spans, and send what fills a request."""
        self._spans += spans
        while len(self._spans) >= BATCH_SPANS:
            self._send(BATCH_SPANS)

    def flush(self) -> None:
        """Send the rest."""
        if self._spans:
            self._send(len(self._spans))

    def _send(self, count: int) -> None:
        self._sender.send(self._spans[:count])
        del self._spans[:count]
        if self._progress is not None:
            self._progress(min(self._total, self._sender.sent + self._sender.rejected), self._total)
