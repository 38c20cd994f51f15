"""Requests to an object store through fsspec: each is tried again, with back-off and jitter, and then given up."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...profiler.errors import MegascopeError

T = TypeVar("T")

PATIENCE_S = 5.0
"""A request is tried again for so long. After that the caller has an OSError, and tries again in its own time."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Before a request is tried again: a random time up to twice the last, within these bounds ("full jitter")."""

LONGEST_REST_S = 10.0
"""A store that did not answer is left alone before it is asked again: 1 s, then 2, up to this, each time jittered."""

CONNECT_S, READ_S = 3.0, 4.0
"""What one try may take to connect, and without a byte of the answer."""

SLOWEST_BYTES_S = 2**18
"""A write may take as long as its bytes take at this rate, beside that. The library times no write: it would wait
without end for a server that does not say whether it wants the bytes (``Expect: 100-continue``), or reads none."""

_FRESH: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
"""Of all libraries: what others wrote has to be seen, and leases are decided by it."""

_S3: dict[str, Any] = {
    "max_concurrency": 1,  # more would ask for the size before each whole read
    "config_kwargs": {"connect_timeout": CONNECT_S, "read_timeout": READ_S, "retries": {"total_max_attempts": 1}},
}
_OPTIONS = {"s3": _S3, "s3a": _S3}
_EXTRAS = dict.fromkeys(_OPTIONS, "pip install 'megascope[s3]'")
_EXACT = frozenset(_OPTIONS)
"""Protocols of which a PUT that must not replace is one request, decided by the server."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing says: ``key`` with the bucket, ``modified_ns`` UTC by the server's clock (0: it does not say)."""

    key: str
    is_folder: bool
    size_bytes: int
    modified_ns: int


class UnreachableError(OSError):
    """An object store gave no answer within the patience, or is left alone for a moment after it gave none."""


UNANSWERED = (UnreachableError, PermissionError)
"""What says nothing of the objects asked for. For objects alone: a file that may not be read is one of many."""


class Storage(Protocol):
    """What a store needs of the place where it lies. Keys begin with the bucket.

    ``read`` and ``info`` raise FileNotFoundError, and writing where there is no such bucket; everything raises
    `UnreachableError` and other OSErrors.
    """

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """The content of an object, or its bytes from ``start`` to before ``end``."""

    def put(self, key: str, content: bytes | Path) -> None:
        """Write an object whole, in place of what is there."""

    def create(self, key: str, content: bytes) -> bool:
        """Write an object where there is none; False where there is one with another content."""

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""

    def info(self, key: str) -> Entry:
        """What is known of one object or folder."""

    def entries(self, key: str, *, deep: bool = False) -> list[Entry]:
        """Objects and folders in a folder, or all objects below it; none where there is no such folder."""


