"""A folder of dumps: each file is reduced as it is read, and one that holds no dump is kept as what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...collectors.incidents.dumps import LEFT_OUT
from ...profiler.errors import FormatError, UsageError
from ...profiler.topology_file import TopologyFile, read_topology
from .facts import Damaged, Dump, DumpFolder
from .loading import DumpError, is_json, load
from .names import may_be_dump, ranks_of
from .parsing import parse

BLANK = "it holds no operation and no count: nothing was recorded there, so it says nothing of what its rank did"
_FIRST_BYTES = (b"\x80", b"{", b"(", b"}")
Progress = Callable[[int, int], None]
"""Told how many files are read, and of how many."""


def is_dump_folder(path: Path) -> bool:
    """Whether a folder looks like one of dumps: one of its first files begins as a pickle or JSON does."""
    if not path.is_dir():
        return False
    candidates = [one for one in _files(path) if may_be_dump(one)]
    return any(_begins_well(one) for one in candidates[:64])


def is_dump_file(path: Path) -> bool:
    """Whether a single file is taken for a dump: by its name, and for it begins as one, or is empty."""
    return path.is_file() and may_be_dump(path) and (_begins_well(path) or not path.stat().st_size)


def read_folder(path: Path, progress: Progress | None = None) -> DumpFolder:
    """All dumps of a folder, or the one that ``path`` is. UsageError where there is none.

    A file that is empty, cut or damaged is listed, not dropped: that a rank's dump is so is evidence too. One in which
    nothing was recorded is listed as well, and is none: its rank did answer. Of two files of one rank the newer is
    taken, and that is noted.
    """
    files = [path] if path.is_file() else [one for one in _files(path) if may_be_dump(one)]
    if not files:
        raise UsageError(f"{path} has no Flight Recorder dumps: name the folder with files such as _dump_0, _dump_1.")
    notes: list[str] = []
    topology = _topology(path if path.is_dir() else path.parent, notes)
    ranks, unknown = ranks_of(files)
    damaged = [Damaged(one, None, "its name does not tell the rank") for one in unknown]
    damaged += _left_out(path) if path.is_dir() else []
    dumps: dict[int, Dump] = {}
    for number, (file, rank) in enumerate(sorted(ranks.items(), key=lambda one: (one[1], _written(one[0])))):
        if progress is not None and number % 200 == 0:
            progress(number, len(ranks))
        try:
            dump = replace(parse(load(file), rank, file, topology), is_json=is_json(file))
        except DumpError as error:
            damaged.append(Damaged(file, rank, str(error)))
            continue
        if dump.is_blank:
            damaged.append(Damaged(file, rank, BLANK, has_answered=True))
            continue
        if rank in dumps:
            both = f"{dumps[rank].path.name} and {file.name} are both of rank {rank}"
            notes.append(f"{both}: the newer, {file.name}, is used")
        dumps[rank] = dump
    damaged = list({(one.rank, one.path): one for one in damaged if one.rank not in dumps}.values())
    if not dumps and not any(one.rank is not None for one in damaged):
        raise UsageError(f"No file in {path} is a Flight Recorder dump: name the folder with files such as _dump_0.")
    return _folder(path, dumps, damaged, topology, notes)


def _folder(
    path: Path, dumps: dict[int, Dump], damaged: list[Damaged], topology: TopologyFile | None, notes: list[str]
) -> DumpFolder:
    if topology is None:
        return DumpFolder(path, dumps, tuple(damaged), notes=tuple(notes))
    return DumpFolder(
        path, dumps, tuple(damaged), topology.world_size, topology.hosts, topology.coordinates, tuple(topology.axes),
        tuple(notes),
    )  # fmt: skip


def _left_out(folder: Path) -> list[Damaged]:
    """Dumps that agents could not bring into the store, by their lists (see `collectors.dumps`)."""
    told: dict[Path, str] = {}
    for listed in sorted(folder.glob(LEFT_OUT.format("*"))):
        try:
            lines = listed.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        pairs = [line.split(": ", 1) for line in lines if ": " in line]
        told |= {Path(name): reason for name, reason in pairs if may_be_dump(Path(name))}
    ranks, _ = ranks_of(told)
    return [Damaged(path, rank, f"left on its host: {told[path]}", has_answered=True) for path, rank in ranks.items()]


def _files(path: Path) -> list[Path]:
    """The files of a folder by name. To compare paths instead takes a second where there are those of a fleet."""
    return sorted((one for one in path.iterdir() if one.is_file()), key=lambda one: one.name)


def _begins_well(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(1) in _FIRST_BYTES
    except OSError:
        return False


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _topology(folder: Path, notes: list[str]) -> TopologyFile | None:
    try:
        return read_topology(folder)
    except (FormatError, OSError) as error:
        notes.append(f"the topology beside the dumps is not used: {error}")
        return None
