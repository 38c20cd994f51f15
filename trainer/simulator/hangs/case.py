"""A hang before it is worked out: the plan that a cause comes to, and the fault in its job with what it can ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....profiler.errors import UsageError
from ....profiler.vocabulary import SegmentKind
from ..effects import BoolArray
from ..faults import Fault
from ..job import SimulatedJob
from .closure import Frozen
from .program import Call, Op, find_call

Program = Sequence[Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a cause comes to. ``truth`` are the ranks to blame; of a circle those whose order made it.

    ``limits``: the last call that a rank gets to by itself, ``stops``: the last that its host issues, where that is
    what stops; ``runs`` [P, T, G]: who runs each of ``programs``, which are variants of those of ``stages``;
    ``states``: processes that are not merely waiting; ``busy``: ranks whose CPU time grows; ``death``: what was said of
    those that died, as (state, type, message); ``dark``: ranks that nothing is heard of any more once they stop;
    ``absent``: ranks that never came; ``ahead`` [P, T, G]: ranks that count one step more than the others;
    ``watched_s``: for how long the job is heard of, if it only seems to hang.
    """

    truth: tuple[int, ...]
    segment: str | None = None
    limits: Mapping[int, int] = field(default_factory=dict)
    stops: Mapping[int, int] = field(default_factory=dict)
    programs: tuple[Program, ...] = ()
    stages: tuple[int, ...] = ()
    runs: tuple[BoolArray, ...] = ()
    frozen: tuple[Frozen, ...] = ()
    states: Mapping[int, str] = field(default_factory=dict)
    busy: tuple[int, ...] = ()
    death: tuple[str, str | None, str | None] | None = None
    dark: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    ahead: BoolArray | None = None
    watched_s: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A fault in its job: the programs of all stages, and where the rank that is named stands."""

    job: SimulatedJob
    fault: Fault
    base: Sequence[Program]

    @property
    def rank(self) -> int:
        """The rank that carries the fault; UsageError if there are several."""
        if len(self.fault.ranks) != 1:
            raise self.refuse("names several ranks: name one")
        return self.fault.ranks[0]

    @property
    def stage(self) -> int:
        """Stage of the rank."""
        return int(self.job.grid.stage[self.rank])

    def refuse(self, why: str) -> UsageError:
        """The error for a fault that the job has no place for."""
        return UsageError(f"The fault {self.fault.text!r} {why}.")

    def call(self, *defaults: str, communicates: bool | None = None, stage: int | None = None) -> int:
        """The call in which the fault acts: of the segment that it names, else of the first default that there is."""
        program = self.base[self.stage if stage is None else stage]
        names = (self.fault.segment,) if self.fault.segment else defaults
        fit = [name for name in dict.fromkeys(one.name for one in program) if self._fits(program, name, communicates)]
        for name in names:
            found = find_call(program, name, self.fault.microbatch) if name in fit else None
            if found is not None:
                return found
        place = "" if self.fault.microbatch is None else f" for micro-batch {self.fault.microbatch}"
        raise self.refuse(f"acts in none of the segments of its rank{place}: use one of {', '.join(fit)}")

    @staticmethod
    def _fits(program: Program, name: str, communicates: bool | None) -> bool:
        kind = next(one.kind for one in program if one.name == name)
        if communicates is None:
            return True
        return kind is SegmentKind.COLLECTIVE if communicates else kind not in (SegmentKind.COLLECTIVE, SegmentKind.P2P)

    def only(self, rank: int) -> BoolArray:
        """A mark on one rank, [P, T, G]."""
        marked: BoolArray = self.job.grid.rank == rank
        return marked

    def group(self, op: int, rank: int) -> BoolArray:
        """A mark on the members of a rank's group of a class, [P, T, G]."""
        grid = self.job.grid
        stage, tp, replica = grid.stage[rank], grid.tp[rank], grid.replica[rank]
        marked = np.zeros(grid.rank.shape, bool)
        if op == Op.WORLD:
            marked[:] = True
        elif op == Op.TP:
            marked[stage, :, replica] = True
        else:
            first = replica // grid.dp_size * grid.dp_size
            marked[stage, tp, first : first + grid.dp_size] = True
        return marked

    def number(self, at: int, stage: int | None = None) -> int:
        """How many calls of the same class come before a call of the rank."""
        program = self.base[self.stage if stage is None else stage]
        return sum(one.op == program[at].op for one in program[:at])
