"""The manifests: which files of the store are valid, one numbered snapshot after another for each writer."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...profiler.store_address import quote_name
from ..storage.durable import make_folders, write_durably
from ..storage.object_path import ObjectPath
from ..tables.schemas import SCHEMA_VERSION, TABLES
from .entries import FileEntry, Pruned, Retired, order_of
from .marker import newer_schema

__all__ = [
    "COMPACTOR", "KEPT_SNAPSHOTS", "MANIFESTS", "MANIFEST_VERSION", "FileEntry", "Manifest", "Offer", "Pruned",
    "Retired", "SupersededError", "compactor_name", "data_folder", "is_compactor_folder", "manifest_folder",
    "manifest_folders", "manifest_text", "new_token", "newest_snapshots", "quote_name", "read_manifest",
    "snapshot_numbers", "write_manifest",
]  # fmt: skip

log = logging.getLogger(__name__)

MANIFESTS = "_manifests"
COMPACTOR = "compactor/"
MANIFEST_VERSION = 1
KEPT_SNAPSHOTS = 5

_SNAPSHOT_NAME = re.compile(r"(\d{12})\.json")


_ENTRY_FIELDS = frozenset(field.name for field in fields(FileEntry))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A writer's snapshot: all of its live files, those on their way out, and the writer's own opaque state.

    ``order`` is the highest that any of its files ever had. Only a compactor's has ``replaces``, files of other writers
    that count no more because their rows are in its own files or were pruned, and ``pruned``.
    ``has_gap``: one before it could not be read, so that files which nobody lists may be the only copies of their rows.
    ``token`` tells it from any other in an object store, where a text is somebody's own only if nobody else writes it.
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
    token: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Offer:
    """A snapshot on its way to the disk, and what its writer has once it is there."""

    manifest: Manifest
    live: dict[str, FileEntry]
    retired: dict[str, Retired]


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


class SupersededError(OSError):
    """Another process has written a snapshot of this writer since: its state in this process is out of date."""


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write a snapshot atomically and drop the writer's oldest ones.

    OSError: it was not renamed, and nobody sees it. Once it was, readers may have seen it, so that nothing that goes
    wrong afterwards is an error. In an object store a lost answer may hide that it was written; there a snapshot never
    takes the place of another one: SupersededError.
    """
    folder = manifest_folder(root, manifest.writer)
    text = manifest_text(manifest)
    if isinstance(folder, ObjectPath):
        _create_snapshot(folder, manifest.snapshot, text)
        return
    make_folders(folder)
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


def _create_snapshot(folder: ObjectPath, number: int, text: str) -> None:
    path = folder / f"{number:012d}.json"
    is_ours = path.create(text.encode())
    numbers = snapshot_numbers(folder) or [number]
    # One that others have left behind so far that its number is free again is found by the numbers above it.
    if not is_ours or numbers[0] > number:
        if is_ours:
            path.unlink(missing_ok=True)
        raise SupersededError(f"another process wrote snapshot {numbers[0]} in {folder}")
    with contextlib.suppress(OSError):
        for old in numbers[KEPT_SNAPSHOTS:]:
            (folder / f"{old:012d}.json").unlink(missing_ok=True)


def manifest_text(manifest: Manifest) -> str:
    """A snapshot as it is written."""
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
    if manifest.token:
        document["token"] = manifest.token
    return json.dumps(document, separators=(",", ":"))


def new_token(root: Path) -> str:
    """What makes a snapshot unlike all others in an object store; nothing in a folder, where a lock is enough."""
    return secrets.token_hex(8) if isinstance(root, ObjectPath) else ""


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def snapshot_numbers(folder: Path) -> list[int]:
    """Numbers of the snapshots in a writer's folder, the highest first; none where there is no such folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    matches = map(_SNAPSHOT_NAME.fullmatch, names)
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def newest_snapshots(root: Path, *, of_compactors: bool) -> dict[Path, int]:
    """The highest number of a snapshot (0: none) in the folder of each writer, or of each compactor."""
    found: dict[Path, int] = {}
    if isinstance(root, ObjectPath):  # all in one listing: a request for each writer would take too long
        for path, _ in (root / MANIFESTS).files():
            match = _SNAPSHOT_NAME.fullmatch(path.name)
            if is_compactor_folder(path.parent) == of_compactors:
                found[path.parent] = max(found.get(path.parent, 0), int(match[1]) if match else 0)
        return found
    for folder in manifest_folders(root):
        if is_compactor_folder(folder) == of_compactors:
            found[folder] = max(snapshot_numbers(folder), default=0)
    return found


def read_manifest(folder: Path, newest: int = 0) -> Manifest | None:
    """The highest-numbered snapshot of a writer that parses; None if there is none.

    ``newest`` is its number, where the caller has just looked. Raises MegascopeError where it is of a newer schema than
    this version of megascope knows.
    """
    if newest:
        with contextlib.suppress(FileNotFoundError):
            manifest = _parse(folder / f"{newest:012d}.json", newest)
            if manifest is not None:
                return manifest
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
        known = [number, int(document.get("order", 0)), *(order_of(path) for path in _paths(files, retired))]
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
    if isinstance(folder, ObjectPath):
        yield from (path for path, is_folder in folder.listed() if is_folder)
    elif folder.is_dir():
        with os.scandir(folder) as entries:
            yield from sorted(Path(entry.path) for entry in entries if entry.is_dir())
