"""What of the evidence never reached the store: ranks of which nothing is heard, and single rows, drawn by a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..effects import BoolArray, IntArray
from ..job import SimulatedJob
from .ahead import IN_STEP, Lead

_PURPOSE = 78
_SCALE = float(2**64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardness:
    """How hard the evidence of a hang is to read.

    ``missing``: share of the ranks that nothing is heard of, and of the heartbeats, of the segments in flight and of
    the progress in groups that are not there; a segment or a group that a rank lacks is lacking in all its looks.
    ``lead``: how far hosts are ahead of their devices.
    ``stagger_s``: agents sample at moments of their own, up to so many seconds after each other.
    """

    missing: float = 0.0
    lead: Lead = IN_STEP
    stagger_s: float = 0.0


PLAIN = Hardness()
"""Complete evidence of ranks that wait for each operation, sampled everywhere at once."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """What is lost of one job's evidence. ``unheard`` [world]: ranks of which no sample exists; ``phase_ns`` [hosts]:
    how long after the others' each agent's samples are."""

    share: float
    seed: int
    unheard: BoolArray
    phase_ns: IntArray

    @classmethod
    def of(cls, job: SimulatedJob, hardness: Hardness) -> Gaps:
        """The gaps of a job, by its seed; never all its ranks."""
        random = np.random.Generator(np.random.SFC64([job.seed, 0, _PURPOSE]))
        unheard = random.random(job.world_size) < hardness.missing
        unheard[int(random.integers(job.world_size))] &= not unheard.all()
        phase = np.rint(random.random(job.grid.hosts) * hardness.stagger_s * 1e9).astype(np.int64)
        return cls(hardness.missing, job.seed, unheard, phase)

    def lost(self, purpose: str, *keys: npt.ArrayLike) -> BoolArray:
        """Which rows of a kind are lost, [n]: ``keys`` [n] each, or numbers, are what a row is known by."""
        first, *others = np.broadcast_arrays(*(np.asarray(one, np.int64) for one in keys))
        if self.share <= 0:
            return np.zeros(first.shape, bool)
        state = np.full(first.shape, self.seed, np.uint64) ^ np.uint64(int.from_bytes(purpose.encode()[:8], "big"))
        for key in (first, *others):
            state = _mixed(state ^ key.astype(np.uint64))
        drawn: BoolArray = state.astype(np.float64) / _SCALE < self.share
        return drawn


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A well-mixed function of 64-bit numbers: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
