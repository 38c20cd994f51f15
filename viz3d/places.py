"""What a group is to a rank: ranks of one stage have the same places, in groups of their own, and run one program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .states import Snapshot

WITNESSES = 3
"""So many ranks of a stage are asked for what is usual there."""

Place = tuple[object, ...]


class Places:
    """Groups of all ranks by place, and the ranks that speak for their stage."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._at: dict[int, dict[Place, int]] = {}
        self._groups_of: dict[int, list[int]] | None = None
        self._witnesses: dict[Place, list[int]] = defaultdict(list)
        for rank in sorted(snapshot.states):
            own = self._witnesses[self._stage(rank)]
            if len(own) < WITNESSES and snapshot.states[rank].step is not None:
                own.append(rank)

    def place(self, rank: int, group: int) -> Place:
        """What a group is to a rank: its kind, and of two ranks on an edge the stages too."""
        stage, name = self._stage(rank), self._snapshot.groups.get(group)
        if name is None:
            return (*stage, group)
        edge = {self._snapshot.stage_of(member) for member in name.ranks} if len(name.ranks) == 2 else set()
        return (*stage, name.kind, *sorted(edge))

    def group_at(self, rank: int, place: Place) -> int | None:
        """The group that has a place for a rank; None if there is none."""
        if rank not in self._at:
            self._at[rank] = {self.place(rank, group): group for group in self.groups_of(rank)}
        return self._at[rank].get(place)

    def groups_of(self, rank: int) -> Sequence[int]:
        """All groups that a rank is in."""
        if self._groups_of is None:
            self._groups_of = defaultdict(list)
            for number, name in self._snapshot.groups.items():
                for member in name.ranks:
                    self._groups_of[member].append(number)
        return self._groups_of.get(rank, ())

    def witnesses(self, rank: int) -> Sequence[int]:
        """Ranks that speak for a rank's stage, the rank itself first."""
        return [rank, *(other for other in self._witnesses[self._stage(rank)] if other != rank)]

    def _stage(self, rank: int) -> Place:
        """Index on the pipeline axis; a rank whose place in the mesh is not known is one of its kind."""
        known = any(index is not None for index in self._snapshot.coordinates.get(rank, {}).values())
        return (self._snapshot.stage_of(rank),) if known else ("rank", rank)
