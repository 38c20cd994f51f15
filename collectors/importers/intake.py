"""Takes the rows of a run that is being imported: staged as they come, and valid all at once or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...profiler.errors import UsageError
from ...profiler.topology import stable_id
from ...profiler.vocabulary import Status
from ..manifests.manifest import manifest_folder, manifest_folders, quote_name
from ..manifests.marker import MARKER, write_marker
from ..reading.store import Store
from ..rollups.rollup import window_rows
from ..tables.schemas import RANKS_PER_BLOCK, TABLES, block_name
from ..writing.writer import TableWriter, WriterHeldError
from .columns import ABSENT
from .imported import Imported
from .preview import clock_offsets
from .stopping import StoppedError, held_back

_OF_RANKS = frozenset({"events", "steps", "rank_windows", "heartbeats"})
"""Tables that are kept in blocks of ranks."""

_RANK_COLUMNS = frozenset(column.name for column in TABLES["ranks"].columns)

LONGEST_NAME = 120
"""Characters of a run's name: it becomes the name of a folder."""

_TRIES = 20


class Intake:
    """Rows of one run, attempt 0; counts what went in."""

    def __init__(self, writer: TableWriter, run: str) -> None:
        self._writer, self._run = writer, run
        self.spans = 0
        self.ranks: set[int] = set()
        self.steps: set[int] = set()
        self._has_groups = False

    def add(self, table: str, rows: pa.Table) -> None:
        """Stage rows. Columns of ``ranks`` that the schema does not have are coordinates."""
        if not rows.num_rows:
            return
        for block, part in _blocks(table, rows):
            self._write(table, part, block)
            if table == "events":
                self._write("rank_windows", _windows(part), block)
        if table in ("ranks", "steps"):
            self.ranks.update(rows["rank"].to_pylist())
        if table == "steps":
            self.steps.update(pc.unique(rows["step"]).to_pylist())
        if table == "events":
            self.spans += rows.num_rows
        self._has_groups |= table == "groups"

    def finish(self, done: Imported) -> None:
        """Write the row of ``runs`` and make everything valid."""
        row: dict[str, Any] = {
            "layout": [json.dumps(done.layout)],
            "world_size": [done.world_size],
            "configuration": [json.dumps(done.configuration)],
            "versions": [json.dumps(done.versions)],
            "start_ns": [done.start_ns],
            "end_ns": [done.end_ns],
            "exit_reason": [done.exit_reason],
        }
        self._writer.write("runs", self._run, 0, row)
        with held_back() as stops:
            if len(self.ranks) > 1 and self._has_groups:
                self._align()
            if stops:
                raise KeyboardInterrupt
            write_marker(self._writer.root)  # an import that failed beside this one may have cleared it away
            self._writer.commit()

    def _align(self) -> None:
        """Write the offsets of the ranks' clocks, before the one commit."""
        offsets = clock_offsets(self._writer, self._run)
        if offsets:
            columns = {name: [row[name] for row in offsets] for name in offsets[0]}
            self._writer.write("clock_offsets", self._run, 0, columns)

    def _write(self, table: str, rows: pa.Table, block: str) -> None:
        axes = [name for name in rows.column_names if name not in _RANK_COLUMNS] if table == "ranks" else []
        self._writer.write(table, self._run, 0, rows, block=block, axes=axes)


@contextmanager
def intake(root: Path, run: str) -> Iterator[Intake]:
    """An intake for a run that the store does not have yet; whatever is raised inside leaves nothing behind.

    Raises UsageError where the store has the run already, is getting it from another process, or for a name that cannot
    be one; StoppedError where the import was stopped when all was done.
    """
    check_name(run)
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    _check_absent(root, run)
    writer: TableWriter | None = None
    try:
        with held_back():
            writer = _hold(root, run)
        _check_absent(root, run)
        yield Intake(writer, run)
    except BaseException as error:
        with held_back():  # a second Ctrl-C comes when all is cleared away
            if writer is None:
                _remove_empty(made)
            elif not writer.committed_files:
                _undo(writer, run, made)
            elif isinstance(error, KeyboardInterrupt):
                raise StoppedError(f"Stopped when the import was done: run {run!r} is in {root}.") from error
        raise
    finally:
        if writer is not None:
            writer.close()


def _hold(root: Path, run: str) -> TableWriter:
    """The writer of a run. Where another import has just cleared its folders away, they are made again."""
    for _ in range(_TRIES):
        try:
            return TableWriter(root, f"import-{stable_id('import', run):016x}")
        except WriterHeldError:
            break
        except FileNotFoundError:
            continue
    raise UsageError(
        f"Run {run!r} is being imported into {root} by another process: wait for it, or give another --run."
    )


def _undo(writer: TableWriter, run: str, made: Sequence[Path]) -> None:
    """Remove all that an import without a commit wrote, and no more: others may be writing to the same store.

    The writer still holds its lock, whose file goes last.
    """
    root = writer.root
    folders = {(root / entry.path).parent for entry in writer.staged_files}
    folders |= {path for table in TABLES for path in root.glob(f"{table}/run={quote_name(run)}/attempt=0/*")}
    writer.rollback()
    for folder in folders:
        _remove_empty([folder, *folder.parents[:3]])
    own = manifest_folder(root, writer.writer)
    shutil.rmtree(own, ignore_errors=True)
    _remove_empty([own.parent])
    if root in made and not own.parent.exists():
        (root / MARKER).unlink(missing_ok=True)
        _remove_empty(made)


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, the innermost first, that nothing is in."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def check_name(run: str) -> None:
    """Raise UsageError for what cannot be a run's name."""
    if not run.strip() or len(run) > LONGEST_NAME or not run.isprintable():
        raise UsageError(f"A run cannot be called {run[:40]!r}: give --run a name of 1 to {LONGEST_NAME} characters.")


def _is_store(root: Path) -> bool:
    """Whether anything was ever committed there."""
    return root.is_dir() and any(any(folder.glob("*.json")) for folder in manifest_folders(root))


def _check_absent(root: Path, run: str) -> None:
    if not _is_store(root):
        return
    with held_back(), Store(root) as store:  # DuckDB makes another error of an interruption
        if any(one.run == run for one in store.attempts()):
            raise UsageError(f"The store {root} has a run {run!r} already: give another --run, or another --to.")


def _blocks(table: str, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows by block of ranks."""
    if table not in _OF_RANKS:
        yield block_name(0), rows
        return
    block = rows["rank"].to_numpy() // RANKS_PER_BLOCK
    for number in np.unique(block).tolist():
        part = rows if (block == number).all() else rows.filter(pa.array(block == number))
        yield block_name(number * RANKS_PER_BLOCK), part


def _windows(events: pa.Table) -> pa.Table:
    """Rollups of the spans of status ok."""
    trusted = pc.equal(pc.cast(events["status"], pa.string()), str(Status.OK))
    kept = events.filter(trusted)

    def column(name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        if name not in kept.column_names:
            return np.full(kept.num_rows, ABSENT, np.int64)
        return np.asarray(pc.fill_null(kept[name].cast(pa.int64()), ABSENT).to_numpy(), np.int64)

    rank, segment, step = column("rank"), column("segment"), column("step")
    return window_rows(rank, segment, step, column("duration_ns"), column("self_ns"), column("exposed_ns"))
