"""The marker of a store: which version of the tables it has, so that older versions leave it alone."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ...profiler.errors import MegascopeError
from ..storage.durable import make_folders, write_durably
from ..storage.locks import FileLock
from ..storage.object_path import ObjectPath
from ..tables.schemas import SCHEMA_VERSION

MARKER = "_megascope.json"


def newer_schema(path: Path, version: object) -> MegascopeError:
    """The error for something that a newer megascope wrote."""
    return MegascopeError(
        f"{path} was written with schema version {version}, newer than {SCHEMA_VERSION}: upgrade megascope to read it."
    )


def write_marker(root: Path) -> None:
    """Mark a folder as a store of this schema version: a reader of an older version would read new files wrongly.

    Raises MegascopeError where the store is of a newer version than this.
    """
    make_folders(root)
    text = json.dumps({"schema": SCHEMA_VERSION}) + "\n"
    if isinstance(root, ObjectPath) and _marked_version(root) != SCHEMA_VERSION:
        (root / MARKER).write_text(text)  # whoever comes second puts the same
    while _marked_version(root) != SCHEMA_VERSION:
        lock = FileLock.acquire(root / f"{MARKER}.lock")  # many agents may begin a store at the same moment
        if lock is None:
            time.sleep(0.01)
            continue
        try:
            write_durably(root / MARKER, lambda path: _write_text(path, text))
        finally:
            lock.release(delete=True)


def check_marker(root: Path) -> bool:
    """Whether the folder carries a store's marker. Raises MegascopeError for a newer schema or an unreadable marker."""
    return _marked_version(root) is not None


def _marked_version(root: Path) -> int | None:
    path = root / MARKER
    try:
        version = json.loads(path.read_bytes())["schema"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise MegascopeError(f"{path} cannot be read ({error}): copy it again from the original store.") from error
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise newer_schema(path, version)
    return version


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
