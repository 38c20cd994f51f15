"""The spans of some ranks and steps as arrays on the reference clock, in lanes: what the Timeline draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...collectors.reading.store import Attempt
from ...profiler.errors import UsageError
from ..span_clock import aligned_starts
from ..workbench import Workbench
from .choice import SpanChoice
from .flights import in_flight_columns
from .lanes import lanes_of
from .segment import Segment

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]

MAX_SPANS = 300_000
MAX_RANKS = 256
NO_GROUP = -1
"""Stands for a group that is not told, in arrays only."""

_SPANS = """
    SELECT rank, step, microbatch, chunk, segment, stream, thread, start_ns, duration_ns, self_ns, exposed_ns, clock,
        "group", "sequence", peer, size_bytes, status
    FROM events WHERE rank IN ({}) AND step BETWEEN ? AND ? LIMIT ?
"""

FLOATS = {
    "duration": ("duration_ns", np.float64),
    "self": ("self_ns", np.float64),
    "exposed": ("exposed_ns", np.float64),
    "step": ("step", np.float64),
    "microbatch": ("microbatch", np.float32),
    "chunk": ("chunk", np.float32),
    "peer": ("peer", np.float32),
    "sequence": ("sequence", np.float64),
    "size": ("size_bytes", np.float64),
}
"""Column of the payload to column of ``events`` and type; NaN is missing. Ranks and micro-batches fit float32 exactly
up to 16.7 million."""


@dataclass(frozen=True, slots=True)
class SpanTable:
    """N spans by lane, start, and the longest first.

    ``columns`` are arrays [N]: ``start`` in ns from ``base_ns`` (UTC, the first start), the names of `FLOATS`, and the
    integers ``rank``, ``lane``, ``segment``, ``group`` (`NO_GROUP`: none), ``status``, ``clock`` (the last two index
    ``words``). ``lanes`` are (rank, label).
    """

    base_ns: int
    lanes: tuple[tuple[int, str], ...]
    segments: tuple[Segment, ...]
    words: Mapping[str, Sequence[str]]
    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.columns["start"])

    def of_segments(self, flags: Sequence[bool]) -> npt.NDArray[np.bool_]:
        """Which spans execute a segment that is flagged, [N]."""
        return np.array(flags, bool)[self.columns["segment"]]

    def ends(self) -> FloatArray:
        """End of every span, [N]; its start where it was not measured."""
        ends: FloatArray = self.columns["start"] + np.nan_to_num(self.columns["duration"])
        return ends


def check_ranks(choice: SpanChoice) -> None:
    """Raise UsageError where there are more ranks than the timeline draws."""
    if len(choice.ranks) > MAX_RANKS:
        raise UsageError(f"The view has {len(choice.ranks)} ranks; the timeline draws {MAX_RANKS}. Name fewer ranks.")


def load_spans(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> SpanTable | None:
    """The chosen ranks' spans in the chosen steps, and what they are in now; None where there are none.

    Read once for a version of the store. Raises UsageError where the choice holds too many.
    """
    check_ranks(choice)
    key = ("spans", attempt.run, attempt.attempt, choice.ranks, choice.steps)
    return bench.cached(key, lambda: _load(bench, attempt, choice))


def _load(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> SpanTable | None:
    sql = _SPANS.format(", ".join(str(rank) for rank in choice.ranks))
    rows = bench.store.query(sql, [*choice.steps, MAX_SPANS + 1], attempt).combine_chunks()
    if rows.num_rows > MAX_SPANS:
        raise UsageError(f"The view has more than {MAX_SPANS:,} spans. Choose fewer steps or fewer ranks.")
    segments, codes = _segments(bench, attempt, rows)
    words: dict[str, list[str]] = {}
    columns: dict[str, Array] = {"segment": codes}
    for name in ("rank", "thread"):
        columns[name] = rows[name].fill_null(0).to_numpy().astype(np.int32)
    columns["group"] = rows["group"].fill_null(NO_GROUP).to_numpy()
    for name, (column, kind) in FLOATS.items():
        columns[name] = rows[column].cast(pa.float64()).to_numpy().astype(kind)
    for name in ("stream", "status", "clock"):
        words[name], columns[name] = _words(rows[name])
    starts = aligned_starts(bench, attempt, columns["rank"], rows["start_ns"].to_numpy())
    starts = in_flight_columns(bench, attempt, choice, segments, words, columns, starts)
    return _sorted(choice, segments, words, columns, starts) if len(starts) else None


def _sorted(
    choice: SpanChoice,
    segments: list[Segment],
    words: dict[str, list[str]],
    columns: dict[str, Array],
    starts: npt.NDArray[np.int64],
) -> SpanTable:
    base_ns = int(starts.min())
    columns["start"] = (starts - base_ns).astype(np.float64)
    lanes, columns["lane"] = lanes_of(choice.ranks, segments, words["stream"], columns)
    order = np.lexsort((-np.nan_to_num(columns["duration"]), columns["start"], columns["lane"]))
    kept = {name: values[order] for name, values in columns.items() if name not in {"stream", "thread"}}
    return SpanTable(base_ns, tuple(lanes), tuple(segments), words, kept)


def _segments(bench: Workbench, attempt: Attempt, rows: pa.Table) -> tuple[list[Segment], npt.NDArray[np.int32]]:
    """The segments that occur, and the place among them of every row's."""
    found, codes = np.unique(rows["segment"].to_numpy(), return_inverse=True)
    sql = "SELECT segment, name, kind, axis FROM segments"
    known = {row["segment"]: row for row in bench.store.query(sql, attempt=attempt).to_pylist()}
    named = [known.get(segment, {}) for segment in found.tolist()]
    segments = [Segment(row.get("name") or "unknown", row.get("kind") or "", row.get("axis")) for row in named]
    return segments, codes.reshape(-1).astype(np.int32)


def _words(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int32]]:
    """The distinct words of a column, and the place among them of every row's; a missing one is empty."""
    whole = column.fill_null("").combine_chunks()
    encoded = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    encoded = encoded.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int32)
