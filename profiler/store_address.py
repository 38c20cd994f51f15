"""Where a job's store lies, as its ranks know it: they name it for the agent, and look only for earlier attempts."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from .errors import UsageError

_URL = re.compile(r"(s3|s3a|gs|gcs|az|abfs|memory):/{1,2}([^/].*)")
"""One slash too: that is what `Path` leaves of two."""


def store_address(given: str | Path) -> Path:
    """An absolute path, or the URL of an object store, in which nothing may be opened through it."""
    return Path(given) if _URL.fullmatch(str(given)) else Path(given).absolute()


def store_url(store: str | Path) -> str | None:
    """The URL of an object store; None for a folder."""
    match = _URL.fullmatch(str(store))
    return None if match is None else f"{match[1]}://{match[2]}"


def stored_attempts(store: Path, run: str) -> list[str]:
    """The attempts of a run that a store has, as texts. Raises UsageError where an object store cannot be asked."""
    url = store_url(store)
    if url is None:
        folders = [str(path) for path in store.glob("runs/run=*/attempt=*")]
    else:
        try:
            import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415

            filesystem, root = fsspec.url_to_fs(url)
            folders = filesystem.glob(f"{root}/runs/run=*/attempt=*")
        except Exception as error:  # what the library of a protocol may raise is its own affair
            raise UsageError(
                f"{url} cannot be asked for earlier attempts of {run!r} ({' '.join(str(error).split())[:200]}): see to "
                "it, or give the attempt."
            ) from error
    names = [folder.rstrip("/").split("/")[-2:] for folder in folders]
    return [number.removeprefix("attempt=") for name, number in names if unquote(name.removeprefix("run=")) == run]
