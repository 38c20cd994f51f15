"""The place of a store: finding it, what is said where it cannot be read, and the catalog in it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import duckdb

from ...profiler.errors import MegascopeError
from ..manifests.manifest import manifest_folders
from ..manifests.marker import check_marker
from ..storage.address import store_path
from ..storage.object_path import ObjectPath
from ..storage.remote import UNANSWERED
from .evolution import identifier

CATALOG = "catalog.duckdb"


def find_store(given: str | Path) -> Path:
    """The absolute path of a store. MegascopeError where there is none, it is of a newer schema, or cannot be read."""
    root = store_path(given).absolute()
    try:
        if not root.exists():
            raise MegascopeError(f"There is no store at {root}: check the path.")
        if not root.is_dir():
            raise MegascopeError(f"{root} is a file, not a store: give the folder that holds the tables.")
        if not check_marker(root) and next(manifest_folders(root), None) is None:
            raise MegascopeError(f"{root} is no store of megascope (it has no manifests): check the path.")
    except UNANSWERED as error:
        if not isinstance(root, ObjectPath):
            raise
        raise unreachable(root, error) from error
    return root


def unreachable(root: Path, error: OSError) -> MegascopeError:
    """What is said of an object store that does not answer, or not to us."""
    if isinstance(error, PermissionError):
        return MegascopeError(f"The store {root} may not be read ({error}): check the credentials.")
    return MegascopeError(f"The store {root} cannot be read ({error}): try again once it answers.")


def is_named(path: Path, error: duckdb.Error) -> bool:
    """Whether an error of DuckDB names a file."""
    return (path.key if isinstance(path, ObjectPath) else str(path)) in str(error)


def write_catalog(root: Path, statements: Mapping[str, str]) -> Path:
    """Write `CATALOG` with a view for each SELECT, atomically; its path. MegascopeError in an object store."""
    if isinstance(root, ObjectPath):
        raise MegascopeError(f"{root} has no catalog: other clients read its files from there themselves.")
    with tempfile.TemporaryDirectory(prefix="_catalog-", suffix=".tmp", dir=root) as folder:
        path = Path(folder) / CATALOG
        with contextlib.closing(duckdb.connect(str(path))) as connection:
            for name, select in statements.items():
                connection.execute(f"CREATE VIEW {identifier(name)} AS {select}")
        return path.replace(root / CATALOG)
