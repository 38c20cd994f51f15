"""Rows on their way to the store: they stay here until a commit has made them valid."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...profiler.errors import MegascopeError
from ..tables.parquet import conform
from ..tables.schemas import TABLES, block_name
from ..writing.writer import TableWriter
from .observer import Observer

log = logging.getLogger(__name__)

UNFIT = (MegascopeError, pa.ArrowException, ValueError, TypeError, LookupError, OverflowError, AttributeError)
"""What data that is not as it should be may raise: reason to leave it out, never to stop."""

MAX_SAMPLES = 100_000
"""Heartbeats and health samples kept while the store cannot be written; beyond, the oldest go."""

_SAMPLED = frozenset({"heartbeats", "health", "hardware_events"})
_RANKED = frozenset(name for name, table in TABLES.items() if any(column.name == "rank" for column in table.columns))

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Whole:
    """A small table that is written again as a whole whenever it changes."""

    rows: Sequence[Row]
    axes: tuple[str, ...] = ()


class Outbox:
    """Rows of one attempt: appended ones, and small tables that replace what was written of them before.

    With ``replaces`` False small tables are added to what is there: readers take the newest row of each key. An
    ``observer`` is shown the rows of tables that grow.
    """

    def __init__(self, *, replaces: bool = True, observer: Observer | None = None) -> None:
        self._replaces, self._observer = replaces, observer
        self._appended: dict[str, list[Row]] = defaultdict(list)
        self._whole: dict[str, Whole] = {}
        self._written: dict[str, Whole] = {}
        self._said: set[str] = set()

    def append(self, table: str, rows: Iterable[Row]) -> None:
        """Add rows to a table that grows."""
        kept, count = self._appended[table], len(self._appended[table])
        kept.extend(rows)
        if self._observer is not None:
            self._observer.rows(table, kept[count:])
        if table in _SAMPLED:
            del kept[:-MAX_SAMPLES]

    def put(self, table: str, whole: Whole) -> None:
        """Set the whole of a small table; nothing happens if it is what was written already."""
        if self._written.get(table) == whole:
            self._whole.pop(table, None)
        else:
            self._whole[table] = whole

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self._whole and not any(self._appended.values())

    def write(self, writer: TableWriter, run: str, attempt: int) -> None:
        """Stage everything; rows that do not fit their table are left out.

        Raises OSError where the store cannot be written; nothing is forgotten.
        """
        for table, whole in self._whole.items():
            target = _Target(writer, table, run, attempt, whole.axes, self._replaces)
            self._write_blocks(target, whole.rows)
        for table, rows in self._appended.items():
            self._write_blocks(_Target(writer, table, run, attempt, (), False), rows)

    def _write_blocks(self, target: _Target, rows: Sequence[Row]) -> None:
        for block, found in _blocks(target.table, rows).items():
            try:
                target.write(block, found)
            except UNFIT as error:
                fitting = _fitting(found, target.check)
                if fitting:
                    target.write(block, fitting)
                self._say(target.table, len(found) - len(fitting), error)

    def _say(self, table: str, count: int, error: Exception) -> None:
        if table not in self._said:
            self._said.add(table)
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            log.warning("%d rows do not fit the table %s (%s): they are left out.", count, table, reason)

    def committed(self) -> None:
        """What was staged is valid: forget it."""
        self._written |= self._whole
        self._whole.clear()
        self._appended.clear()


@dataclass(frozen=True, slots=True)
class _Target:
    """One table of an attempt, and how rows get into it."""

    writer: TableWriter
    table: str
    run: str
    attempt: int
    axes: tuple[str, ...]
    replace: bool

    def _columns(self, rows: Sequence[Row]) -> dict[str, list[Any]]:
        names = [name for name in TABLES[self.table].schema(self.axes).names if name not in ("run", "attempt")]
        return {name: [row.get(name) for row in rows] for name in names}

    def write(self, block: str, rows: Sequence[Row]) -> None:
        """Stage rows of one block."""
        columns = self._columns(rows)
        self.writer.write(
            self.table, self.run, self.attempt, columns, block=block, axes=self.axes, replace=self.replace
        )

    def check(self, rows: Sequence[Row]) -> None:
        """Raise one of `UNFIT` where the rows cannot be written."""
        conform(TABLES[self.table], self.run, self.attempt, self._columns(rows), self.axes)


def _blocks(table: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each block of ranks."""
    blocks: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        blocks[block_name(row["rank"] if table in _RANKED else 0)].append(row)
    return blocks


def _fitting(rows: Sequence[Row], check: Callable[[Sequence[Row]], None]) -> list[Row]:
    """The rows that pass; halves are checked as a whole, so that one bad row among many is found quickly."""
    try:
        check(rows)
    except UNFIT:
        middle = len(rows) // 2
        return [] if middle == 0 else _fitting(rows[:middle], check) + _fitting(rows[middle:], check)
    return list(rows)
