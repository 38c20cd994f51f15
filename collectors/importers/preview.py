"""Offsets of the ranks' clocks of a run whose rows are staged and not yet valid: a private store shows them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..clocks.update import ClockKeeper
from ..manifests.manifest import FileEntry, Manifest, data_folder, manifest_folder, write_manifest
from ..reading.store import Store
from ..writing.writer import TableWriter

_FOLDER = "preview.tmp"
"""In the writer's own folder of manifests, which no reader looks into; a name that the next writer clears away."""


def clock_offsets(writer: TableWriter, run: str) -> Sequence[Mapping[str, Any]]:
    """Rows of ``clock_offsets`` from the ends of what ranks did together, as an agent would work them out."""
    with _preview(writer) as root, Store(root) as store:
        return ClockKeeper(store.attempt(run)).new_rows(store, is_over=True)


@contextmanager
def _preview(writer: TableWriter) -> Iterator[Path]:
    """A store of all that is staged, as links to the files."""
    root = manifest_folder(writer.root, writer.writer) / _FOLDER
    shutil.rmtree(root, ignore_errors=True)
    try:
        for entry in writer.staged_files:
            _link(writer.root, root, entry)
        write_manifest(root, Manifest(writer.writer, 1, tuple(writer.staged_files)))
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _link(store: Path, root: Path, entry: FileEntry) -> None:
    (root / data_folder(entry.table, entry.run, entry.attempt, entry.block)).mkdir(parents=True, exist_ok=True)
    target, origin = root / entry.path, (store / entry.path).resolve()
    try:
        target.symlink_to(origin)
    except OSError:  # a file system without links
        shutil.copyfile(origin, target)
