"""Many files into one that is sorted as it is read most, by DuckDB, which spills what does not fit into its memory."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from ..manifests.manifest import FileEntry
from ..reading.duck import settings
from ..reading.evolution import by_version, identifier, scan
from ..reading.views import NEWEST_ROW_OF, newest_rows
from ..rollups.rollup import added_up
from ..storage.object_files import register
from ..storage.object_path import ObjectPath
from ..tables.parquet import conform, last_moment, open_parquet, row_group_rows
from ..tables.schemas import TABLES, Table

MEMORY_LIMIT = "512MB"

SORT: Mapping[str, tuple[str, ...]] = {
    "events": ("step", "rank", "stream", "start_ns"),
    "rank_windows": ("segment", "window_steps", "first_step", "rank"),
    "steps": ("step", "rank"),
    "heartbeats": ("moment_ns", "rank"),
    "health": ("moment_ns", "host"),
    "hardware_events": ("moment_ns", "host"),
    "clock_offsets": ("host", "moment_ns"),
    "in_flight": ("incident", "snapshot", "rank"),
    "runs": ("writer",),
}
"""Order of the rows of a compacted file; other tables are sorted by the key of their rows."""


class StoppedError(Exception):
    """A merge was asked to stop."""


class Merge:
    """A merge of files of one table, attempt and block. Use it as a context manager.

    What does not fit into memory goes to the folder ``spill``, which is made and deleted. Raises duckdb.Error where a
    file cannot be read, and StoppedError between two pieces once ``should_stop`` says so.
    """

    def __init__(
        self, root: Path, entries: Sequence[FileEntry], spill: Path, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        first = entries[0]
        self.entries = tuple(entries)
        self._table, self._run, self._attempt = TABLES[first.table], first.run, first.attempt
        self._spill, self._should_stop = spill, should_stop
        spill.mkdir(exist_ok=True)
        config = settings(spill=True) | {"temp_directory": str(spill), "memory_limit": MEMORY_LIMIT}
        self._connection = duckdb.connect(":memory:", config=config)
        register(self._connection, root)
        self._files = by_version(root, entries)

    def __enter__(self) -> Merge:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        shutil.rmtree(self._spill, ignore_errors=True)

    def levels(self) -> list[int | None]:
        """The lengths of windows that there are: one file is made of each. For other tables one None."""
        if self._table.name != "rank_windows":
            return [None]
        sql = f"SELECT DISTINCT window_steps FROM {scan(self._table, self._files)} ORDER BY 1"
        return [row[0] for row in self._connection.execute(sql).fetchall()]

    def write(self, path: Path, level: int | None) -> FileEntry:
        """Write the rows (of one length of windows) sorted to ``path``; the entry has neither path nor size yet.

        Of tables whose rows have a key only the newest row of each key is kept; those of rollups are added up. OSError:
        the disk is full.
        """
        sql = f"SELECT * {self._select(level)} ORDER BY {self._order()}"
        size = row_group_rows(self._table.schema())
        reader = self._connection.sql(sql).to_arrow_reader(size)
        axes = [name for name in reader.schema.names if name not in {c.name for c in self._table.columns}]
        rows, last = 0, None
        with open_parquet(path, self._table.schema(axes)) as writer:
            for group in row_groups(added_up(reader) if level is not None else reader, size):
                if self._should_stop():
                    raise StoppedError
                conformed = conform(self._table, self._run, self._attempt, group, axes).unify_dictionaries()
                writer.write_table(conformed, row_group_size=size)
                moment = last_moment(conformed)
                last = moment if last is None else max(last, moment or last)
                rows += conformed.num_rows
        arrived = max((entry.committed_ns or 0 for entry in self.entries), default=0) or None
        return FileEntry("", self._table.name, self._run, self._attempt, "", rows, 0, last, arrived, level=level)

    def _select(self, level: int | None) -> str:
        if self._table.name == "runs" or self._table.name in NEWEST_ROW_OF:
            return f"EXCLUDE (filename, file_row_number) FROM ({newest_rows(self._table, self._files)})"
        where = "" if level is None else f" WHERE window_steps = {level}"
        return f"FROM {scan(self._table, self._files)}{where}"

    def _order(self) -> str:
        names = SORT.get(self._table.name) or NEWEST_ROW_OF[self._table.name]
        return ", ".join(f"{identifier(name)} NULLS LAST" for name in names)


def row_groups(reader: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """The rows of a reader in pieces of ``size`` rows; the last may be smaller."""
    pieces: list[pa.RecordBatch] = []
    count = 0
    for batch in reader:
        at = 0
        while at < batch.num_rows:
            piece = batch.slice(at, size - count)
            pieces.append(piece)
            at, count = at + piece.num_rows, count + piece.num_rows
            if count == size:
                yield pa.Table.from_batches(pieces)
                pieces, count = [], 0
    if pieces:
        yield pa.Table.from_batches(pieces)


def is_keyed(table: Table) -> bool:
    """Whether rows of a table replace each other, or add up: then a merge may have fewer rows than its files."""
    return table.name in {"runs", "rank_windows"} or table.name in NEWEST_ROW_OF


def free_bytes(root: Path) -> int:
    """Room on the store's disk, where a merge is written; a file system that does not tell has enough."""
    folder = tempfile.gettempdir() if isinstance(root, ObjectPath) else root
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return 2**62
