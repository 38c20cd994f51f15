"""A folder of results that is there whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..profiler.errors import UsageError
from ..profiler.store_address import store_url


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into; it gets its name when all went well, and is removed otherwise.

    Raises UsageError where there is something at that name already, and for a URL.
    """
    folder = folder.absolute()
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    growing = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}.tmp")
    growing.mkdir()
    try:
        yield growing
        growing.rename(folder)
    except BaseException:
        shutil.rmtree(growing, ignore_errors=True)
        raise


def refuse_existing(folder: Path) -> None:
    """Raise UsageError for what cannot become a new folder: before hours of work, not after them."""
    url = store_url(folder)
    if url is not None:
        raise UsageError(f"--out {url} is in an object store: give a folder, and copy it from there.")
    if folder.exists():
        raise UsageError(f"There is something at {folder} already: give --out a folder that is not there yet.")
