"""Sets of dumps from several places: those of different ranks are one set, those of the same ranks two moments."""

from __future__ import annotations

from collections.abc import Sequence

from .facts import DumpFolder


def merged(folders: Sequence[DumpFolder]) -> list[DumpFolder]:
    """Folders of different ranks (one for each host, or single files) joined to one set; the sets by their moment."""
    sets: list[DumpFolder] = []
    ranks: list[set[int]] = []
    for folder in sorted(folders, key=_last_ns):
        own = set(folder.dumps) | {one.rank for one in folder.damaged if one.rank is not None}
        place = next((number for number, taken in enumerate(ranks) if not taken & own), None)
        if place is None:
            sets.append(folder)
            ranks.append(own)
        else:
            sets[place] = _joined(sets[place], folder)
            ranks[place] |= own
    return sorted(sets, key=_last_ns)


def _last_ns(folder: DumpFolder) -> int:
    return max((dump.last_ns for dump in folder.dumps.values() if dump.last_ns is not None), default=0)


def _joined(one: DumpFolder, other: DumpFolder) -> DumpFolder:
    return DumpFolder(
        one.path,
        {**one.dumps, **other.dumps},
        (*one.damaged, *other.damaged),
        max(one.world_size or 0, other.world_size or 0) or None,
        {**one.hosts, **other.hosts},
        {**one.coordinates, **other.coordinates},
        one.axes or other.axes,
        tuple(dict.fromkeys((*one.notes, *other.notes))),
    )
