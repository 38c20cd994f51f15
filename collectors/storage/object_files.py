"""DuckDB's way into an object store: files of fixed content, read ahead, in blocks of which the last stay in memory."""

from __future__ import annotations

import contextlib
import io
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .object_path import ObjectPath
from .remote import Remote, remote_of

if TYPE_CHECKING:
    import duckdb

BLOCK_BYTES = 2**20
"""A smaller file is one request, and so is a run of neighbouring blocks."""

CACHE_BYTES = 256 * 2**20

AHEAD = 16
"""Small files that are asked for at once, when the one before them is opened."""


class BlockCache:
    """Blocks of objects that never change, the least used ones dropped first; all readers of a process share one."""

    def __init__(self, remote: Remote, limit_bytes: int = CACHE_BYTES) -> None:
        self._remote, self._most = remote, max(1, limit_bytes // BLOCK_BYTES)
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._tables: dict[str, list[str]] = {}
        self._places: dict[str, tuple[list[str], int]] = {}
        self._coming: dict[str, Future[None]] = {}

    def size(self, key: str) -> int:
        """Bytes of an object. Raises FileNotFoundError."""
        if key not in self._sizes:
            self._sizes[key] = self._remote.info(key).size_bytes
        return self._sizes[key]

    def note_size(self, key: str, size_bytes: int) -> None:
        """What a manifest says of an object's size, so that nobody has to ask; and that it is a file of a table."""
        self._sizes[key] = size_bytes
        if key not in self._places:
            with self._lock:
                files = self._tables.setdefault(key.rsplit("/", 2)[0], [])
                self._places[key] = files, len(files)
                files.append(key)

    def fetch_ahead(self, key: str) -> None:
        """Begin to read the small files behind one of the same attempt's table: who opens one is about to open them."""
        files, at = self._places.get(key, ([], 0))
        for other in files[at + 1 : at + 1 + AHEAD]:
            with self._lock:
                is_wanted = self._sizes[other] <= BLOCK_BYTES and other not in self._coming
                if is_wanted and (other, 0) not in self._blocks:
                    with contextlib.suppress(RuntimeError):  # no thread can be started, or Python ends
                        self._coming[other] = _pool().submit(self._fetch, other)

    def _fetch(self, key: str) -> None:
        """A small file. Where it cannot be had, who reads it finds out and says so."""
        try:
            with contextlib.suppress(OSError):
                self._keep(key, {0: self._remote.read(key, 0, self._sizes[key])})
        finally:
            with self._lock:
                self._coming.pop(key, None)

    def read(self, key: str, start: int, end: int) -> bytes:
        """The bytes from ``start`` to before ``end``, which may be beyond the object's end."""
        end = min(end, self.size(key))
        if end <= start:
            return b""
        numbers = range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)
        coming = self._coming.get(key)
        if coming is not None:
            wait([coming])
        found = self._known(key, numbers)
        missing = [number for number in numbers if number not in found]
        for first, last in _runs(missing):
            content = self._remote.read(key, first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, self.size(key)))
            for number in range(first, last + 1):
                found[number] = content[(number - first) * BLOCK_BYTES : (number - first + 1) * BLOCK_BYTES]
            self._keep(key, {number: found[number] for number in range(first, last + 1)})
        whole = b"".join(found[number] for number in numbers)
        offset = start - numbers[0] * BLOCK_BYTES
        return whole[offset : offset + end - start]

    def _known(self, key: str, numbers: range) -> dict[int, bytes]:
        with self._lock:
            found = {}
            for number in numbers:
                block = self._blocks.get((key, number))
                if block is not None:
                    self._blocks.move_to_end((key, number))
                    found[number] = block
            return found

    def _keep(self, key: str, blocks: dict[int, bytes]) -> None:
        with self._lock:
            for number, block in blocks.items():
                self._blocks[key, number] = block
            while len(self._blocks) > self._most:
                self._blocks.popitem(last=False)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AHEAD, thread_name_prefix="megascope-ahead")


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers as pairs of the first and the last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


class ObjectFile(io.RawIOBase):
    """An object open for reading."""

    def __init__(self, cache: BlockCache, key: str) -> None:
        super().__init__()
        self._cache, self._key, self._at = cache, key, 0
        self.size = cache.size(key)

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes."""
        end = self.size if size is None or size < 0 else self._at + size
        found = self._cache.read(self._key, self._at, end)
        self._at += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        """The next bytes, into a buffer."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


_WHENEVER = datetime(2000, 1, 1, tzinfo=UTC)
"""When an object was changed last, for DuckDB's own cache: it never is."""

_caches: dict[str, BlockCache] = {}


def block_cache(protocol: str) -> BlockCache:
    """The blocks of this process of all stores of a protocol."""
    return _caches.setdefault(protocol, BlockCache(remote_of(protocol)))


def note_size(path: Path, size_bytes: int) -> None:
    """Tell readers an object's size, which its manifest says."""
    protocol, key = _split(str(path))
    block_cache(protocol).note_size(key, size_bytes)


def open_object(path: Path) -> ObjectFile:
    """An object as a file that Arrow can read from."""
    protocol, key = _split(str(path))
    return ObjectFile(block_cache(protocol), key)


def register(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    """Let a DuckDB connection read the files of a store, where it needs help for that."""
    if isinstance(root, ObjectPath):
        connection.register_filesystem(_filesystem(_split(str(root))[0]))


def _split(url: str) -> tuple[str, str]:
    protocol, _, key = url.partition("://")
    return protocol, key


def _filesystem(protocol: str) -> Any:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]  # noqa: PLC0415

    blocks = block_cache(protocol)

    class Objects(AbstractFileSystem):  # type: ignore[misc]
        """What DuckDB asks of a file system; it only reads, and a file once written stays as it is."""

        cachable = False

        def open(self, path: str, mode: str = "rb", **_: Any) -> ObjectFile:
            if mode != "rb":
                raise io.UnsupportedOperation(f"{path} is only read")
            key = _split(path)[1]
            blocks.fetch_ahead(key)
            return ObjectFile(blocks, key)

        def glob(self, path: str, **_: Any) -> list[str]:
            return [path]

        def exists(self, path: str, **_: Any) -> bool:
            try:
                return blocks.size(_split(path)[1]) >= 0
            except FileNotFoundError:
                return False

        def size(self, path: str) -> int:
            return blocks.size(_split(path)[1])

        def modified(self, path: str) -> Any:
            return _WHENEVER

    filesystem = Objects()
    filesystem.protocol = protocol
    return filesystem
