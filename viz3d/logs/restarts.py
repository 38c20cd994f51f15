"""Logs of earlier starts of a job, by their names, unless what is in them says that they are no such thing."""

from __future__ import annotations

import functools
import gzip
import itertools
import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .stamps import Stamps

_ATTEMPT = re.compile(r"^attempt_(\d+)$")
_RESTART = re.compile(r"^(run|attempt|restart|launch|retry)[_.-]?(\d{1,4})\.", re.IGNORECASE)
_SPEAKER = re.compile(rb"^\[rank(\d{1,7})\]", re.MULTILINE)

LOOK_BYTES = 64 * 2**10
"""So much of a file's beginning and of its end is looked at."""

MOST_UNPACKED = 2**30
"""Of a packed file no more than so much is unpacked to find its end."""

FILES_LOOKED_AT = 8
"""Of the many files of one start, so many are looked at."""

TOGETHER_NS = 60 * 10**9
"""A start that still writes so long after the beginning of the next one is not over when that begins."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file's beginning and end tell: first and last moment (None: none is told), and the ranks that speak."""

    first_ns: int | None
    last_ns: int | None
    ranks: frozenset[int]


def last_starts(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The files without those of starts that were started again, and those.

    ``attempt_0/``, ``attempt_1/`` (torchrun), or ``run-0.log``, ``run-1.log`` are starts one after the other, and the
    last is the one that hangs. Not so where their content says otherwise: they were written at the same time, or, where
    they tell no times, by different ranks.
    """
    series: dict[Path, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in files:
        started = _start_of(path)
        if started is not None:
            series[started[0]][started[1]].append(path)
    earlier: set[Path] = set()
    for starts in series.values():
        numbers = sorted(starts)
        for number, following in itertools.pairwise(numbers):
            if _follow(starts[number], starts[following]):
                earlier.update(starts[number])
    return [path for path in files if path not in earlier], sorted(earlier)


def _start_of(path: Path) -> tuple[Path, int] | None:
    """The series that a file belongs to by its name, and the number of its start."""
    for folder in path.parents:
        if found := _ATTEMPT.match(folder.name):
            return folder.parent, int(found[1])
    if started := _RESTART.match(path.name):
        return path.parent / path.name.replace(started[2], "#", 1), int(started[2])
    return None


def _follow(one: Sequence[Path], other: Sequence[Path]) -> bool:
    """Whether nothing in the files contradicts that the first start was over when the second began."""
    before, after = ([content_of(path) for path in files[:FILES_LOOKED_AT]] for files in (one, other))
    last = max((content.last_ns for content in before if content.last_ns is not None), default=None)
    first = min((content.first_ns for content in after if content.first_ns is not None), default=None)
    if last is not None and first is not None:
        return last <= first + TOGETHER_NS
    speak = [{rank for content in contents for rank in content.ranks} for contents in (before, after)]
    return not speak[0] or not speak[1] or not speak[0].isdisjoint(speak[1])


def content_of(path: Path) -> Content:
    """See `Content`; nothing is told of a file that cannot be read."""
    try:
        state = path.stat()
        return _content_of(path, state.st_size, state.st_mtime_ns)
    except (OSError, EOFError, zlib.error):
        return Content(None, None, frozenset())


@functools.lru_cache(maxsize=4096)
def _content_of(path: Path, size: int, modified_ns: int) -> Content:
    head, tail = _ends(path, size)
    stamps = Stamps(modified_ns)
    moments = [
        moment
        for part in (head, tail)
        for line in part.decode("utf-8", "replace").splitlines()
        if (moment := stamps.moment_ns(line)) is not None
    ]
    ranks = frozenset(int(rank) for part in (head, tail) for rank in _SPEAKER.findall(part))
    return Content(moments[0] if moments else None, moments[-1] if moments else None, ranks)


def _ends(path: Path, size: int) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        head = file.read(LOOK_BYTES)
        if not head.startswith(b"\x1f\x8b"):
            file.seek(max(0, size - LOOK_BYTES))
            return head, file.read(LOOK_BYTES)
    with gzip.open(path, "rb") as packed:
        head = tail = packed.read(LOOK_BYTES)
        done = len(head)
        while done < MOST_UNPACKED and (piece := packed.read(LOOK_BYTES)):
            tail, done = (tail + piece)[-LOOK_BYTES:], done + len(piece)
    return head, tail
