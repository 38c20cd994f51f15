"""How long operations took, and what they would take at their ideal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..peers import FloatArray, IntArray
from .program import Program


@dataclass(frozen=True, slots=True)
class Measured:
    """Durations of a program's operations in ns, [N, M, D, S]: nodes, members, replicas, steps.

    ``own`` is work by itself or the transfer of a communication, without waiting; ``shared`` [N, 1, D, S] what an inner
    group spends together in a node of work (its transfers), None where the groups have one member. ``ranks`` [P, M, D]
    are the global ranks of each stage, ``steps`` [S] the numbers of the steps. ``recorded`` [S] is how long each step
    took on the rank that it took longest on, launch delays included.
    """

    program: Program
    own: FloatArray
    shared: FloatArray | None
    ranks: IntArray
    steps: IntArray
    recorded: FloatArray

    def of_steps(self, chosen: npt.NDArray[np.bool_]) -> Measured:
        """The same of some of the steps, [S]."""
        shared = None if self.shared is None else self.shared[..., chosen]
        return Measured(
            self.program, self.own[..., chosen], shared, self.ranks, self.steps[chosen], self.recorded[chosen]
        )


@dataclass(frozen=True, slots=True)
class Ideal:
    """What each node takes at its ideal, [N] in ns, alone and shared with its group.

    Mean of work, median of transfers, over all stages, members, replicas and steps of operations of one name (the
    definition of ByteDance's what-if analysis, OSDI 2025).
    """

    own: FloatArray
    shared: FloatArray


def ideal_of(measured: Measured) -> Ideal:
    """Ideal durations of what was measured."""
    nodes = measured.program.nodes
    own, shared = np.zeros(len(nodes)), np.zeros(len(nodes))
    by_name: dict[tuple[str, bool], list[int]] = {}
    for number, node in enumerate(nodes):
        by_name.setdefault((node.name, node.is_transfer), []).append(number)
    for (_, is_transfer), numbers in by_name.items():
        values = measured.own[numbers]
        own[numbers] = np.median(values) if is_transfer else values.mean()
        if measured.shared is not None and not is_transfer:
            shared[numbers] = np.median(measured.shared[numbers])
    return Ideal(own, shared)


def appended(first: Measured, second: Measured) -> Measured:
    """The steps of both, of one program and the same ranks."""
    shared = None
    if first.shared is not None and second.shared is not None:
        shared = np.concatenate([first.shared, second.shared], axis=-1)
    return Measured(
        first.program,
        np.concatenate([first.own, second.own], axis=-1),
        shared,
        first.ranks,
        np.concatenate([first.steps, second.steps]),
        np.concatenate([first.recorded, second.recorded]),
    )
