"""The manifests: which files of the store are valid, one numbered snapshot after another for each writer."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..profiler.topology import stable_id
from .durable import make_folders, write_durably
from .marker import newer_schema
from .schemas import SCHEMA_VERSION, TABLES

log = logging.getLogger(__name__)

MANIFESTS = "_manifests"
COMPACTOR = "compactor/"
MANIFEST_VERSION = 1
KEPT_SNAPSHOTS = 5
MAX_NAME_BYTES = 180

_SNAPSHOT_NAME = re.compile(r"(\d{12})\.json")
_FILE_NAME = re.compile(r".*-(\d{12})(?:-\d+)?\.parquet")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One live file: ``path`` is relative to the store and uses '/'; ``max_ns`` (UTC) is its last moment, if any.

    A file's name is WRITER-ORDER-NUMBER.parquet. Of two files of a writer the one with the higher order is newer; a
    merged file has the order of the newest that went into it. So a list sorted by name is sorted by age.

    ``committed_ns`` (UTC) is when its newest rows came to the store. ``sealed``: its writer merges it no more, so that
    the compactor may replace it. ``level``: the one length of windows in a compacted file of ``rank_windows``.
    ``schema`` is the version of the tables that it was written with.
    """

    path: str
    table: str
    run: str
    attempt: int
    block: str
    rows: int
    size_bytes: int
    max_ns: int | None = None
    committed_ns: int | None = None
    sealed: bool = False
    level: int | None = None
    schema: int = 1

    @property
    def order(self) -> int:
        """Place in the order of age among the files of the same writer."""
        return _order(self.path)


def _order(path: str) -> int:
    match = _FILE_NAME.fullmatch(path)
    return int(match[1]) if match else 0


_ENTRY_FIELDS = frozenset(field.name for field in fields(FileEntry))


@dataclass(frozen=True, slots=True)
class Retired:
    """A file that a newer one replaced at ``retired_ns`` (UTC); it is deleted once no reader can still use it."""

    path: str
    retired_ns: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted of an attempt's table to keep the store small; of ``rank_windows``, one length of windows.

    ``level`` is that length, None for other tables.
    ``until_ns`` is the last moment (UTC) and ``last_step`` the last step that were deleted, where they are known.
    """

    run: str
    attempt: int
    table: str
    level: int | None
    files: int
    rows: int
    size_bytes: int
    until_ns: int | None
    last_step: int | None

    def __add__(self, other: Pruned) -> Pruned:
        """Both together, of the same attempt, table and level."""
        moments = [moment for moment in (self.until_ns, other.until_ns) if moment is not None]
        steps = [step for step in (self.last_step, other.last_step) if step is not None]
        return Pruned(
            self.run, self.attempt, self.table, self.level,
            files=self.files + other.files, rows=self.rows + other.rows, size_bytes=self.size_bytes + other.size_bytes,
            until_ns=max(moments, default=None), last_step=max(steps, default=None),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Manifest:
    """A writer's snapshot: all of its live files, those on their way out, and the writer's own opaque state.

    ``order`` is the highest that any of its files ever had. Only a compactor's has ``replaces``, files of other writers
    that count no more because their rows are in its own files or were pruned, and ``pruned``.
    ``has_gap``: one before it could not be read, so that files which nobody lists may be the only copies of their rows.
    """

    writer: str
    snapshot: int
    files: tuple[FileEntry, ...] = ()
    retired: tuple[Retired, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    order: int = 0
    replaces: tuple[str, ...] = ()
    pruned: tuple[Pruned, ...] = ()
    has_gap: bool = False


def quote_name(name: str) -> str:
    """A run's or writer's name as part of a path, percent-encoded as Hive does: it can leave no folder.

    >>> quote_name("../a b")
    '%2E%2E%2Fa%20b'
    """
    quoted = quote(name, safe="", errors="replace")
    if quoted.startswith("."):
        quoted = quoted.replace(".", "%2E")
    if len(quoted) > MAX_NAME_BYTES:
        quoted = f"{quoted[: MAX_NAME_BYTES - 17]}~{stable_id(name):016x}"
    return quoted


def data_folder(table: str, run: str, attempt: int, block: str) -> str:
    """Folder of a table's files, relative to the store."""
    return f"{table}/run={quote_name(run)}/attempt={attempt}/block={quote_name(block)}"


def manifest_folder(root: Path, writer: str) -> Path:
    """Folder of a writer's manifests."""
    return root / MANIFESTS / quote_name(writer)


def compactor_name(run: str, attempt: int, block: str) -> str:
    """Name of the writer that owns the compacted files of one block."""
    return f"{COMPACTOR}{run}/{attempt}/{block}"


def is_compactor_folder(folder: Path) -> bool:
    """Whether a manifest folder belongs to a compactor."""
    return folder.name.startswith(quote_name(COMPACTOR))


