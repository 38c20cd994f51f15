"""Where a job's store lies, as its ranks know it: they name it for the agent, and look only for earlier attempts."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from .errors import UsageError
from .topology import stable_id

MAX_NAME_BYTES = 180

_URL = re.compile(r"(s3|s3a|gs|gcs|az|abfs|memory):/{1,2}([^/].*)")
"""One slash too: that is what `Path` leaves of two."""

_FILE = re.compile(r"file:/+(.+)")
_OTHER = re.compile(r"([a-z][a-z0-9+]+:)/.*")


def store_address(given: str | Path) -> Path:
    """An absolute path, or the URL of an object store, in which nothing may be opened through it.

    UsageError for a URL of any other kind: as a path it would name a folder of this machine, where nobody looks.
    """
    text = str(given)
    if _URL.fullmatch(text):
        return Path(given)
    if local := _FILE.fullmatch(text):
        return Path("/", local[1])
    other = _OTHER.fullmatch(text)
    if other is not None and not Path(other[1]).exists():
        raise UsageError(
            f"A store cannot be at {text}: give a folder, or a URL that begins with s3://, gs://, az:// or abfs://."
        )
    return Path(given).absolute()


def store_url(store: str | Path) -> str | None:
    """The URL of an object store; None for a folder."""
    match = _URL.fullmatch(str(store))
    return None if match is None else f"{match[1]}://{match[2]}"


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


def stored_attempts(store: Path, run: str) -> list[str]:
    """The attempts of a run that a store has, as texts. Raises UsageError where an object store cannot be asked."""
    url, pattern = store_url(store), f"runs/run={quote_name(run)}/attempt=*"
    if url is None:
        folders = [str(path) for path in store_address(store).glob(pattern)]
    else:
        try:
            import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415

            filesystem, root = fsspec.url_to_fs(url)
            folders = filesystem.glob(f"{root}/{pattern}")
        except Exception as error:  # what the library of a protocol may raise is its own affair
            raise UsageError(
                f"{url} cannot be asked for earlier attempts of {run!r} ({' '.join(str(error).split())[:200]}): see to "
                "it, or give the attempt."
            ) from error
    return [folder.rstrip("/").rpartition("/attempt=")[2] for folder in folders]
