"""Where a fault enters the simulation: factors on work and transfers, and pauses of the host, by rank and step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .job import SimulatedJob

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

WORK_SEGMENTS = ("data", "forward", "backward", "optimizer")
"""Segments whose own time an effect may stretch."""

STALL_SEGMENTS = ("data", "gc", "checkpoint")
"""Segments that an effect may lengthen by a pause of the host.

data: on ranks that load (first and last stage), at the start of the step; gc: on any rank, before the step's first
compute; checkpoint: on any rank, at the end of the step, after the optimizer.
"""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One kind of transfer, for which an effect is asked once.

    p2p: ``sources`` and ``destinations`` [n] are the ranks at both ends. Collectives: ``sources`` [n] are the members,
    ``destinations`` is None; a group is as slow as its slowest member. ``crosses_hosts`` [n]: whether the transfer (or
    the member's group) leaves a host, so that it runs over the network and not over NVLink. ``segment`` is send_forward
    or send_backward for p2p, else dp_reduce_scatter, dp_all_gather, tp_all_gather (all of tp), world_all_reduce.
    """

    segment: str
    sources: IntArray
    destinations: IntArray | None
    crosses_hosts: BoolArray


class Effect:
    """What a fault does to a job. A fault overrides what it needs; None means that it does nothing there.

    ``steps`` [S] are the step numbers asked for; every result is broadcast to the shape that is named. Results must
    depend on the arguments alone: the engine asks in pieces, and may ask twice.
    """

    def compute_factor(self, job: SimulatedJob, steps: IntArray, segment: str) -> FloatArray | None:
        """Factors on the rank's own time in a segment of `WORK_SEGMENTS`, [world, S]."""
        return None

    def microbatch_factor(self, job: SimulatedJob, steps: IntArray, segment: str) -> FloatArray | None:
        """Factors on forward or backward by the work in a micro-batch, [microbatches, replicas, S].

        Replicas are numbered as in `Grid`; all ranks of a replica's pipeline work on the same micro-batches.
        """
        return None

    def transfer_factor(self, job: SimulatedJob, steps: IntArray, transfer: Transfer) -> FloatArray | None:
        """Factors on the time that a transfer takes once both ends are there, [n, S]."""
        return None

    def stall_ns(self, job: SimulatedJob, steps: IntArray, segment: str) -> FloatArray | None:
        """Pauses in a segment of `STALL_SEGMENTS`, nanoseconds to add, [world, S]."""
        return None

    def tokens_factor(self, job: SimulatedJob, steps: IntArray) -> FloatArray | None:
        """Tokens of a replica in a step over the usual, [replicas, S], where its ranks tell them."""
        return None

    def loses_heartbeat(self, job: SimulatedJob, steps: IntArray) -> BoolArray | None:
        """Whether a rank's heartbeats of a step are missing, [world, S]."""
        return None


def product(factors: list[FloatArray | None]) -> FloatArray | None:
    """Effects act together: their factors multiply. None where none of them does anything."""
    result: FloatArray | None = None
    for factor in factors:
        if factor is not None:
            result = factor if result is None else result * factor
    return result


def total(pauses: list[FloatArray | None]) -> FloatArray | None:
    """Pauses add up. None where there are none."""
    result: FloatArray | None = None
    for pause in pauses:
        if pause is not None:
            result = pause if result is None else result + pause
    return result