class Remote:
    """A `Storage` over any filesystem of fsspec; several threads may use one."""

    def __init__(self, filesystem: Any, name: str, *, is_exact: bool, patience_s: float = PATIENCE_S) -> None:
        self.filesystem, self.name, self.is_exact = filesystem, name, is_exact
        self.patience_s = patience_s
        self.requests = 0
        self._lock = threading.Lock()
        self._failures, self._rests_until = 0, 0.0

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """The content of an object, or its bytes from ``start`` to before ``end``."""
        return self._call(lambda: bytes(self.filesystem.cat_file(key, start=start, end=end)))

    def put(self, key: str, content: bytes | Path) -> None:
        """Write an object whole, in place of what is there."""
        if isinstance(content, Path):
            within = self._within(content.stat().st_size)
            self._write(key, lambda: self.filesystem.put_file(str(content), key, **within))
        else:
            self._write(key, lambda: self.filesystem.pipe_file(key, content, **self._within(len(content))))

    def create(self, key: str, content: bytes) -> bool:
        """Write an object where there is none; False where there is one with another content.

        A try whose answer was lost may have written it: so what is there counts as written if it is the same.
        """
        try:
            self._write(key, lambda: self._create(key, content))
        except FileExistsError:
            return self.read(key) == content
        return True

    def _write(self, key: str, request: Callable[[], object]) -> None:
        """A write needs nothing to be there but the bucket."""
        try:
            self._call(request)
        except FileNotFoundError as error:
            bucket = f"{self.name.split()[-1]}{key.split('/', maxsplit=1)[0]}"
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", bucket) from error

    def _create(self, key: str, content: bytes) -> None:
        try:
            self.filesystem.pipe_file(key, content, mode="create", **self._within(len(content)))
        except OSError as error:  # a server that does not say which condition it was
            if error.errno == errno.EINVAL:
                raise FileExistsError(key) from error
            raise

    def _within(self, size_bytes: int) -> dict[str, float]:
        """How long one try of a write may take in all; of a library without an event loop that cannot be said."""
        is_async = getattr(self.filesystem, "async_impl", False)
        return {"timeout": CONNECT_S + READ_S + size_bytes / SLOWEST_BYTES_S} if is_async else {}

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        try:
            self._call(lambda: self.filesystem.rm_file(key))
        except FileNotFoundError:
            return

    def info(self, key: str) -> Entry:
        """What is known of one object or folder. Raises FileNotFoundError where there is none."""
        return _entry(self._call(lambda: self.filesystem.info(key)))

    def entries(self, key: str, *, deep: bool = False) -> list[Entry]:
        """Objects and folders in a folder, or all objects below it; none where there is no such folder."""
        try:
            if deep:
                found = list(self._call(lambda: self.filesystem.find(key, detail=True)).values())
            else:
                found = self._call(lambda: self.filesystem.ls(key, detail=True))
        except FileNotFoundError:
            return []
        entries = (_entry(each) for each in found)
        return sorted((each for each in entries if each.key != key), key=lambda each: each.key)

    def _call(self, request: Callable[[], T]) -> T:
        """Make a request until it is answered or the patience is over; then the store is left alone for a moment."""
        if time.monotonic() < self._rests_until:
            raise UnreachableError(f"{self.name} does not answer and is left alone for a moment")
        until, pause_s = time.monotonic() + self.patience_s, FIRST_PAUSE_S
        while True:
            self.requests += 1
            try:
                answer = request()
            except Exception as error:
                if not _is_passing(error):
                    self._answered()
                    if type(error).__module__.startswith("botocore"):  # no credentials, or half of them
                        raise PermissionError(f"{self.name} cannot be asked ({_words(error)})") from error
                    raise
                wait_s = random.uniform(0, pause_s)
                if time.monotonic() + wait_s >= until:
                    self._rest()
                    raise UnreachableError(f"{self.name} does not answer ({_words(error)})") from error
                time.sleep(wait_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self._answered()
                return answer

    def _answered(self) -> None:
        if self._failures:
            with self._lock:
                self._failures, self._rests_until = 0, 0.0

    def _rest(self) -> None:
        with self._lock:
            rest_s = min(LONGEST_REST_S, 2.0**self._failures)
            self._failures += 1
            self._rests_until = time.monotonic() + random.uniform(rest_s / 2, rest_s)


def _is_passing(error: Exception) -> bool:
    """Whether an error may be gone with the next try: not that there is no such object, or no right to it."""
    if isinstance(error, (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)):
        return False
    if type(error).__name__ in {"NoCredentialsError", "PartialCredentialsError", "ParamValidationError"}:
        return False
    return isinstance(error, (OSError, TimeoutError)) or type(error).__module__.startswith(("botocore", "aiohttp"))


def _words(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]


def _entry(info: dict[str, Any]) -> Entry:
    names = ("LastModified", "last_modified", "mtime", "created")
    moment = next((info[name] for name in names if info.get(name)), 0)
    seconds = moment.timestamp() if isinstance(moment, datetime) else float(moment)
    key = str(info["name"]).strip("/")
    return Entry(key, info["type"] == "directory", int(info.get("size") or 0), round(seconds * 1e6) * 1000)


@cache
def remote_of(protocol: str) -> Remote:
    """The object stores of a protocol, with the credentials that its library finds in the environment.

    Raises MegascopeError where the library is not installed.
    """
    advice = _EXTRAS.get(protocol, "install the filesystem of fsspec for it")
    try:
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415

        filesystem = fsspec.filesystem(protocol, **_FRESH, **_OPTIONS.get(protocol, {}))
    except (ImportError, ValueError) as error:
        raise MegascopeError(f"Stores at {protocol}:// need a library that is not here ({error}): {advice}.") from error
    filesystem.retries = 1  # of s3fs: one place to try again is enough
    return Remote(filesystem, f"The object store {protocol}://", is_exact=protocol in _EXACT)
