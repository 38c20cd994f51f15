"""The files of a job's traces: by themselves, in folders and in tar archives."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...profiler.errors import FormatError, UsageError
from .chrome_json import open_stream
from .imported import Progress

_ENDINGS = (".json", ".json.gz")
_ARCHIVES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace by itself, or a member of an archive."""

    path: Path
    size_bytes: int
    member: str | None = None

    @property
    def name(self) -> str:
        """The file's own name."""
        return Path(self.member or self.path.name).name

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Its bytes, unpacked."""
        if self.member is None:
            with open_stream(self.path) as stream:
                yield stream
            return
        with tarfile.open(self.path) as archive:
            member = archive.extractfile(self.member)
            if member is None:
                raise FormatError(f"{self.member} in {self.path} is no file.")
            with member:
                yield member


def trace_files(paths: Sequence[Path]) -> list[TraceFile]:
    """All traces in files, folders and archives, in the order of their names. UsageError where there is none."""
    found: list[TraceFile] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.is_file() and one.name.endswith(_ENDINGS + _ARCHIVES))
            found += [file for one in inside for file in trace_files([one])]
        elif path.name.endswith(_ARCHIVES):
            found += _members(path)
        else:
            found.append(TraceFile(path, path.stat().st_size))
    if not found:
        raise UsageError(f"There is no trace (*.json, *.json.gz, *.tar.gz) in {', '.join(map(str, paths))}.")
    return found


def _members(path: Path) -> list[TraceFile]:
    try:
        with tarfile.open(path) as archive:
            members = sorted((one.name, one.size) for one in archive if one.isfile() and one.name.endswith(".json"))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise FormatError(f"{path} cannot be unpacked ({error}): get a whole copy of it.") from error
    return [TraceFile(path, size, name) for name, size in members]


def further(progress: Progress, done: int, total: int, stream: IO[bytes]) -> None:
    """Show how many bytes were read: of a packed file, of the packed ones."""
    packed: IO[bytes] | None = getattr(stream, "fileobj", None)
    progress(done + (packed or stream).tell(), total)
