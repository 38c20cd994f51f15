"""What the shown ranks were in at their last heartbeat: begun, not ended; drawn in a lane of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt
from ..alignment import SAME_CLOCK, clocks_of
from ..workbench import Workbench
from .choice import SpanChoice
from .segment import IN_FLIGHT, Segment

_FLIGHTS = """
    WITH newest AS (
        SELECT rank, step, moment_ns, in_flight FROM heartbeats WHERE list_contains(?, rank)
        QUALIFY row_number() OVER (PARTITION BY rank ORDER BY moment_ns DESC) = 1)
    SELECT rank, step, moment_ns, unnest(in_flight, recursive := true) FROM newest
    WHERE step BETWEEN ? AND ? ORDER BY rank
"""


def in_flight_columns(
    bench: Workbench,
    attempt: Attempt,
    choice: SpanChoice,
    segments: list[Segment],
    words: dict[str, list[str]],
    columns: dict[str, npt.NDArray[Any]],
    starts: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Add what is in flight to ``segments``, ``words`` and ``columns``, and return the starts with theirs.

    Nothing is added once the attempt has finished.
    """
    rows = flights_of(bench, attempt, choice)
    if not rows:
        return starts
    clocks = clocks_of(bench, attempt)
    added: dict[str, list[Any]] = {name: [] for name in columns}
    begun = []
    for row in rows:
        begun.append(clocks.get(row["rank"], SAME_CLOCK).aligned_ns(row["begun_ns"]))
        values = {
            **{name: row.get(name) for name in ("rank", "step", "microbatch", "group", "sequence", "peer")},
            "duration": max(0, row["moment_ns"] - row["begun_ns"]),
            "segment": _place(segments, row),
            "stream": _word(words["stream"], IN_FLIGHT),
            "status": _word(words["status"], IN_FLIGHT),
            "clock": _word(words["clock"], "host"),
        }
        for name, many in added.items():
            value = values.get(name)
            many.append(_absent(columns[name]) if value is None else value)
    for name, many in added.items():
        columns[name] = np.concatenate([columns[name], np.array(many, columns[name].dtype)])
    return np.concatenate([starts, np.array(begun, np.int64)])


def flights_of(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> list[dict[str, Any]]:
    """Rows of what the shown ranks were in at their last heartbeat, if that was in the shown steps."""
    if attempt.end_ns is not None and attempt.exit_reason == "finished":
        return []
    rows = bench.store.query(_FLIGHTS, [list(choice.ranks), *choice.steps], attempt).to_pylist()
    return [row for row in rows if row["begun_ns"] is not None]


def _absent(column: npt.NDArray[Any]) -> float | int:
    if column.dtype.kind == "f":
        return float("nan")
    return -1 if column.dtype == np.int64 else 0


def _place(segments: list[Segment], row: dict[str, Any]) -> int:
    """Place of a flight's segment, which is known by its name and kind only."""
    for at, known in enumerate(segments):
        if (known.name, known.kind) == (row["segment"], row["kind"] or ""):
            return at
    segments.append(Segment(row["segment"] or "unknown", row["kind"] or "", None))
    return len(segments) - 1


def _word(words: list[str], word: str) -> int:
    if word not in words:
        words.append(word)
    return words.index(word)
