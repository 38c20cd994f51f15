"""The heatmap as hosts by GPUs: a cell a rank, the hosts side by side in as many columns as fill the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .rows import Section

IntArray = npt.NDArray[np.int64]

WIDEST_HOST = 16
"""A host of more ranks is folded into lines of `FOLD`."""

FOLD = 8
SHAPE = 672 / 440
"""Width over height of the place on the page at 1280x720; cells come out about square."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Where ranks stand: ``at`` [rows, columns] is the position of each cell's rank among the shown ones, -1 for gaps.

    ``gpus`` cells of a host stand side by side, then one gap. ``hosts`` is the first host of each row, ``sections`` the
    label of each section and its first and last row.
    """

    at: IntArray
    gpus: int
    hosts: tuple[str, ...]
    sections: tuple[Section, ...]


def lay_out(hosts: Sequence[str], slots: Sequence[int], sections: Sequence[Section]) -> Grid:
    """Lay out ranks in the given order: their hosts [R] and places on the host [R] (-1 unknown), and their sections.

    Hosts follow in the order of their first rank; each section begins a new row. A rank whose place is not known, or
    taken by another, gets the next free one.
    """
    places = _places(hosts, slots)
    most = max(places, default=0) + 1
    gpus = most if most <= WIDEST_HOST else FOLD
    blocks, bounds = _blocks(hosts, places, gpus, sections or (Section("", 0, len(hosts) - 1),))
    across = max(1, min(round(math.sqrt(len(blocks) * SHAPE / (gpus + 1))), len(blocks)))
    line, column, rows = np.zeros(len(blocks), np.int64), np.zeros(len(blocks), np.int64), 0
    shown: list[Section] = []
    for label, first, last in bounds:
        counted = np.arange(last - first + 1)
        line[first : last + 1], column[first : last + 1] = rows + counted // across, counted % across
        shown.append(Section(label, rows, int(line[last])))
        rows = int(line[last]) + 1
    at = np.full((rows, across * (gpus + 1) - 1), -1, np.int64)
    heads = [""] * rows
    for number, ((_, host, _), members) in enumerate(blocks.items()):
        heads[line[number]] = heads[line[number]] or host
        for position, place in members:
            at[line[number], column[number] * (gpus + 1) + place % gpus] = position
    return Grid(at, gpus, tuple(heads), tuple(shown) if sections else ())


_Block = tuple[int, str, int]


def _places(hosts: Sequence[str], slots: Sequence[int]) -> list[int]:
    taken: dict[str, set[int]] = {}
    for host, slot in zip(hosts, slots, strict=True):
        if slot >= 0:
            taken.setdefault(host, set()).add(slot)
    used: dict[str, set[int]] = {}
    following: dict[str, int] = {}
    found = []
    for host, slot in zip(hosts, slots, strict=True):
        mine = used.setdefault(host, set())
        place = slot
        if slot < 0 or slot in mine:
            place = following.get(host, 0)
            while place in mine or place in taken.get(host, ()):
                place += 1
            following[host] = place + 1
        mine.add(place)
        found.append(place)
    return found


def _blocks(
    hosts: Sequence[str], places: Sequence[int], gpus: int, sections: Sequence[Section]
) -> tuple[dict[_Block, list[tuple[int, int]]], list[tuple[str, int, int]]]:
    """Hosts (or lines of a folded one) with the positions and places of their ranks, and each section's blocks."""
    blocks: dict[_Block, list[tuple[int, int]]] = {}
    bounds = []
    for number, section in enumerate(sections):
        first = len(blocks)
        for position in range(section.first, section.last + 1):
            key = (number, hosts[position], places[position] // gpus)
            blocks.setdefault(key, []).append((position, places[position]))
        bounds.append((section.label, first, len(blocks) - 1))
    return blocks, bounds
