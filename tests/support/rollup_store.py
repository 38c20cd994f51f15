"""The same job three ways: with its spans and their rollups, with spans of some ranks only, with rollups only."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa

from megascope.collectors.reading.store import Attempt, Store
from megascope.collectors.rollups.rollup import window_rows
from megascope.collectors.writing.writer import TableWriter

_SMALL = ("runs", "ranks", "segments", "steps")


def rollups_of(store: Store, attempt: Attempt) -> pa.Table:
    """Rows of ``rank_windows`` for all events of an attempt."""
    columns = ("rank", "segment", "step", "duration_ns", "self_ns", "exposed_ns")
    rows = store.read("events", attempt, where="status = 'ok' AND step IS NOT NULL")
    return window_rows(*(np.asarray(rows[name].fill_null(-1).to_numpy(), np.int64) for name in columns))


def with_rollups(source: Store, root: Path, *, span_ranks: Collection[int] | None = None) -> Store:
    """A copy of a store's attempt at ``root``: rollups of all ranks and the spans of ``span_ranks`` (None: all)."""
    attempt = source.attempt()
    axes = list(attempt.layout)
    with TableWriter(root, "copy") as writer:
        for table in _SMALL:
            rows = source.read(table, attempt)
            if rows.num_rows:
                writer.write(table, attempt.run, attempt.attempt, rows, axes=axes if table == "ranks" else ())
        events = source.read("events", attempt)
        keep = np.ones(events.num_rows, bool) if span_ranks is None else np.isin(events["rank"], sorted(span_ranks))
        writer.write("events", attempt.run, attempt.attempt, events.filter(pa.array(keep)))
        writer.write("rank_windows", attempt.run, attempt.attempt, rollups_of(source, attempt))
        writer.commit()
    return Store(root)
