"""The rows of a growing table that have come into a store since the last look; what was read is not read again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ...collectors.manifests.manifest import COMPACTOR, FileEntry, quote_name
from ...collectors.reading.duck import is_read_error, plain_integers, query_error
from ...collectors.reading.evolution import by_version, scan
from ...collectors.reading.store import Attempt, Store
from ...collectors.tables.schemas import TABLES

if TYPE_CHECKING:
    import duckdb

_TRIES = 3


class Tail:
    """What is new in one table of one attempt.

    A writer numbers its files, and one that it merges from others has the number of the newest of them: so what was
    merged is read again only where a part of it is new. What a compactor merges is older than what was read by then.
    """

    def __init__(self, table: str, connection: duckdb.DuckDBPyConnection) -> None:
        self._table, self._connection = table, connection
        self._orders: dict[str, int] = {}
        self._committed_ns = 0

    def take(self, store: Store, attempt: Attempt, sql: str, parameters: Sequence[object] = ()) -> pa.Table | None:
        """The answer to a SELECT over the new rows, called ``rows``; None where no file is new.

        A row may come twice, where its file was merged with newer ones. MegascopeError where it cannot be read: then
        nothing counts as read.
        """
        from duckdb import Error  # noqa: PLC0415

        for is_last in (False,) * (_TRIES - 1) + (True,):
            entries = [entry for entry in store.entries(self._table, attempt) if self._is_new(entry)]
            if not entries:
                return None
            try:
                found = self._query(store, entries, sql, parameters)
            except Error as error:
                if is_last or not is_read_error(error) or not store.recover(error, attempt):
                    raise query_error(error) from error
                continue
            for entry in entries:
                self._note(entry)
            return found
        raise AssertionError("the last try returns or raises")

    def _query(self, store: Store, entries: Sequence[FileEntry], sql: str, parameters: Sequence[object]) -> pa.Table:
        rows = scan(TABLES[self._table], by_version(store.root, entries))
        with contextlib.closing(self._connection.cursor()) as cursor:
            relation = cursor.sql(f"WITH rows AS (SELECT * FROM {rows}) {sql}", params=list(parameters) or None)
            return plain_integers(relation.to_arrow_table())

    def _is_new(self, entry: FileEntry) -> bool:
        writer = _writer_of(entry)
        if writer.startswith(quote_name(COMPACTOR)):
            return (entry.committed_ns or 0) > self._committed_ns
        return entry.order > self._orders.get(writer, -1)

    def _note(self, entry: FileEntry) -> None:
        writer = _writer_of(entry)
        self._orders[writer] = max(self._orders.get(writer, -1), entry.order)
        self._committed_ns = max(self._committed_ns, entry.committed_ns or 0)


def _writer_of(entry: FileEntry) -> str:
    """The writer's name, as it begins the name of the file: WRITER-ORDER-NUMBER.parquet or WRITER-ORDER.parquet."""
    name = entry.path.rpartition("/")[2]
    return name.partition(f"-{entry.order:012d}")[0]
