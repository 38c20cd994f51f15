"""`read_logs`: job logs of all ranks, or of one each, packed or not, to what they tell of a hang."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...profiler.errors import UsageError
from .clocks import clocks_of
from .facts import (
    DesyncReport,
    DeviceError,
    DumpSignal,
    Ending,
    Exit,
    GpuFault,
    LinkError,
    LogEvidence,
    LogFile,
    Raised,
    Speaker,
    Stuck,
    Timeout,
    Watermark,
)
from .groups import complete
from .one_file import FileFacts, read_file
from .restarts import last_starts
from .speakers import NOBODY, file_speakers

ENDINGS = (".log", ".out", ".err", ".txt", ".stdout", ".stderr", ".dmesg")
"""Endings of files in a folder that are taken for logs, also with `.gz` behind them or a number (`.log.1`)."""

_ROTATED = re.compile(r"\.\d+$")

Progress = Callable[[str], None]


def is_log_name(path: Path) -> bool:
    """Whether a file in a folder is taken for a log, by its name."""
    name = path.name.removesuffix(".gz")
    return _ROTATED.sub("", name).endswith(ENDINGS)


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files to read: those given, and all logs below given folders; of starts the last one (`last_starts`)."""
    return last_starts(_all_files(paths))[0]


def _all_files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(one for one in path.rglob("*") if one.is_file() and is_log_name(one))
        elif path.exists():
            found.append(path)
        else:
            raise UsageError(f"There is no file {path}: give the logs of the job, or the folder that they are in.")
    return list(dict.fromkeys(found))


def read_logs(paths: Sequence[Path], progress: Progress | None = None) -> LogEvidence:
    """Read logs in one pass each. UsageError if there is none; one that cannot be read is named in ``files``.

    Times are UTC ns as if a log that names no zone were in UTC: those of several files are compared only where their
    clocks agree (``clocks``). Memory is bounded by the facts, not by the files.
    """
    files, earlier = last_starts(_all_files(paths))
    if not files:
        raise UsageError(
            f"There is no log ({', '.join(ENDINGS[:4])}, packed or not) in {', '.join(map(str, paths))}: "
            f"give the files themselves."
        )
    speakers = file_speakers(files)
    names = _names(files)
    parts = {}
    for path in files:
        if progress is not None:
            progress(names[path])
        parts[path] = read_file(path, names[path], speakers.get(path, NOBODY))
    shift = _shift(parts, speakers)
    if shift != 0:
        for path, speaker in _shifted(speakers, shift).items():
            parts[path] = read_file(path, names[path], speaker)
        return complete(_together(list(parts.values()), earlier))
    evidence = _together(list(parts.values()), earlier)
    if evidence.world_size is None:
        evidence = replace(evidence, world_size=_whole(speakers))
    return complete(evidence)


def _shift(parts: Mapping[Path, FileFacts], speakers: Mapping[Path, Speaker]) -> int | None:
    """By how much the global ranks in the lines differ from the local ones in torchrun's folders: these are the logs
    of a further host. None if by different numbers."""
    found = {
        next(iter(part.prefixes)) - local
        for path, part in parts.items()
        if (local := speakers.get(path, NOBODY).local_rank) is not None and len(part.prefixes) == 1
    }
    return next(iter(found or {0})) if len(found) < 2 else None


def _shifted(speakers: Mapping[Path, Speaker], shift: int | None) -> dict[Path, Speaker]:
    """Files of local ranks, by their global ones where those are known."""
    return {
        path: Speaker(None if shift is None else one.local_rank + shift, one.local_rank)
        for path, one in speakers.items()
        if one.local_rank is not None
    }


def _whole(speakers: Mapping[Path, Speaker]) -> int | None:
    """The size of a job of which every rank has a file of its own; None for fewer than two, or where one is missing."""
    ranks = {one.rank for one in speakers.values() if one.rank is not None}
    return len(ranks) if len(ranks) > 1 and ranks == set(range(len(ranks))) else None


def _names(files: Sequence[Path]) -> dict[Path, str]:
    """Short names that still differ: of files of the same name, the folders they are in."""
    often = Counter(path.name for path in files)
    return {path: path.name if often[path.name] == 1 else "/".join(path.parts[-3:]) for path in files}


def _together(parts: Sequence[FileFacts], earlier: Sequence[Path]) -> LogEvidence:
    facts = [fact for part in parts for fact in part.facts]
    worlds = [part.world_size for part in parts if part.world_size is not None]
    steps = [part.last_step for part in parts if part.last_step is not None]
    moments = [part.last_ns for part in parts if part.last_ns is not None]
    dropped = sum(part.dropped for part in parts)
    return LogEvidence(
        files=tuple(LogFile(p.file.name, p.file.lines, p.file.cut_lines, p.file.trouble) for p in parts),
        timeouts=tuple(one for one in facts if isinstance(one, Timeout)),
        watermarks=tuple(one for one in facts if isinstance(one, Watermark)),
        signals=tuple(one for one in facts if isinstance(one, DumpSignal)),
        desyncs=tuple(one for one in facts if isinstance(one, DesyncReport)),
        raised=tuple(one for one in facts if isinstance(one, Raised)),
        exits=tuple(one for one in facts if isinstance(one, Exit)),
        members=tuple(one for part in parts for one in part.members),
        gpu_faults=tuple(one for one in facts if isinstance(one, GpuFault)),
        link_errors=tuple(one for one in facts if isinstance(one, LinkError)),
        device_errors=tuple(one for one in facts if isinstance(one, DeviceError)),
        stuck=tuple(one for one in facts if isinstance(one, Stuck)),
        endings=tuple(one for one in facts if isinstance(one, Ending)),
        sizes={name: size for part in parts for name, size in part.sizes.items()},
        hosts={rank: host for part in parts for rank, host in part.hosts.items()},
        heard=frozenset(rank for part in parts for rank in part.heard),
        world_size=max(worlds, default=None),
        last_step=max(steps, default=None),
        last_ns=max(moments, default=None),
        dropped={"facts": dropped} if dropped else {},
        clocks=clocks_of([part.times for part in parts]),
        earlier=tuple(_names(earlier).values()),
    )