def _plain(entry: FileEntry | Retired | Pruned) -> dict[str, Any]:
    """The fields of an entry, which are plain values: `asdict` would copy each of them deeply."""
    return {each.name: getattr(entry, each.name) for each in fields(entry)}


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write a snapshot atomically and drop the writer's oldest ones.

    OSError: it was not renamed, and nobody sees it. Once it was, readers may have seen it, so that nothing that goes
    wrong afterwards is an error.
    """
    folder = manifest_folder(root, manifest.writer)
    make_folders(folder)
    document = {
        "version": MANIFEST_VERSION,
        "schema": SCHEMA_VERSION,
        "writer": manifest.writer,
        "snapshot": manifest.snapshot,
        "files": [_plain(entry) for entry in manifest.files],
        "retired": [_plain(entry) for entry in manifest.retired],
        "state": manifest.state,
        "order": manifest.order,
    }
    if manifest.replaces or manifest.pruned:
        document |= {"replaces": manifest.replaces, "pruned": [_plain(each) for each in manifest.pruned]}
    if manifest.has_gap:
        document["has_gap"] = True
    text = json.dumps(document, separators=(",", ":"))
    path = folder / f"{manifest.snapshot:012d}.json"
    try:
        write_durably(path, lambda temporary: _write_text(temporary, text))
    except OSError as error:
        if not path.exists():
            raise
        log.warning("%s was written, but not yet forced to disk (%s).", path, error)
    with contextlib.suppress(OSError):
        for number in snapshot_numbers(folder)[KEPT_SNAPSHOTS:]:
            (folder / f"{number:012d}.json").unlink(missing_ok=True)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def snapshot_numbers(folder: Path) -> list[int]:
    """Numbers of the snapshots in a writer's folder, the highest first."""
    matches = (_SNAPSHOT_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def read_manifest(folder: Path) -> Manifest | None:
    """The highest-numbered snapshot of a writer that parses; None if there is none.

    Raises MegascopeError where it is of a newer schema than this version of megascope knows.
    """
    for _ in range(3):  # a live writer may drop the snapshots listed here before they are opened
        numbers = snapshot_numbers(folder)
        for number in numbers:
            path = folder / f"{number:012d}.json"
            with contextlib.suppress(FileNotFoundError):
                manifest = _parse(path, number)
                if manifest is not None:
                    return manifest
        if numbers == snapshot_numbers(folder):
            break
    return None


def _parse(path: Path, number: int) -> Manifest | None:
    """Read one snapshot; None where it is cut short or otherwise not a manifest."""
    try:
        document = json.loads(path.read_bytes())
        newer = max(int(document["version"]) - MANIFEST_VERSION, int(document["schema"]) - SCHEMA_VERSION)
        if newer > 0:
            raise newer_schema(path, document["schema"])
        files = tuple(_entry(values) for values in document["files"])
        retired = tuple(Retired(**entry) for entry in document["retired"])
        writer, state = str(document["writer"]), dict(document["state"])
        known = [number, int(document.get("order", 0)), *(_order(path) for path in _paths(files, retired))]
        replaces = tuple(str(path) for path in document.get("replaces", ()))
        pruned = tuple(Pruned(**each) for each in document.get("pruned", ()))
        has_gap = bool(document.get("has_gap", False))
    except (ValueError, KeyError, TypeError):
        return None
    if not all(_is_inside(entry) for entry in files) or not all(_is_local(entry.path) for entry in retired):
        return None
    return Manifest(writer, number, files, retired, state, max(known), replaces, pruned, has_gap)


def _paths(files: Iterable[FileEntry], retired: Iterable[Retired]) -> list[str]:
    return [*(entry.path for entry in files), *(entry.path for entry in retired)]


def _entry(values: Mapping[str, Any]) -> FileEntry:
    """An entry of a manifest; what this version does not know of it is passed over."""
    return FileEntry(**{name: value for name, value in values.items() if name in _ENTRY_FIELDS})


def _is_inside(entry: FileEntry) -> bool:
    """Whether an entry names a file where its table's files belong: a manifest cannot point out of the store."""
    return entry.table in TABLES and entry.path.rpartition("/")[0] == data_folder(
        entry.table, entry.run, entry.attempt, entry.block
    )


def _is_local(path: str) -> bool:
    """Whether a path stays below the store, and names a table's file."""
    return path.endswith(".parquet") and not path.startswith("/") and ".." not in path.split("/")


def manifest_folders(root: Path) -> Iterator[Path]:
    """The folders of all writers of a store, in a fixed order."""
    folder = root / MANIFESTS
    if folder.is_dir():
        with os.scandir(folder) as entries:
            yield from sorted(Path(entry.path) for entry in entries if entry.is_dir())
