"""Whose dump a file is, by its name: a prefix and the rank, with host names and endings around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_RANK = re.compile(r"rank[_.=-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_ENDINGS = frozenset({".json", ".pickle", ".pkl", ".bin", ".dump", ".trace", ".fr"})
_NOT_DUMPS = frozenset({".tmp", ".log", ".out", ".err", ".txt", ".md", ".yaml", ".yml", ".toml", ".py", ".gz", ".zip",
                        ".parquet", ".csv", ".html", ".png"})  # fmt: skip
TOPOLOGY = "topology.json"


def may_be_dump(path: Path) -> bool:
    """Whether a file's name is that of a dump: it has a number, and no ending of something else."""
    name = path.name
    if name == TOPOLOGY or name.startswith(".") or path.suffix.lower() in _NOT_DUMPS:
        return False
    return _NUMBER.search(_stem(name)) is not None


def _stem(name: str) -> str:
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def ranks_of(paths: Iterable[Path]) -> tuple[dict[Path, int], list[Path]]:
    """The rank of each file, and the files whose rank cannot be told.

    ``rank3`` in a name says it. Else it is the number at one place of the names that differs from file to file: the
    last such place that tells all files apart, or simply the last number.
    """
    ranks: dict[Path, int] = {}
    others: list[Path] = []
    unknown: list[Path] = []
    for path in paths:
        said = _RANK.findall(_stem(path.name))
        if said:
            ranks[path] = int(said[-1])
        else:
            others.append(path)
    numbers = {path: [int(one) for one in _NUMBER.findall(_stem(path.name))] for path in others}
    place = _telling_place(list(numbers.values()))
    for path, own in numbers.items():
        if len(own) >= place and own[-place] < 10**9:
            ranks[path] = own[-place]
        else:
            unknown.append(path)
    return ranks, unknown


def _telling_place(numbers: Sequence[Sequence[int]]) -> int:
    """Counted from the end of a name, the place whose numbers differ between all files; else the last."""
    shortest = min((len(own) for own in numbers), default=0)
    for place in range(1, shortest + 1):
        if len({own[-place] for own in numbers}) == len(numbers):
            return place
    return 1
