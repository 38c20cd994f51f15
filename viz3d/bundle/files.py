"""Dumps and logs for a bundle: copied under their own names, whole where there is room, and what was not is told."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...profiler.topology_file import HOSTS_FILES, TOPOLOGY_FILE
from ..dumps.names import may_be_dump, ranks_of
from ..logs.reading import log_files
from ..paths import Sources

MOST_FILE_BYTES = 16 * 2**20
"""A larger dump is left out, since half of one cannot be read; of a larger log the last so many bytes are packed."""

MOST_FILES_BYTES = 256 * 2**20
"""All dumps and logs together, before they are compressed."""

PARENTS = 3
"""So many folders above a log are kept: their names tell the attempt and the rank (`attempt_0/3/stderr.log`)."""

BESIDE_DUMPS = (TOPOLOGY_FILE, HOSTS_FILES, "left-out.*.txt")
"""What lies beside dumps and belongs to them."""


@dataclass(slots=True)
class Packed:
    """What was copied into a folder: ``sources`` are the paths to judge again, relative to it, each with its kind;
    ``notes`` say what was cut or left out."""

    sources: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    room: int = MOST_FILES_BYTES

    @property
    def size_bytes(self) -> int:
        """How much was copied."""
        return MOST_FILES_BYTES - self.room


@dataclass(frozen=True, slots=True)
class _File:
    """A file to copy: where to, and the order in which room is given."""

    path: Path
    name: str
    is_log: bool
    order: tuple[int, str]


def copy_files(target: Path, sources: Sources, gathered: Mapping[Path, str], accused: Sequence[int] = ()) -> Packed:
    """Copy the dumps and logs of ``sources``, and folders of ``gathered`` dumps each to its name in ``target``.

    Room is given to what is small and needed first: the mesh beside dumps, the dumps of the ``accused``, logs, and the
    other dumps by name.
    """
    packed = Packed(room=MOST_FILES_BYTES)
    files: list[_File] = []
    for number, path in enumerate(sources.dumps):
        name = f"dumps/{number}/{path.name}"
        packed.sources.append(("dumps", name))
        files += _of_dumps(path, name, frozenset(accused))
    for path, name in gathered.items():
        files += _of_dumps(path, name, frozenset(accused))
    for number, path in enumerate(sources.logs):
        name = "/".join(("logs", str(number), *path.absolute().parts[1:][-PARENTS:]))
        packed.sources.append(("logs", name))
        inside = log_files([path]) if path.is_dir() else [path]
        files += [
            _File(one, f"{name}/{one.relative_to(path)}" if one != path else name, True, (2, "")) for one in inside
        ]
    for one in sorted({file.name: file for file in files}.values(), key=lambda file: (file.order, file.name)):
        _copy(target, one, packed)
    return packed


def _of_dumps(path: Path, name: str, accused: frozenset[int]) -> Iterator[_File]:
    """The dumps of a folder, or the one that ``path`` is, and what belongs to them."""
    folder, inside = (path, name) if path.is_dir() else (path.parent, name.rpartition("/")[0])
    dumps = [one for one in _plain(folder) if may_be_dump(one)] if path.is_dir() else [path]
    ranks, _ = ranks_of(dumps)
    for one in dumps:
        yield _File(one, f"{inside}/{one.name}", False, (1 if ranks.get(one) in accused else 3, one.name))
    for one in _plain(folder):
        if any(one.match(pattern) for pattern in BESIDE_DUMPS):
            yield _File(one, f"{inside}/{one.name}", False, (0, one.name))


def _plain(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_file())
    except OSError:
        return []


def _copy(target: Path, one: _File, packed: Packed) -> None:
    """Copy a file as far as there is room, or note why it is left out."""
    place = target / one.name
    try:
        state = one.path.stat()
        size = min(state.st_size, MOST_FILE_BYTES)
        if size < state.st_size and not one.is_log:
            reason = f"its {state.st_size:,} bytes are more than the {MOST_FILE_BYTES:,} of a file"
            packed.notes.append(f"{one.name}: left out, {reason}")
            return
        if size > packed.room:
            packed.notes.append(f"{one.name}: left out, its {size:,} bytes are more than there is room for")
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with one.path.open("rb") as source, place.open("wb") as copy:
            source.seek(state.st_size - size)
            while (left := size - copy.tell()) > 0 and (piece := source.read(min(left, 2**20))):
                copy.write(piece)
        if size < state.st_size:
            packed.notes.append(f"{one.name}: its last {size:,} of {state.st_size:,} bytes")
        os.utime(place, ns=(state.st_mtime_ns, state.st_mtime_ns))
        packed.room -= size
    except OSError as error:
        place.unlink(missing_ok=True)
        packed.notes.append(f"{one.name}: left out ({error.strerror})")
