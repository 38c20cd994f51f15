"""The steps of an attempt as their rows come in, host by host: which are over, and how far any rank has got."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ...collectors.reading.duck import plain_integers
from .signs import StepRecord

if TYPE_CHECKING:
    import duckdb

SLOWEST_KEPT = 64
"""Of each step the median over ranks is kept, and the own times of so many of its slowest ranks."""

MOST_BEHIND = 20
"""A step that is not told of by all ranks is not waited for once a rank is so many steps further."""

LATE_STEPS = 16
"""A device's results are read a step or two behind: a step's row comes once more with them, so much later at most."""

NEW_STEPS = """
SELECT rank, step, start_ns, duration_ns, loss, grad_norm, tokens, written_ns FROM rows
WHERE step > ? AND duration_ns IS NOT NULL"""
"""What is read of table ``steps``: the rows of steps that are not over, or whose metrics may still come."""

_BY_STEP = f"""
SELECT step, median(duration_ns) AS duration_ns, min(start_ns) AS start_ns, count(*) AS ranks,
    max(start_ns + duration_ns) AS end_ns, max(tokens) AS tokens,
    coalesce(arg_min(loss, rank) FILTER (NOT isfinite(loss)), min(loss)) AS loss,
    coalesce(arg_min(grad_norm, rank) FILTER (NOT isfinite(grad_norm)), max(grad_norm)) AS grad_norm,
    min(rank) FILTER (NOT isfinite(loss) OR NOT isfinite(grad_norm)) AS first_bad_rank,
    map_from_entries(arg_max((rank, duration_ns), duration_ns, {SLOWEST_KEPT})) AS by_rank
FROM (SELECT * FROM pending QUALIFY row_number() OVER (PARTITION BY rank, step ORDER BY written_ns DESC NULLS LAST) = 1)
GROUP BY step ORDER BY step"""

_FURTHEST = """
SELECT step, start_ns + duration_ns AS end_ns FROM pending WHERE loss IS NOT NULL OR grad_norm IS NOT NULL
ORDER BY step DESC, end_ns LIMIT 1"""


class StepsSeen:
    """Takes over rows of `NEW_STEPS`. ``furthest``: the last step that any rank has completed, with its end (UTC, ns).

    ``last``: the last step that is over: all ranks have told of it, or of a later one, or one is far ahead. So a row
    that is lost hides no step after it. A step is over before its metrics have come: then it is told of once more.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._pending: pa.Table | None = None
        self._told: dict[int, str] = {}
        self.last: int | None = None
        self.furthest: int | None = None
        self.furthest_ns: int | None = None

    @property
    def after(self) -> int:
        """Rows of later steps than this are wanted."""
        return -1 if self.last is None else max(-1, self.last - LATE_STEPS)

    def add(self, rows: pa.Table, world_size: int | None) -> Iterator[tuple[StepRecord, int]]:
        """The steps that are over now, each with its end (UTC, ns), and those over before of which more is known."""
        self._pending = rows if self._pending is None else pa.concat_tables([self._pending, rows])
        found = self._query(_BY_STEP)
        for furthest in self._query(_FURTHEST):
            if self.furthest is None or furthest["step"] > self.furthest:
                self.furthest, self.furthest_ns = int(furthest["step"]), int(furthest["end_ns"])
        complete = [row["step"] for row in found if not world_size or row["ranks"] >= world_size]
        until = max([*complete, *(row["step"] for row in found if row["step"] <= self._far_behind())], default=-1)
        last = -1 if self.last is None else self.last
        over = [row for row in found if last < row["step"] <= until or self._has_more(row)]
        if over:
            self.last = max(last, *(int(row["step"]) for row in over))
        self._told.update((row["step"], _metrics(row)) for row in over)
        self._told = {step: told for step, told in self._told.items() if step > self.after}
        self._pending = self._pending.filter(pc.field("step") > self.after)
        for row in over:
            yield _record(row), int(row["end_ns"])

    def _has_more(self, row: dict[str, Any]) -> bool:
        """Whether a step that was told of has other metrics by now."""
        return row["step"] in self._told and self._told[row["step"]] != _metrics(row)

    def _far_behind(self) -> int:
        return -1 if self.furthest is None else self.furthest - MOST_BEHIND

    def _query(self, sql: str) -> list[dict[str, Any]]:
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.register("pending", self._pending)
            rows: list[dict[str, Any]] = plain_integers(cursor.sql(sql).to_arrow_table()).to_pylist()
            return rows


def _metrics(row: dict[str, Any]) -> str:
    """What a device computes of a step, as text: a NaN is the same as itself there."""
    return repr([row[name] for name in ("loss", "grad_norm", "tokens", "first_bad_rank")])


def _record(row: dict[str, Any]) -> StepRecord:
    return StepRecord(
        step=int(row["step"]),
        duration_ns=row["duration_ns"],
        start_ns=row["start_ns"],
        loss=row["loss"],
        grad_norm=row["grad_norm"],
        tokens=row["tokens"],
        by_rank_ns={int(rank): float(value) for rank, value in (row["by_rank"] or ())},
        first_bad_rank=row["first_bad_rank"],
    )
