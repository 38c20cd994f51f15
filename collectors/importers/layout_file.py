"""The file that tells a job's layout: lines of ``key: value``, such as ``pp_size: 4``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ...profiler.errors import FormatError, UsageError
from ...profiler.topology import Topology
from .hostile import whole

_ENDING = "_size"
_NO_AXES = frozenset({"world_size", "vpp_size"})
"""Sizes that are none of an axis: the number of ranks, and that of the chunks on a rank."""


MOST_RANKS = 1 << 24
"""More than any job has."""


def read_meta(path: Path) -> dict[str, str]:
    """Flat ``key: value`` lines. Raises FormatError for a file that has anything else."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text or text == "---":
            continue
        key, colon, value = text.partition(":")
        if not colon:
            raise FormatError(f"Line {number} of {path} is not key: value: give the layout as lines of that kind.")
        found[key.strip()] = value.strip().strip("'\"")
    return found


def sizes_of(meta: Mapping[str, str], where: Path) -> dict[str, int]:
    """Size by axis, in the order of the lines. Raises FormatError for a size that is none."""
    found = {}
    for key, value in meta.items():
        if key.endswith(_ENDING) and key not in _NO_AXES:
            size = whole(value, MOST_RANKS + 1)
            if not size:
                raise FormatError(f"{key} in {where} is {value[:40]!r}: give a size from 1 to {MOST_RANKS:,}.")
            found[key.removesuffix(_ENDING)] = size
    if math.prod(found.values()) > MOST_RANKS:
        raise FormatError(f"{where} tells a layout of more than {MOST_RANKS:,} ranks: check its sizes.")
    return found


def read_layout(path: Path) -> Topology:
    """The mesh that a file tells, the outermost axis in the first line. UsageError where it tells none."""
    sizes = {axis: size for axis, size in sizes_of(read_meta(path), path).items() if size > 1}
    if not sizes:
        raise UsageError(f"{path} tells no layout: give lines such as pp_size: 4, the outermost axis first.")
    return Topology.from_mapping(sizes)
