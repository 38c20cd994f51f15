"""Who stands where in a hang, found the slow way: every rank runs its program call by call until nobody can move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megascope.trainer.simulator.hangs.closure import ends
from megascope.trainer.simulator.hangs.hangs import HangScene
from megascope.trainer.simulator.hangs.program import EDGES, Call, Op, send

Place = tuple[int, int, int]


class SlowJob:
    """Runs a scene's programs. Collectives complete once all members are in them under one name.

    ``cut`` are the last calls that ranks get to by themselves, ``frozen`` groups whose operation with a number never
    completes: (class, number, members).
    """

    def __init__(self, scene: HangScene, cut: dict[int, int], frozen: set[tuple[int, int, frozenset[Place]]]) -> None:
        self._grid, self._frozen = scene.job.grid, frozen
        self._places = list(np.ndindex(*scene.at.shape))
        self._program = {place: scene.programs.calls[scene.which[place]] for place in self._places}
        self._cut = {place: cut.get(int(self._grid.rank[place])) for place in self._places}
        self.at = dict.fromkeys(self._places, 0)

    def run(self) -> npt.NDArray[np.int64]:
        """The call in which each rank ends up, [P, T, G]."""
        moved = True
        while moved:
            moved = False
            for place in self._places:
                while self._can_leave(place):
                    self.at[place] += 1
                    moved = True
        result = np.empty(self._grid.rank.shape, np.int64)
        for place, at in self.at.items():
            result[place] = at
        return result

    def _can_leave(self, place: Place) -> bool:
        at, program = self.at[place], self._program[place]
        if at == len(program) - 1 or at == self._cut[place]:
            return False
        call = program[at]
        number = sum(one.op == call.op for one in program[:at])
        if call.op in (Op.TP, Op.DP, Op.WORLD):
            return self._is_complete(call.op, number, self._members(place, call.op))
        if call.op > Op.WORLD and (call.op - 3) % 2 == 1:
            return self._has_sent(place, (call.op - 3) // 2, number)
        return True

    def _members(self, place: Place, op: int) -> frozenset[Place]:
        stage, tp, replica = place
        if op == Op.WORLD:
            return frozenset(self._places)
        if op == Op.TP:
            return frozenset((stage, other, replica) for other in range(self._grid.width))
        first = replica // self._grid.dp_size * self._grid.dp_size
        return frozenset((stage, tp, first + other) for other in range(self._grid.dp_size))

    def _is_complete(self, op: int, number: int, members: frozenset[Place]) -> bool:
        if (op, number, members) in self._frozen:
            return False
        names = [self._nth(member, op, number) for member in members]
        return None not in names and len(set(names)) == 1

    def _nth(self, place: Place, op: int, number: int) -> str | None:
        """Name of the operation with that number, if the rank is in it or past it."""
        begun: list[Call] = [one for one in self._program[place][: self.at[place] + 1] if one.op == op]
        return begun[number].name if number < len(begun) else None

    def _has_sent(self, place: Place, edge: int, number: int) -> bool:
        givers, takers = ends(edge, self._grid.stages)
        giver = int(givers[list(takers).index(place[0])])
        other = (giver, place[1], place[2])
        assert 0 <= edge < len(EDGES)
        return sum(one.op == send(edge) for one in self._program[other][: self.at[other] + 1]) > number
