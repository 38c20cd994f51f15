"""What the spans of some steps depend on, as a short text: it stays the same while a run goes on after them."""

from __future__ import annotations

import hashlib

from ...collectors.reading.store import Attempt
from ..workbench import Workbench
from .choice import SpanChoice
from .flights import flights_of
from .steps import step_starts

_SPANS = "SELECT count(*) AS spans, max(start_ns) AS newest_ns FROM events WHERE step BETWEEN ? AND ?"
"""Of all ranks: a critical path runs through others than the shown ones."""


def spans_stamp(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> str:
    """Differs where the shown steps have other spans, begin at another aligned moment, or are still in flight."""

    def compute() -> str:
        spans = bench.store.query(_SPANS, list(choice.steps), attempt).to_pylist()
        starts = step_starts(bench, attempt, choice)
        moments = b"" if starts is None else starts.starts_ns.tobytes()
        text = repr((spans, flights_of(bench, attempt, choice), attempt.end_ns)).encode()
        return hashlib.blake2b(text + moments, digest_size=6).hexdigest()

    return bench.cached(("spans stamp", attempt.run, attempt.attempt, choice.ranks, choice.steps), compute)


def has_spans(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> bool:
    """Whether any shown rank has raw spans in the shown steps."""
    sql = "SELECT 1 FROM events WHERE list_contains(?, rank) AND step BETWEEN ? AND ? LIMIT 1"
    key = ("has spans", attempt.run, attempt.attempt, choice.ranks, choice.steps)
    return bench.cached(
        key, lambda: bool(bench.store.query(sql, [list(choice.ranks), *choice.steps], attempt).num_rows)
    )
