"""`align`: the clocks of all hosts aligned again, from the ends of shared operations over a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..collectors.clock_alignment import align_hosts
from ..collectors.clock_pairs import Ends
from ..collectors.clock_samples import OPERATIONS_PER_STEP, SharedGroups, find_shared_groups, read_step_times
from ..collectors.clock_update import Window, offset_rows, windows_of
from ..collectors.store import Attempt
from .engines import Engine, Question
from .folders import new_folder
from .scope import Scope

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


def find_alignment(scope: Scope, engine: Engine, folder: Path | None) -> dict[str, Any]:
    """Offsets of every host in every window of time, all windows from raw spans in one pass, beside the store's own.

    ``folder`` gets them as rows of ``clock_offsets``. Attempts of one host need none, and are left out.
    """
    samples: list[tuple[Attempt, Window, SharedGroups]] = []
    members, kinds, sampled = [], [], []
    for one in scope.attempts:
        groups = find_shared_groups(scope.store, one)
        if len(groups.hosts) < 2:
            continue
        members.append(_with(one, groups.members.rename_columns({"group": "of_group"})))
        kinds.append(_with(one, _kinds(scope, one)))
        times = read_step_times(scope.store, one)
        for window in windows_of(int(times.start_ns.min()), int(times.end_ns.max())) if len(times.step) else ():
            steps = times.chosen(*window)
            if steps:
                number = pa.array([len(samples)] * len(steps), pa.int64())
                sampled.append(_with(one, pa.table({"sample": number, "step": pa.array(steps, pa.int64())})))
                samples.append((one, window, groups))
    if not samples:
        return {"windows": 0, "hosts": [], "saved_rows": None, "saved_to": None}
    small = {name: pa.concat_tables(rows) for name, rows in
             (("members", members), ("kinds", kinds), ("sampled", sampled))}  # fmt: skip
    ends = engine.ask(Question(_ENDS.format(where=scope.where(), most=OPERATIONS_PER_STEP), small))
    rows = [row for at, sample in enumerate(samples) for row in _aligned(ends, at, *sample)]
    if folder is not None:
        with new_folder(folder) as growing:
            pq.write_table(pa.Table.from_pylist(rows), growing / "clock_offsets.parquet", compression="zstd")
    return {
        "windows": len(samples),
        "hosts": _beside_stored(scope, rows),
        "saved_rows": None if folder is None else len(rows),
        "saved_to": None if folder is None else str(folder),
    }


def _with(attempt: Attempt, rows: pa.Table) -> pa.Table:
    return rows.append_column("attempt", pa.array([attempt.attempt] * rows.num_rows, pa.int32()))


def _kinds(scope: Scope, attempt: Attempt) -> pa.Table:
    """A broadcast's root is done before the others: its ends tell nothing."""
    return scope.store.query(
        "SELECT segment, kind, name FROM segments WHERE kind IN ('collective', 'p2p') "
        "AND NOT contains(name, 'broadcast')",
        attempt=attempt,
    )


def _aligned(
    ends: pa.Table, sample: int, attempt: Attempt, window: Window, groups: SharedGroups
) -> list[dict[str, Any]]:
    chosen = ends["sample"].to_numpy() == sample
    columns = [ends[name].to_numpy()[chosen].astype(np.int64) for name in _COLUMNS]
    found = align_hosts(Ends(*columns), len(groups.hosts))
    rows = [] if found is None else offset_rows(found.within(*window), groups.hosts, {})
    return [{"run": attempt.run, "attempt": attempt.attempt, **row} for row in rows]


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
