"""The store as readers see it: attempts, files and DuckDB views, of a folder that may still be written."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ...profiler.errors import MegascopeError, UsageError
from ..manifests.files import DamagedFile, FileChecker
from ..manifests.listing import Listing
from ..manifests.manifest import FileEntry, Pruned
from ..storage.object_files import register
from ..storage.object_path import ObjectPath
from ..storage.remote import UNANSWERED
from ..tables.schemas import TABLES
from .attempts import UNDATED_NS, Attempt, attempts_of
from .duck import as_duckdb_error, connect, is_read_error, plain_integers, query_error, replace_views
from .evolution import ByVersion, by_version, identifier
from .root import CATALOG, find_store, is_named, unreachable, write_catalog
from .views import ViewSource, view_statements, views_of

__all__ = ["CATALOG", "Attempt", "Store"]

log = logging.getLogger(__name__)

_RANK_COLUMNS = frozenset(column.name for column in TABLES["ranks"].columns)


@dataclass(slots=True)
class _Views:
    """The views of one attempt (or of all) in a DuckDB schema; ``made`` are those that queries needed so far."""

    schema: str
    version: tuple[Any, ...] = ()
    statements: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)


class Store:
    """Opens a store: copied, read-only or still being written. Several threads may use one.

    Raises MegascopeError for a folder that is missing, is no store, is empty, or is of a newer schema.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = find_store(root)
        self._lock = threading.RLock()
        self._checker = FileChecker(self.root)
        self._listing = Listing(self.root)
        self._damage = self._derivations = 0
        self._derived: dict[tuple[str, int], dict[str, str]] = {}
        self._views: dict[tuple[str, int] | None, _Views] = {}
        self._attempts: tuple[tuple[Any, ...], list[Attempt]] | None = None
        self._connection = connect()
        register(self._connection, self.root)
        self.refresh()
        if not self._listing.entries and self._listing.unreadable:
            first = self.damaged[0]
            raise MegascopeError(
                f"No manifest of the store {self.root} can be read ({first.path.name}: {first.reason}): copy the store "
                "again from the original."
            )
        if not self._listing.entries:
            raise MegascopeError(f"The store {self.root} is empty: wait until a job has written to it, or collect one.")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def damaged(self) -> list[DamagedFile]:
        """Files and newest manifests that were met and cannot be read: they are left out of every answer."""
        listed = {self.root / entry.path for entry in self._listing.all_entries()}
        damaged = [file for path, file in self._checker.damaged.items() if path in listed]
        return sorted([*damaged, *self._listing.unreadable.values()], key=lambda file: file.path)

    def close(self) -> None:
        """Close the connection; the store cannot be used afterwards."""
        self._connection.close()

    # -- manifests ----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take over what was committed since; cheap when nothing was.

        An object store that does not answer leaves what is known of it; MegascopeError where nothing is.
        """
        with self._lock:
            try:
                self._listing.refresh()
            except UNANSWERED as error:
                if not isinstance(self.root, ObjectPath):
                    raise
                if not self._listing.entries:
                    raise unreachable(self.root, error) from error
                log.warning("%s cannot be read now (%s): what was read before is shown.", self.root, error)

    def version(self) -> tuple[Any, ...]:
        """Changes whenever a manifest changes: a key for caches."""
        return self._listing.version

    def tables(self) -> list[str]:
        """The tables that have files, in the order of the documentation."""
        return [name for name in TABLES if name in self._listing.entries]

    def entries(self, table: str, attempt: Attempt | None = None) -> list[FileEntry]:
        """What the manifests list for a table; damaged files are left out."""
        listed = self._listed(table, attempt)
        sound = [entry for entry in listed if self._checker.is_sound(entry)]
        if len(sound) < len(listed) and any(not (self.root / entry.path).exists() for entry in listed):
            # A file that is gone was replaced since: what was taken for the store's content is too old.
            self.refresh()
            sound = [entry for entry in self._listed(table, attempt) if self._checker.is_sound(entry)]
        return sound

    def _listed(self, table: str, attempt: Attempt | None) -> list[FileEntry]:
        found = self._listing.entries.get(table, ())
        return [e for e in found if attempt is None or (e.run, e.attempt) == (attempt.run, attempt.attempt)]

    def files(self, table: str, attempt: Attempt | None = None) -> list[Path]:
        """The files of a table; damaged ones are left out."""
        return [self.root / entry.path for entry in self.entries(table, attempt)]

    def pruned(self, attempt: Attempt) -> list[Pruned]:
        """What was deleted of an attempt to keep the store small: rows that are missing for that reason.

        One entry a table, of ``rank_windows`` one for each length of windows; none where all is there.
        """
        return list(self._listing.pruned.get((attempt.run, attempt.attempt), ()))

    # -- attempts -----------------------------------------------------------------------------------------------

    def attempts(self) -> list[Attempt]:
        """All attempts by their start, the newest last."""
        with self._lock:
            if self._attempts is None or self._attempts[0] != self._stamp():
                rows = self.query("SELECT * FROM runs").to_pylist()
                self._attempts = (self._stamp(), attempts_of(rows, self._listing.all_entries()))
            return list(self._attempts[1])

    def attempt(self, run: str | None = None, attempt: int | None = None) -> Attempt:
        """The newest attempt, or the newest of ``run``, or the one given. UsageError names what there is."""
        known = self.attempts()
        of_run = [each for each in known if run is None or each.run == run]
        if not of_run:
            names = ", ".join(dict.fromkeys(each.run for each in known)) or "none"
            raise UsageError(f"The store {self.root} has no run {run!r}: it has {names}.")
        newest = of_run[-1]
        if attempt is None:
            return newest
        found = [each for each in of_run if each.run == newest.run and each.attempt == attempt]
        if not found:
            numbers = ", ".join(str(each.attempt) for each in of_run if each.run == newest.run)
            raise UsageError(f"Run {newest.run!r} has no attempt {attempt}: it has {numbers}.")
        return found[0]

    def last_moment_ns(self, attempt: Attempt) -> int | None:
        """The newest moment in the store: of a heartbeat, or of the end of a span (UTC, ns)."""
        key = (attempt.run, attempt.attempt)
        moments = [entry.max_ns for entry in self._listing.all_entries() if (entry.run, entry.attempt) == key]
        return max((moment for moment in moments if moment is not None), default=None)

    def data_age_s(self, attempt: Attempt) -> float | None:
        """Seconds between now and `last_moment_ns`; None where the store has no moment, or none with a date."""
        moment = self.last_moment_ns(attempt)
        return None if moment is None or moment < UNDATED_NS else (time.time_ns() - moment) / 1e9

    # -- queries ------------------------------------------------------------------------------------------------

    def read(
        self,
        table: str,
        attempt: Attempt,
        columns: Sequence[str] | None = None,
        where: str = "",
        parameters: Sequence[object] = (),
    ) -> pa.Table:
        """One attempt's rows of a table or view; ``where`` is SQL. Without files: no rows, but all columns."""
        names = "*" if columns is None else ", ".join(identifier(name) for name in columns)
        condition = f" WHERE {where}" if where else ""
        return self.query(f"SELECT {names} FROM {identifier(table)}{condition}", parameters, attempt)

    def query(self, sql: str, parameters: Sequence[object] = (), attempt: Attempt | None = None) -> pa.Table:
        """Run one SELECT over the views, restricted to ``attempt`` if one is given.

        Views: every table of the documentation, ``steps_all``, ``spans`` (events with segment_name, kind, axis, host,
        stage and one column an axis), ``events_aligned`` and ``windows`` (rollups added up, with names). Strings come
        back plain, and sums of integers as int64.
        Raises UsageError for SQL that does not fit the views, and MegascopeError where the data cannot be read.
        """
        for is_last in (False, False, True):
            try:
                return self._execute(sql, parameters, attempt)
            except duckdb.Error as error:
                if is_last or not self.recover(error, attempt):
                    raise query_error(error) from error
        raise AssertionError("the last try returns or raises")

    def stream(
        self, sql: str, parameters: Sequence[object] = (), attempt: Attempt | None = None, batch_rows: int = 16384
    ) -> Iterator[pa.RecordBatch]:
        """As `query`, but the rows come in pieces, so that a result may be larger than memory."""
        self.query(f"SELECT * FROM ({sql}) LIMIT 0", parameters, attempt)  # meets damaged footers and wrong SQL
        schema = self._prepare(attempt, sql)
        with contextlib.closing(self._connection.cursor()) as cursor:
            try:
                cursor.execute(f"USE {schema}")
                yield from cursor.sql(sql, params=list(parameters) or None).to_arrow_reader(batch_rows)
            except duckdb.Error as error:
                raise query_error(error) from error
            except (OSError, pa.ArrowException) as error:
                raise query_error(as_duckdb_error(error)) from error

    def _execute(self, sql: str, parameters: Sequence[object], attempt: Attempt | None) -> pa.Table:
        schema = self._prepare(attempt, sql)
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(f"USE {schema}")
            try:
                return plain_integers(cursor.sql(sql, params=list(parameters) or None).to_arrow_table())
            except RuntimeError as error:  # a message with bytes of a damaged file, which are no text
                raise duckdb.Error(str(error)) from error

    def recover(self, error: duckdb.Error, attempt: Attempt | None) -> bool:
        """After a failed query: take over newer manifests, or find the damaged file; True to try again."""
        if not is_read_error(error):
            return False
        before = self.version()
        self.refresh()
        if self.version() != before:
            return True
        with self._lock, contextlib.suppress(*UNANSWERED):
            paths = [path for table in self.tables() for path in self.files(table, attempt)]
            found = self._checker.check_thoroughly([path for path in paths if is_named(path, error)] or paths)
            self._damage += found
            return found
        return False

    def _stamp(self) -> tuple[Any, ...]:
        return (self._listing.version, self._damage, self._derivations)

    def _prepare(self, attempt: Attempt | None, sql: str) -> str:
        """Bring the attempt's views that a query needs up to date and return the schema that holds them."""
        key = None if attempt is None else (attempt.run, attempt.attempt)
        with self._lock:
            views = self._views.setdefault(key, _Views(f"views_{len(self._views)}"))
            stamp = views.version
            while stamp != self._stamp():  # files that are gone bring newer manifests
                stamp, views.statements = self._stamp(), self.statements(attempt)
            needed = views_of(sql, views.statements) | views.made.keys()
            if stamp != views.version or needed != views.made.keys():
                wanted = {name: text for name, text in views.statements.items() if name in needed}
                with contextlib.closing(self._connection.cursor()) as cursor:
                    replace_views(cursor, views.schema, wanted, views.made)
                views.version, views.made = stamp, wanted
            return views.schema

    def statements(self, attempt: Attempt | None = None) -> dict[str, str]:
        """The SELECT behind every view, in the order in which they can be created."""
        files = {table: by_version(self.root, self.entries(table, attempt)) for table in self.tables()}
        numbers: dict[str, set[int]] = {}
        for entry in self._listing.all_entries():
            numbers.setdefault(entry.run, set()).add(entry.attempt)
        has_restarts = attempt is None and any(len(found) > 1 for found in numbers.values())
        axes = list(attempt.layout) if attempt is not None else []
        found = view_statements(ViewSource(files, self._axes(files.get("ranks", {}), axes), has_restarts))
        derived = {} if attempt is None else self._derived.get((attempt.run, attempt.attempt), {})
        more = {table: f"SELECT * FROM ({found[table]}) UNION ALL BY NAME {rows}" for table, rows in derived.items()}
        return found | more

    def derive(self, table: str, attempt: Attempt, select: str) -> None:
        """Let an attempt's view of a table also have the rows of a SELECT, until this store is closed."""
        with self._lock:
            self._derived.setdefault((attempt.run, attempt.attempt), {})[table] = select
            self._derivations += 1

    def _axes(self, files: ByVersion, first: Sequence[str]) -> list[str]:
        """The coordinate columns that ``ranks`` has, those of the layout first; without files, the layout's."""
        paths = [str(path) for group in files.values() for path in group]
        if not paths:
            return list(first)
        with contextlib.closing(self._connection.cursor()) as cursor:
            sql = "SELECT * FROM read_parquet(?, hive_partitioning = false, union_by_name = true) LIMIT 0"
            names = cursor.sql(sql, params=[paths]).columns
        found = [name for name in names if name not in _RANK_COLUMNS]
        return sorted(found, key=lambda name: (first.index(name) if name in first else len(first), found.index(name)))

    def write_catalog(self) -> Path:
        """Write ``catalog.duckdb`` (absolute paths) for other DuckDB clients, atomically; not in an object store."""
        return write_catalog(self.root, self.statements())
