"""Takes the rows of a run that is being imported: staged as they come, and valid all at once or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...profiler.errors import UsageError
from ...profiler.topology import stable_id
from ...profiler.vocabulary import Status
from ..clock_update import ClockKeeper
from ..manifest import manifest_folder, manifest_folders, quote_name
from ..rollup import window_rows
from ..schemas import RANKS_PER_BLOCK, TABLES, block_name
from ..store import Store
from ..writer import TableWriter
from .columns import ABSENT
from .imported import Imported

_OF_RANKS = frozenset({"events", "steps", "rank_windows", "heartbeats"})
"""Tables that are kept in blocks of ranks."""

_RANK_COLUMNS = frozenset(column.name for column in TABLES["ranks"].columns)

LONGEST_NAME = 120
"""Characters of a run's name: it becomes the name of a folder."""


class Intake:
    """Rows of one run, attempt 0; counts what went in."""

    def __init__(self, writer: TableWriter, run: str) -> None:
        self._writer, self._run = writer, run
        self.spans = 0
        self.ranks: set[int] = set()
        self.steps: set[int] = set()

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
        self._writer.commit()
        self._align()

    def _align(self) -> None:
        """Offsets of the ranks' clocks from the ends of what they did together, as an agent would work them out."""
        with Store(self._writer.root) as store:
            offsets = ClockKeeper(store.attempt(self._run)).new_rows(store, is_over=True)
        if offsets:
            columns = {name: [row[name] for row in offsets] for name in offsets[0]}
            self._writer.write("clock_offsets", self._run, 0, columns)
            self._writer.commit()

    def _write(self, table: str, rows: pa.Table, block: str) -> None:
        axes = [name for name in rows.column_names if name not in _RANK_COLUMNS] if table == "ranks" else []
        self._writer.write(table, self._run, 0, rows, block=block, axes=axes)


@contextmanager
def intake(root: Path, run: str) -> Iterator[Intake]:
    """An intake for a run that the store does not have yet; whatever is raised inside leaves nothing behind.

    Raises UsageError where the store has the run already, or for a name that cannot be one.
    """
    check_name(run)
    is_new, name = not root.exists(), f"import-{stable_id('import', run):016x}"
    _check_absent(root, run)
    try:
        with TableWriter(root, name) as writer:
            yield Intake(writer, run)
    except BaseException:
        if is_new and not _is_store(root):
            shutil.rmtree(root, ignore_errors=True)
        else:
            _remove_traces(root, run, manifest_folder(root, name))
        raise


def _remove_traces(root: Path, run: str, manifests: Path) -> None:
    """Remove the empty folders of an import that failed, unless something of it is listed."""
    if any(manifests.glob("*.json")):
        return
    shutil.rmtree(manifests, ignore_errors=True)
    for folder in root.glob(f"*/run={quote_name(run)}"):
        for path in sorted(folder.rglob("*"), reverse=True):
            with suppress(OSError):
                path.rmdir()
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
    with Store(root) as store:
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
