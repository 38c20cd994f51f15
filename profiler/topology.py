"""The mesh of a job: axes in any number and order, coordinates of ranks, and groups along an axis."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .errors import UsageError

RESERVED_AXIS_NAMES = frozenset({"run", "attempt", "rank", "host", "local_rank", "device", "pid", "stage", "step"})


def stable_id(*parts: str) -> int:
    """A 63-bit identity of the given texts that is the same on every rank and host."""
    digest = hashlib.blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def group_id(kind: str, ranks: Sequence[int]) -> int:
    """Identity of a process group: its kind and its sorted global ranks, never a library's name or number."""
    return stable_id("group", kind, ",".join(str(rank) for rank in sorted(ranks)))


def segment_id(name: str, kind: str, axis: str | None) -> int:
    """Identity of a segment: its name, its kind and the axis that it communicates over (if any)."""
    return stable_id("segment", name, kind, axis or "")


@dataclass(frozen=True, slots=True)
class Topology:
    """A mesh of ranks. ``axes`` maps an axis's name to its size, the outermost (slowest-varying) first.

    >>> mesh = Topology.of(pp=2, dp=2, tp=2)
    >>> mesh.coordinates(5)
    {'pp': 1, 'dp': 0, 'tp': 1}
    >>> mesh.group("pp", 5)
    (1, 5)
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names):
            raise UsageError(f"The layout names an axis twice: {', '.join(names)}. Name each axis once.")
        for name, size in self.axes:
            if name in RESERVED_AXIS_NAMES or not name.isidentifier():
                raise UsageError(f"The layout has an axis called {name!r}, which cannot be an axis name. Rename it.")
            if size < 1:
                raise UsageError(f"The layout gives axis {name} the size {size}. Sizes start at 1.")

    @classmethod
    def of(cls, **axes: int) -> Topology:
        """Build from keyword arguments, the outermost axis first."""
        return cls(tuple(axes.items()))

    @classmethod
    def from_mapping(cls, axes: Mapping[str, int]) -> Topology:
        """Build from a mapping whose order is the order of the axes, the outermost first."""
        return cls(tuple((str(name), int(size)) for name, size in axes.items()))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(size for _, size in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names, the outermost first."""
        return tuple(name for name, _ in self.axes)

    def size(self, axis: str) -> int:
        """Size of an axis; 1 if the mesh does not have it."""
        return dict(self.axes).get(axis, 1)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The index of a rank on every axis, the outermost first."""
        if not 0 <= rank < self.world_size:
            raise UsageError(f"Rank {rank} is outside a mesh of {self.world_size} ranks.")
        result: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, result[name] = divmod(rank, size)
        return {name: result[name] for name in self.names}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at the given coordinates; an axis that is left out counts as 0."""
        rank = 0
        for name, size in self.axes:
            rank = rank * size + coordinates.get(name, 0)
        return rank

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` only on ``axis``, in the order of the axis."""
        place = self.coordinates(rank)
        return tuple(self.rank({**place, axis: index}) for index in range(self.size(axis)))

    def groups(self, axis: str) -> Iterator[tuple[int, ...]]:
        """All groups along an axis, in the order of their first rank."""
        seen: set[int] = set()
        for rank in range(self.world_size):
            if rank not in seen:
                members = self.group(axis, rank)
                seen.update(members)
                yield members
