"""The writer of a store: stages Parquet files, and makes them valid all at once in its next manifest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...profiler.errors import MegascopeError
from ..manifests.entries import Key, key_of
from ..manifests.manifest import FileEntry, data_folder, quote_name
from ..storage.durable import make_folders, write_durably
from ..storage.object_path import ObjectPath
from ..tables.parquet import conform, last_moment, read_parquet, sort_rows, write_parquet
from ..tables.schemas import TABLES, WRITER_COLUMN, WRITTEN_COLUMN, is_open_block
from .manifest_writer import GRACE_S, LOCK, ManifestWriter, WriterHeldError
from .merging import LargeMerge, crowded_large, crowded_small

__all__ = ["GRACE_S", "LOCK", "SEAL_AFTER_S", "Key", "TableWriter", "WriterHeldError"]

SEAL_AFTER_S = 600.0
"""A file of a growing table is merged with others this long; then it is the compactor's."""

GROWING = frozenset({"events", "rank_windows", "steps", "heartbeats", "health", "in_flight", "hardware_events"})
"""Tables that are only added to. The others are small, and their writer may replace all that it has of them."""


class TableWriter(ManifestWriter):
    """Writes tables of a store under one writer's name: an agent, an importer, a simulator.

    ``write`` stages a file, ``commit`` lists everything staged in a new manifest snapshot, atomically, together with
    the writer's opaque ``cursors``. What was staged and never committed is removed by the writer's next incarnation.
    Use it as a context manager, or `close` it; one process at a time may hold a writer's name.

    Raises WriterHeldError where another process holds the name, MegascopeError where none of the writer's manifests can
    be read or the store is of a newer schema, and OSError where the store cannot be written.
    """

    def __init__(
        self, root: Path, writer: str, *, grace_s: float = GRACE_S, seal_after_s: float = SEAL_AFTER_S
    ) -> None:
        super().__init__(root, writer, grace_s=grace_s)
        self.seal_after_s = seal_after_s
        self._written_ns = max((entry.committed_ns or 0 for entry in self.committed_files), default=0)
        self._large: LargeMerge | None = None
        with self._freed_on_error():
            self._remove_orphans("*/run=*/attempt=*/block=*/*")

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(
        self,
        table: str,
        run: str,
        attempt: int,
        rows: pa.Table | Mapping[str, Sequence[Any]],
        *,
        block: str = "b000",
        axes: Sequence[str] = (),
        replace: bool = False,
    ) -> None:
        """Stage rows of one table and attempt; ``axes`` are the coordinate columns of ``ranks``.

        ``replace`` takes the place of all that this writer has in the same table, attempt and block: for small tables
        that are written again as a whole. Raises MegascopeError for rows that do not fit the table, and for ``replace``
        where older rows may be in a compacted file by now.
        """
        if table not in TABLES:
            raise MegascopeError(f"There is no table {table!r}: use one of {', '.join(TABLES)}.")
        conformed = sort_rows(table, self._signed(conform(TABLES[table], run, attempt, rows, axes)))
        key = (table, run, attempt, block)
        if replace and table in GROWING and not is_open_block(block):
            raise MegascopeError(f"Table {table} only grows: write the rows to another attempt instead of replacing.")
        if replace:
            self._replaced.update(entry.path for entry in self._files(key))
        if conformed.num_rows:
            self._order += 1
            self._stage(key, conformed, self._order)

    def commit(self, cursors: Mapping[str, Any] | None = None) -> int:
        """List all that is staged in a new manifest snapshot and return its number.

        ``cursors`` become the writer's state; None keeps the last. On OSError nothing has changed for readers, and
        the same call may be tried again.
        """
        self.look_for_compacted()
        grown = list(dict.fromkeys(key_of(entry) for entry in self._staged.values()))
        for key in grown:
            self._merge_small(key)
        self._merge_large(grown)
        self._seal()
        return self.publish(cursors)

    def close(self) -> None:
        """Delete what is staged and give the writer's name free."""
        self.rollback()
        self._drop_large()
        super().close()

    # -- files --------------------------------------------------------------------------------------------------

    def _signed(self, rows: pa.Table) -> pa.Table:
        """Rows with the moment at which they were written, and by whom, where the table has a column for it.

        The moments of a writer only ever go up, whatever the clock does.
        """
        self._written_ns = max(self._written_ns + 1, time.time_ns())
        signature: dict[str, Any] = {WRITTEN_COLUMN: self._written_ns, WRITER_COLUMN: quote_name(self.writer)}
        for name, value in signature.items():
            index = rows.schema.get_field_index(name)
            if index >= 0:
                field = rows.schema.field(index)
                rows = rows.set_column(index, field, pa.repeat(pa.scalar(value), rows.num_rows).cast(field.type))
        return rows

    def _stage(self, key: Key, rows: pa.Table, order: int, committed_ns: int | None = None) -> None:
        make_folders(self.root / data_folder(*key))
        path = self._new_path(key, order)
        size = write_durably(self.root / path, lambda temporary: write_parquet(rows, temporary))
        self._staged[path] = FileEntry(path, *key, rows.num_rows, size, last_moment(rows), committed_ns)

    def _seal(self) -> None:
        """Leave files that are old enough to the compactor, for good."""
        limit = time.time_ns() - int(self.seal_after_s * 1e9)
        busy = {entry.path for entry in self._large.entries} if self._large is not None else set()
        for path, entry in self._live.items():
            is_old = (entry.committed_ns or 0) <= limit and entry.table in GROWING and not is_open_block(entry.block)
            if is_old and not entry.sealed and path not in busy | self._replaced:
                self._live[path] = changed(entry, sealed=True)

    # -- merging ------------------------------------------------------------------------------------------------

    def _mergeable(self, key: Key) -> list[FileEntry]:
        return [entry for entry in self._files(key) if not entry.sealed]

    def _merge_small(self, key: Key) -> None:
        """Replace small files by one, sorted; the old ones stay for readers until their grace is over."""
        chosen = crowded_small(self._mergeable(key))
        merged = self._read_for_merge(chosen) if len(chosen) > 1 else None
        if merged is not None:
            moment = max((entry.committed_ns or time.time_ns() for entry in chosen), default=None)
            self._stage(key, sort_rows(key[0], merged), chosen[-1].order, moment)
            self._retire(chosen)

    def _read_for_merge(self, entries: Sequence[FileEntry]) -> pa.Table | None:
        """All rows of the files in order; None where one cannot be read: merging is not worth a failure."""
        table = TABLES[entries[0].table]
        known = {field.name for field in table.schema()}
        try:
            parts = [read_parquet(self.root / entry.path) for entry in entries]
            axes = list(dict.fromkeys(name for part in parts for name in part.column_names if name not in known))
            first = entries[0]
            return pa.concat_tables([conform(table, first.run, first.attempt, part, axes) for part in parts])
        except (OSError, pa.ArrowException, MegascopeError):
            return None

    def _merge_large(self, grown: Sequence[Key]) -> None:
        """Go on with a merge of larger files, or begin one; it is a convenience and never a reason to fail."""
        if self._large is not None and not all(self._is_live(entry) for entry in self._large.entries):
            self._drop_large()
        try:
            self._large = self._large or self._begin_large(grown)
            if self._large is not None and self._large.advance():
                done, self._large = self._large, None
                self._staged[done.path] = done.entry()
                self._retire(done.entries)
        except (OSError, pa.ArrowException, MegascopeError):
            self._drop_large()

    def _begin_large(self, grown: Sequence[Key]) -> LargeMerge | None:
        for key in grown:
            files = [entry for entry in self._mergeable(key) if self._is_live(entry)]
            is_left = TABLES[key[0]].has_axes or isinstance(self.root, ObjectPath)  # there, to the compactor
            chosen = [] if is_left else crowded_large(files)
            if len(chosen) > 1:
                return LargeMerge(self.root, self._new_path(key, chosen[-1].order), chosen)
        return None

    def _drop_large(self) -> None:
        large, self._large = self._large, None
        if large is not None:
            with contextlib.suppress(OSError):
                large.abandon()
