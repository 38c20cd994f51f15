"""Rows of ``events`` as OpenTelemetry spans: a trace is a step, below it each rank, below that its spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from ...profiler.opening import versions
from ...profiler.topology import stable_id
from ...profiler.vocabulary import SegmentKind
from ...profiler.vocabulary import Status as SpanStatus
from .nesting import Row, parents

SCOPE = InstrumentationScope("megascope", versions().get("megascope", ""))

_COPIED = ("step", "microbatch", "chunk", "stream", "thread", "kind", "axis", "sequence", "peer", "size_bytes", "clock")
_UNKNOWN_PLACE = frozenset({"run", "attempt", "rank", "host", "local_rank", "device", "pid"})


@dataclass(frozen=True, slots=True)
class RankSpans:
    """The spans of one rank in one step, and when that began and ended there (UTC ns)."""

    spans: list[ReadableSpan]
    start_ns: int
    end_ns: int


class Traces:
    """Makes the spans of one attempt. Identities follow from what they stand for: sent twice, they are the same.

    ``places`` has the row of ``ranks`` of each rank; a receive is linked to its send where the sender is among
    ``chosen`` (None: all are).
    """

    def __init__(self, run: str, attempt: int, places: Mapping[int, Row], chosen: frozenset[int] | None = None) -> None:
        self._key, self._places, self._chosen = (run, str(attempt)), places, chosen
        self._job = Resource({"service.name": run, "megascope.run": run, "megascope.attempt": attempt})
        self._resources: dict[int, Resource] = {}

    def root(self, step: int, start_ns: int, end_ns: int) -> ReadableSpan:
        """The span of a whole step, over all ranks."""
        context = self._context(step, self._id("step", step))
        return self._span(f"step {step}", context, None, self._job, {"megascope.step": step}, start_ns, end_ns)

    def of_rank(self, step: int, rank: int, rows: Sequence[Row], whole: Row | None) -> RankSpans:
        """The spans of one rank and the one that holds them all; ``whole``: the row of ``steps``, if there is one.

        ``rows`` are as `nesting.parents` wants them, with aligned ``start_ns`` and the host's ``host_start_ns``.
        """
        top = self._context(step, self._id("rank", step, rank))
        start_ns, end_ns = _extent(rows, whole)
        attributes: dict[str, Any] = {"megascope.rank": rank, "megascope.step": step}
        resource = self._resource(rank)
        root = self._context(step, self._id("step", step))
        spans = [self._span(f"rank {rank}", top, root, resource, attributes, start_ns, end_ns)]
        contexts = [self._context(step, self._identity(step, rank, at, row)) for at, row in enumerate(rows)]
        for row, context, parent in zip(rows, contexts, parents(rows), strict=True):
            above = top if parent is None else contexts[parent]
            spans.append(self._of_row(row, context, above, resource))
        return RankSpans(spans, start_ns, end_ns)

    def _of_row(self, row: Row, context: SpanContext, parent: SpanContext, resource: Resource) -> ReadableSpan:
        is_lost = row["status"] in (SpanStatus.ABORTED, SpanStatus.REJECTED)
        return self._span(
            row["name"], context, parent, resource, _attributes(row), row["start_ns"],
            row["start_ns"] + max(0, row["duration_ns"] or 0), kind=_kind(row), links=list(self._links(row)),
            status=Status(StatusCode.ERROR, row["status"]) if is_lost else Status(),
        )  # fmt: skip

    def _links(self, row: Row) -> Iterator[Link]:
        source = _source(row)
        if source is None or source == row["rank"] or (self._chosen is not None and source not in self._chosen):
            return
        yield Link(self._context(row["step"], self._message(row, source, row["rank"])))

    def _identity(self, step: int, rank: int, at: int, row: Row) -> int:
        if _source(row) == rank:
            return self._message(row, rank, row["peer"])
        return self._id("span", step, rank, at)

    def _message(self, row: Row, source: int, target: int) -> int:
        return self._id("message", row["step"], row["group"], source, target, row["sequence"])

    def _id(self, *of: object) -> int:
        return stable_id("otlp", *self._key, *map(str, of)) or 1

    def _context(self, step: int, span_id: int) -> SpanContext:
        trace_id = self._id("trace", step) << 64 | self._id("trace, second half", step)
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def _resource(self, rank: int) -> Resource:
        known = self._resources.get(rank)
        if known is None:
            place = self._places.get(rank, {})
            found = {f"megascope.{axis}": place[axis] for axis in place if axis not in _UNKNOWN_PLACE}
            found |= {"host.name": place.get("host"), "process.pid": place.get("pid")}
            found |= {"megascope.device": place.get("device"), "service.instance.id": f"rank {rank}"}
            known = self._job.merge(Resource({name: value for name, value in found.items() if value is not None}))
            self._resources[rank] = known
        return known

    @staticmethod
    def _span(
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        resource: Resource,
        attributes: Mapping[str, Any],
        start_ns: int,
        end_ns: int,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
        status: Status | None = None,
    ) -> ReadableSpan:
        return ReadableSpan(
            name, context, parent, resource, attributes, links=links, kind=kind, instrumentation_scope=SCOPE,
            status=status or Status(), start_time=start_ns, end_time=end_ns,
        )  # fmt: skip


def _extent(rows: Sequence[Row], whole: Row | None) -> tuple[int, int]:
    """When a rank's step began and ended: as it told, on the clock of its spans, and at least as long as they are."""
    starts = [row["start_ns"] for row in rows]
    ends = [row["start_ns"] + max(0, row["duration_ns"] or 0) for row in rows]
    if whole is not None:
        offset_ns = rows[0]["start_ns"] - rows[0]["host_start_ns"] if rows else 0
        starts.append(whole["start_ns"] + offset_ns)
        ends.append(whole["start_ns"] + offset_ns + (whole["duration_ns"] or 0))
    return min(starts), max(ends)


def _attributes(row: Row) -> dict[str, Any]:
    """What is known of a span. Groups are texts: their 63 bits are more than a browser's numbers hold."""
    found: dict[str, Any] = {"megascope.rank": row["rank"], "megascope.segment": row["name"]}
    found |= {f"megascope.{name}": row[name] for name in _COPIED if row[name] is not None}
    if row["group"] is not None:
        found["megascope.group"] = str(row["group"])
    if row["group_kind"] is not None:
        found["megascope.group_kind"] = row["group_kind"]
    for name in ("self_ns", "exposed_ns"):
        if row[name] is not None:
            found[f"megascope.{name}"] = row[name]
    if row["is_aligned"] is False:
        found["megascope.clock_aligned"] = False
    if row["duration_ns"] is None:  # a span of OTLP has an end, so that one of no known length needs a word
        found["megascope.duration_known"] = False
    return found | {"megascope.status": row["status"]}


def _source(row: Row) -> int | None:
    """The sender of a message; None for what is none, or is not told whole."""
    if row["kind"] != SegmentKind.P2P or None in (row["group"], row["sequence"], row["peer"]):
        return None
    source = row["rank"] if "send" in row["name"] else row["peer"]
    return int(source)


def _kind(row: Row) -> SpanKind:
    if row["kind"] != SegmentKind.P2P:
        return SpanKind.INTERNAL
    return SpanKind.PRODUCER if "send" in row["name"] else SpanKind.CONSUMER
