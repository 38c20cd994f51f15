"""Rows on their way to the store: they stay here until a commit has made them valid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .schemas import TABLES, block_name
from .writer import TableWriter

MAX_SAMPLES = 100_000
"""Heartbeats and health samples kept while the store cannot be written; beyond, the oldest go."""

_SAMPLED = frozenset({"heartbeats", "health"})
_RANKED = frozenset(name for name, table in TABLES.items() if any(column.name == "rank" for column in table.columns))

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Whole:
    """A small table that is written again as a whole whenever it changes."""

    rows: Sequence[Row]
    axes: tuple[str, ...] = ()


class Outbox:
    """Rows of one attempt: appended ones, and small tables that replace what was written of them before.

    With ``replaces`` False small tables are added to what is there: readers take the newest row of each key.
    """

    def __init__(self, *, replaces: bool = True) -> None:
        self._replaces = replaces
        self._appended: dict[str, list[Row]] = defaultdict(list)
        self._whole: dict[str, Whole] = {}
        self._written: dict[str, Whole] = {}

    def append(self, table: str, rows: Iterable[Row]) -> None:
        """Add rows to a table that grows."""
        kept = self._appended[table]
        kept.extend(rows)
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
        """Stage everything. Raises OSError where the store cannot be written; nothing is forgotten."""
        for table, whole in self._whole.items():
            for block, columns in _columns(table, whole.rows, whole.axes):
                writer.write(table, run, attempt, columns, block=block, axes=whole.axes, replace=self._replaces)
        for table, rows in self._appended.items():
            for block, columns in _columns(table, rows, ()):
                writer.write(table, run, attempt, columns, block=block)

    def committed(self) -> None:
        """What was staged is valid: forget it."""
        self._written |= self._whole
        self._whole.clear()
        self._appended.clear()


def _columns(table: str, rows: Sequence[Row], axes: Sequence[str]) -> Iterable[tuple[str, dict[str, list[Any]]]]:
    """The rows of each block of ranks, as columns."""
    blocks: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        blocks[block_name(row["rank"] if table in _RANKED else 0)].append(row)
    names = [name for name in TABLES[table].schema(axes).names if name not in ("run", "attempt")]
    for block, found in blocks.items():
        yield block, {name: [row.get(name) for row in found] for name in names}
