"""`align`: the clocks of all hosts aligned again, from the ends of shared operations over a whole run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..collectors.clocks.alignment import align_hosts
from ..collectors.clocks.pairs import Ends
from ..collectors.clocks.samples import OPERATIONS_PER_STEP, SharedGroups, find_shared_groups, read_step_times
from ..collectors.clocks.update import Window, offset_rows, windows_of
from ..collectors.reading.store import Attempt
from .engines import Engine, Question
from .folders import new_folder
from .scope import Scope

ROWS_AT_ONCE = 20_000_000
"""Ends in memory: some 50 bytes each."""

_ENDS = """
    WITH found AS (
        SELECT sampled.sample, events."group" AS of_group, members.host, events.rank, events.step, events.sequence,
            events.peer, events.duration_ns, events.start_ns + events.duration_ns AS end_ns,
            CASE WHEN kinds.kind <> 'p2p' THEN 0
                WHEN HOLDS_TEXT(kinds.name, 'recv') OR HOLDS_TEXT(kinds.name, 'receive') THEN 2 ELSE 1 END AS side
        FROM events
        JOIN members ON members.of_group = events."group" AND members.rank = events.rank
            AND members.attempt = events.attempt
        JOIN kinds ON kinds.segment = events.segment AND kinds.attempt = events.attempt
        JOIN sampled ON sampled.step = events.step AND sampled.attempt = events.attempt
        WHERE {where} AND events.duration_ns IS NOT NULL AND events.sequence IS NOT NULL
            AND (kinds.kind <> 'p2p' OR events.peer IS NOT NULL)
    ), numbered AS (
        SELECT *, row_number() OVER (PARTITION BY sample, of_group, host, step, side ORDER BY sequence, rank) AS place
        FROM found
    )
    SELECT sample, dense_rank() OVER (PARTITION BY sample ORDER BY of_group, sequence,
            coalesce(CASE side WHEN 1 THEN rank WHEN 2 THEN peer END, -1)) AS operation,
        host, end_ns, side, duration_ns
    FROM numbered WHERE place <= {most}
"""


@dataclass(frozen=True, slots=True)
class _Sample:
    """A window of time of an attempt, and the steps of it that are looked at."""

    attempt: Attempt
    window: Window
    groups: SharedGroups
    steps: list[int]

    @property
    def rows(self) -> int:
        """Ends at most."""
        return int(self.groups.members.num_rows) * len(self.steps) * OPERATIONS_PER_STEP


def find_alignment(scope: Scope, engine: Engine, folder: Path | None) -> dict[str, Any]:
    """Offsets of every host in every window of time, from raw spans, beside the store's own.

    As many windows are asked for at once as have some `ROWS_AT_ONCE` ends. ``folder`` gets the offsets as rows of
    ``clock_offsets``. Attempts of one host need none, and are left out.
    """
    rows: list[dict[str, Any]] = []
    windows = 0
    for samples in _batches(_samples(scope)):
        windows += len(samples)
        ends = engine.ask(_question(scope, samples)).sort_by("sample")
        bounds = np.searchsorted(ends["sample"].to_numpy(), np.arange(len(samples) + 1)).tolist()
        for sample, first, last in zip(samples, bounds, bounds[1:], strict=False):
            rows += _aligned(ends.slice(first, last - first), sample)
    if folder is not None and rows:
        with new_folder(folder) as growing:
            pq.write_table(pa.Table.from_pylist(rows), growing / "clock_offsets.parquet", compression="zstd")
    saved = folder is not None and bool(rows)
    return {
        "windows": windows,
        "hosts": _beside_stored(scope, rows),
        "saved_rows": len(rows) if saved else None,
        "saved_to": str(folder) if saved else None,
    }


def _samples(scope: Scope) -> Iterator[_Sample]:
    for one in scope.attempts:
        groups = find_shared_groups(scope.store, one)
        times = read_step_times(scope.store, one) if len(groups.hosts) > 1 else None
        if times is None or not len(times.step):
            continue
        for window in windows_of(int(times.start_ns.min()), int(times.end_ns.max())):
            steps = times.chosen(*window)
            if steps:
                yield _Sample(one, window, groups, steps)


def _batches(samples: Iterator[_Sample]) -> Iterator[list[_Sample]]:
    """One after the other, as many together as are small enough."""
    held: list[_Sample] = []
    for sample in samples:
        if held and sum(one.rows for one in held) + sample.rows > ROWS_AT_ONCE:
            yield held
            held = []
        held.append(sample)
    if held:
        yield held


def _question(scope: Scope, samples: list[_Sample]) -> Question:
    attempts = {sample.attempt.attempt: sample for sample in samples}.values()
    members = [_with(one.attempt, one.groups.members.rename_columns({"group": "of_group"})) for one in attempts]
    kinds = [_with(one.attempt, _kinds(scope, one.attempt)) for one in attempts]
    sampled = [
        _with(one.attempt, pa.table({"sample": pa.array([at] * len(one.steps), pa.int64()), "step": one.steps}))
        for at, one in enumerate(samples)
    ]
    small = {"members": members, "kinds": kinds, "sampled": sampled}
    # Files without any of the steps are passed over by their own statistics.
    between = f"events.step BETWEEN {min(one.steps[0] for one in samples)} AND {max(one.steps[-1] for one in samples)}"
    sql = _ENDS.format(where=f"{scope.where()} AND {between}", most=OPERATIONS_PER_STEP)
    return Question(sql, {name: pa.concat_tables(tables) for name, tables in small.items()})


def _with(attempt: Attempt, rows: pa.Table) -> pa.Table:
    return rows.append_column("attempt", pa.array([attempt.attempt] * rows.num_rows, pa.int32()))


def _kinds(scope: Scope, attempt: Attempt) -> pa.Table:
    """A broadcast's root is done before the others: its ends tell nothing."""
    return scope.store.query(
        "SELECT segment, kind, name FROM segments WHERE kind IN ('collective', 'p2p') "
        "AND NOT contains(name, 'broadcast')",
        attempt=attempt,
    )


def _aligned(ends: pa.Table, sample: _Sample) -> list[dict[str, Any]]:
    columns = [ends[name].to_numpy().astype(np.int64) for name in _COLUMNS]
    found = align_hosts(Ends(*columns), len(sample.groups.hosts))
    rows = [] if found is None else offset_rows(found.within(*sample.window), sample.groups.hosts, {})
    return [{"run": sample.attempt.run, "attempt": sample.attempt.attempt, **row} for row in rows]


_COLUMNS = ("operation", "host", "end_ns", "side", "duration_ns")


def _beside_stored(scope: Scope, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each attempt and host the newest offset, and the store's at the nearest moment."""
    newest: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        newest[row["attempt"], row["host"]] = row
    found = []
    for (number, host), row in newest.items():
        attempt = next(one for one in scope.attempts if one.attempt == number)
        stored = scope.store.query(
            "SELECT offset_ns, uncertainty_ns FROM clock_offsets WHERE host = ? ORDER BY abs(moment_ns - ?) LIMIT 1",
            [host, row["moment_ns"]],
            attempt,
        ).to_pylist()
        found.append(
            {
                "attempt": number,
                "host": host,
                "offset_ns": row["offset_ns"],
                "drift_ppb": row["drift_ppb"],
                "uncertainty_ns": row["uncertainty_ns"],
                "stored_offset_ns": stored[0]["offset_ns"] if stored else None,
                "stored_uncertainty_ns": stored[0]["uncertainty_ns"] if stored else None,
            }
        )
    return found
