"""The files of a job's traces: by themselves, in folders and in tar archives, which are unpacked once."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...profiler.errors import FormatError, UsageError
from .chrome_json import open_stream
from .hostile import plain_name
from .imported import Progress

_ENDINGS = (".json", ".json.gz")
ARCHIVES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace by itself, or an archive of traces. ``is_named``: the user named it, rather than the folder it is in."""

    path: Path
    size_bytes: int
    is_named: bool = True

    @property
    def is_archive(self) -> bool:
        """Whether there are traces in it."""
        return self.path.name.endswith(ARCHIVES)


@dataclass(frozen=True, slots=True)
class OpenTrace:
    """A trace that can be read now. ``origin`` is what is read of the disk; ``must_be``: anything else is an error."""

    name: str
    stream: IO[bytes]
    origin: IO[bytes]
    must_be: bool


def trace_files(paths: Sequence[Path]) -> tuple[list[TraceFile], list[str]]:
    """All that may hold traces, in the order of the names, and the names of other files. UsageError for none."""
    found: list[TraceFile] = []
    others: list[str] = []
    for path in paths:
        if not path.is_dir():
            found.append(TraceFile(path, path.stat().st_size))
            continue
        for one in sorted(one for one in path.rglob("*") if one.is_file()):
            if one.name.endswith(_ENDINGS + ARCHIVES):
                found.append(TraceFile(one, one.stat().st_size, is_named=False))
            else:
                others.append(plain_name(one))
    if not found:
        raise UsageError(f"There is no trace (*.json, *.json.gz, *.tar.gz) in {', '.join(map(str, paths))}.")
    return found, others


def open_traces(file: TraceFile, others: list[str]) -> Iterator[OpenTrace]:
    """The traces of a file, each to be read before the next is asked for; ``others`` gets names of other members."""
    if not file.is_archive:
        with open_stream(file.path) as stream:
            packed: IO[bytes] | None = getattr(stream, "fileobj", None)
            yield OpenTrace(plain_name(file.path), stream, packed or stream, file.is_named)
        return
    with file.path.open("rb") as origin:
        try:
            with tarfile.open(fileobj=origin, mode="r|*") as archive:
                yield from _members(archive, origin, others)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FormatError(f"{file.path} cannot be unpacked ({error}): get a whole copy of it.") from error


def _members(archive: tarfile.TarFile, origin: IO[bytes], others: list[str]) -> Iterator[OpenTrace]:
    for member in archive:
        stream = archive.extractfile(member) if member.isfile() else None
        if stream is None:
            continue
        if not member.name.endswith(_ENDINGS):
            others.append(plain_name(member.name))
            continue
        with stream:
            is_packed = stream.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]
            content: IO[bytes] = gzip.GzipFile(fileobj=stream) if is_packed else stream  # type: ignore[assignment]
            yield OpenTrace(plain_name(member.name), content, origin, must_be=False)


def further(progress: Progress, done: int, total: int, origin: IO[bytes]) -> None:
    """Show how many bytes of the disk were read."""
    progress(done + origin.tell(), total)
