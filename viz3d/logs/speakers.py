"""Who wrote a line: prefixes of launchers and of torch, and the names of files that hold one rank each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from .facts import Speaker

NOBODY = Speaker()
"""Who a line is by that names nobody."""

_RANK = re.compile(r"^\[rank(\d{1,7})\]: ?")
_DEFAULT = re.compile(r"^\[[A-Za-z_]+?(\d{1,4})\]:")  # torchrun --tee: the role and the local rank
_MPI = re.compile(r"^\[\d+,(\d{1,7})\]<std(?:out|err)>: ?")
_SRUN = re.compile(r"^ {0,6}(\d{1,7}): ")
_POD = re.compile(
    r"^([A-Za-z][\w.-]*[\w]): "
    r"(?=\[rank\d|\[[A-Za-z_]+\d{1,4}\]:|Traceback|[\w.-]+:\d+:\d+ \[|[IWEF]\d{4} \d\d:)"
)
_GPU_LINE = re.compile(r"^([\w.-]+):(\d+):\d+ \[\d*\] ")

_TORCHRUN = re.compile(r"^(\d+)$")
_NAMED_RANK = re.compile(r"rank[_-]?0*(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"^(.*?)0*(\d{1,7})(?:\.(?:log|out|err|txt|stdout|stderr))*(?:\.gz)?$")
_NO_RANK = re.compile(r"(?:node|host|worker|nid|pod|run|attempt|restart|launch|retry)[_.-]?$", re.IGNORECASE)


def split_speaker(line: str, *, labelled: bool = False) -> tuple[Speaker, str]:
    """What the prefixes of a line tell, and the line without them. A rank of torch's own prefix leads.

    ``labelled``: the file has the task's number before each line (`srun --label`), see `is_labelled`.
    """
    rank = local = None
    host = None
    if found := _POD.match(line):
        host, line = found[1], line[found.end() :]
    if found := _MPI.match(line):
        rank, line = int(found[1]), line[found.end() :]
    if (found := _DEFAULT.match(line)) and not line.startswith("[rank"):
        local, line = int(found[1]), line[found.end() :].lstrip(" ")
    if found := _RANK.match(line):
        rank, line = int(found[1]), line[found.end() :]
    elif labelled and (found := _SRUN.match(line)):
        rest = line[found.end() :]
        inner = _RANK.match(rest)
        rank, line = (int(found[1]), rest) if inner is None else (int(inner[1]), rest[inner.end() :])
    return Speaker(rank, local, host), line


def is_labelled(first_lines: Sequence[str]) -> bool:
    """Whether the first lines of a file all begin with the number of a task."""
    return len(first_lines) >= 2 and all(_SRUN.match(line) is not None for line in first_lines)


def process_of(line: str) -> tuple[str, int] | None:
    """Host and process of a line that NCCL wrote."""
    found = _GPU_LINE.match(line)
    return None if found is None else (found[1], int(found[2]))


def file_speakers(paths: Sequence[Path]) -> dict[Path, Speaker]:
    """What the names of files tell of who wrote them: torchrun's folders, `rank` in a name, or a number that counts
    through files which are otherwise named alike (as Slurm's task numbers do)."""
    told: dict[Path, Speaker] = {}
    alike: dict[tuple[Path, str, str], list[tuple[Path, int]]] = defaultdict(list)
    for path in paths:
        local = _TORCHRUN.match(path.parent.name)
        if path.name.split(".")[0] in ("stderr", "stdout") and local is not None:
            told[path] = Speaker(local_rank=int(local[1]))
        elif named := _NAMED_RANK.search(path.name):
            told[path] = Speaker(rank=int(named[1]))
        elif (found := _LAST_NUMBER.match(path.name)) and not _NO_RANK.search(found[1]):
            ending = path.name[found.end(2) :]
            alike[path.parent, found[1], ending].append((path, int(found[2])))
    for files in alike.values():
        numbers = {number for _, number in files}
        if len(files) > 1 and numbers == set(range(len(files))):
            told.update({path: Speaker(rank=number) for path, number in files})
    return _local_to_global(told)


def _local_to_global(told: dict[Path, Speaker]) -> dict[Path, Speaker]:
    """Where there is one host only, its local ranks are the global ones; torchrun keeps one folder a host and attempt,
    and the last attempt is the one that matters."""
    launches = {path.parent.parent.parent for path, one in told.items() if one.local_rank is not None}
    if len(launches) != 1:
        return told
    return {
        path: one if one.local_rank is None else Speaker(one.local_rank, one.local_rank) for path, one in told.items()
    }
