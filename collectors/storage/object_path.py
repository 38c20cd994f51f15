"""A path in an object store with the methods of `pathlib.Path` that a store needs; whole objects are read and put."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import Any, NoReturn

from .remote import Entry, Remote, remote_of


class ObjectPath(PosixPath):
    """``s3://bucket/prefix/...``. Folders are what stands before a slash: they need not be made and do not stay empty.

    Nothing can be renamed, linked, locked or appended to. Errors are those of `Storage`, and FileNotFoundError.
    """

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def remote(self) -> Remote:
        """The object stores of its protocol."""
        return remote_of(self.parts[0].rstrip(":"))

    @property
    def key(self) -> str:
        """Bucket and name of the object."""
        return "/".join(self.parts[1:])

    def __str__(self) -> str:
        parts = self.parts
        is_whole = bool(parts) and parts[0].endswith(":")
        return f"{parts[0]}//{self.key}" if is_whole else "/".join(parts) or "."

    def __fspath__(self) -> str:
        return str(self)

    def is_absolute(self) -> bool:
        """Whether it begins with a protocol."""
        return bool(self.parts) and self.parts[0].endswith(":")

    def absolute(self) -> ObjectPath:
        """Itself."""
        return self

    def resolve(self, strict: bool = False) -> ObjectPath:
        """Itself."""
        return self

    # -- reading ----------------------------------------------------------------------------------------------------

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Size and moment of the last change, by the server's clock."""
        return _state(self.remote.info(self.key))

    def lstat(self) -> os.stat_result:
        """As `stat`."""
        return self.stat()

    def exists(self, **_: Any) -> bool:
        """Whether there is such an object, or any below it."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self, **_: Any) -> bool:
        """Whether there is any object below it."""
        try:
            return stat.S_ISDIR(self.stat().st_mode)
        except FileNotFoundError:
            return False

    def is_file(self, **_: Any) -> bool:
        """Whether it is an object."""
        try:
            return stat.S_ISREG(self.stat().st_mode)
        except FileNotFoundError:
            return False

    def is_symlink(self) -> bool:
        """There are none."""
        return False

    def read_bytes(self) -> bytes:
        """The whole object."""
        return self.remote.read(self.key)

    def read_text(self, encoding: str | None = None, errors: str | None = None, **_: Any) -> str:
        """The whole object as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(self, mode: str = "r", *args: Any, **more: Any) -> Any:
        """The whole object in memory, for reading."""
        if mode == "rb":
            return io.BytesIO(self.read_bytes())
        if mode == "r":
            return io.StringIO(self.read_text(more.get("encoding"), more.get("errors")))
        raise io.UnsupportedOperation(f"{self} is an object: it is written as a whole")

    def listed(self) -> list[tuple[ObjectPath, bool]]:
        """What lies in this folder, in order, and whether it is a folder itself."""
        return [(self / entry.key.rpartition("/")[2], entry.is_folder) for entry in self.remote.entries(self.key)]

    def iterdir(self) -> Iterator[ObjectPath]:  # type: ignore[override]
        """What lies in this folder; nothing where there is no such folder."""
        return (path for path, _ in self.listed())

    def files(self) -> list[tuple[ObjectPath, os.stat_result]]:
        """All objects below it, in order, with what the listing says of them: one request for a thousand."""
        skipped = len(self.parts) - 1
        return [
            (self.joinpath(*entry.key.split("/")[skipped:]), _state(entry))
            for entry in self.remote.entries(self.key, deep=True)
        ]

    def glob(self, pattern: str, **_: Any) -> Iterator[ObjectPath]:  # type: ignore[override]
        """Paths below that fit a relative pattern without ``**``, in order: one listing for each folder on the way."""
        return self._matching(pattern.split("/"))

    def _matching(self, names: Sequence[str]) -> Iterator[ObjectPath]:
        name, *rest = names
        if not any(mark in name for mark in "*?["):
            path = self / name
            if rest or path.exists():
                yield from path._matching(rest) if rest else (path,)
            return
        for entry in self.remote.entries(self.key):
            last = entry.key.rpartition("/")[2]
            if fnmatchcase(last, name) and (entry.is_folder or not rest):
                path = self / last
                yield from path._matching(rest) if rest else (path,)

    def rglob(self, pattern: str, **_: Any) -> Iterator[ObjectPath]:  # type: ignore[override]
        """Objects anywhere below whose name fits a pattern."""
        return (path for path, _ in self.files() if fnmatchcase(path.name, pattern))

    # -- writing ----------------------------------------------------------------------------------------------------

    def write_bytes(self, data: Any) -> int:
        """Put the object whole, in place of what is there."""
        content = bytes(data)
        self.remote.put(self.key, content)
        return len(content)

    def write_text(self, data: str, encoding: str | None = None, *_: Any, **__: Any) -> int:
        """As `write_bytes`."""
        return self.write_bytes(data.encode(encoding or "utf-8"))

    def put_file(self, local: Path) -> None:
        """Put a local file as this object."""
        self.remote.put(self.key, local)

    def create(self, content: bytes) -> bool:
        """Put the object where there is none; False where there is one with another content."""
        return self.remote.create(self.key, content)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        if not missing_ok:
            self.stat()
        self.remote.delete(self.key)

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Folders need not be made."""

    def rmdir(self) -> None:
        """Folders are gone with the last object in them."""

    def remove_all(self) -> None:
        """Delete all objects below it."""
        for path, _ in self.files():
            path.unlink(missing_ok=True)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise io.UnsupportedOperation(f"{self} is an object: it can be neither renamed nor linked, and has no mode")

    rename = replace = touch = chmod = lchmod = symlink_to = hardlink_to = readlink = _refuse


def _state(entry: Entry) -> os.stat_result:
    kind = stat.S_IFDIR | 0o755 if entry.is_folder else stat.S_IFREG | 0o644
    seconds = entry.modified_ns / 1e9
    values = (kind, 0, 0, 1, 0, 0, entry.size_bytes, int(seconds), int(seconds), int(seconds))
    moments = {"st_atime": seconds, "st_mtime": seconds, "st_ctime": seconds, "st_mtime_ns": entry.modified_ns}
    return os.stat_result(values, moments)
