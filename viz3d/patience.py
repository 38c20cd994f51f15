"""How long a root must stand still before it is called stuck: by what it is in, and by what is usual in the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..collectors.patience import (
    DATA_S,
    PATIENCE_S,
    PHASES,
    PROGRAM_S,
    PROGRAM_TIMES,
    STUCK_S,
    USUAL_TIMES,
    is_program,
)
from ..profiler.vocabulary import SegmentKind
from .graph import WaitGraph
from .mismatch import Root
from .pace import Pace, Work
from .states import RankState, Snapshot
from .verdict import CulpritKind

OF_THE_PROGRAM = frozenset(
    {
        CulpritKind.MISMATCH,
        CulpritKind.MISSING_CALL,
        CulpritKind.ORDER_INVERSION,
        CulpritKind.P2P_CYCLE,
        CulpritKind.DEVICE_STUCK,
        CulpritKind.ITERATION_DESYNC,
        CulpritKind.DIVERGED,
    }
)
"""Roots that no patience cures: the program itself is stuck."""


@dataclass(slots=True)
class Patience:
    """The patience with the roots of a look; ``moved`` are ranks that did anything since the look before."""

    later: Snapshot
    graph: WaitGraph
    pace: Pace
    moved: frozenset[int] = frozenset()
    _phases: dict[str, list[int]] | None = None
    _last: dict[int, Work] | None = field(default=None)

    def needed_s(self, root: Root) -> float:
        """How long a root must stand still before it is called stuck, seconds."""
        step_s = self.pace.step_s()
        patience = max(PATIENCE_S, 3 * (step_s or 0.0))
        if root.kind in OF_THE_PROGRAM:
            return patience if step_s is None else STUCK_S
        needed_s = max((self._needed_by(rank, patience) for rank in root.ranks), default=patience)
        return max(needed_s, self._of_program_s(root.ranks)) if self.is_program(root) else needed_s

    def _of_program_s(self, ranks: Sequence[int]) -> float:
        states = (self.later.states.get(rank) for rank in ranks)
        usual = [None if state is None else self.pace.segment_s(state.works_in or "") for state in states]
        return max((PROGRAM_S if one is None else min(PROGRAM_S, PROGRAM_TIMES * one) for one in usual), default=0.0)

    def is_program(self, root: Root) -> bool:
        """Whether a root is one of very many ranks that are in the same phase, and wait for nobody there.

        One that stands still while half of the others there move is not as they are.
        """
        if root.kind not in (CulpritKind.HOST_STUCK, CulpritKind.INIT):
            return False
        states = [self.later.states.get(rank) for rank in root.ranks]
        phases = {None if state is None else state.works_in for state in states}
        if not phases <= self.program:
            return False
        others = {rank for phase in phases for rank in self._inside.get(phase or "", ()) if rank not in root.ranks}
        return not self.moved.isdisjoint(root.ranks) or 2 * len(others & self.moved) < max(len(others), 1)

    @property
    def program(self) -> frozenset[str]:
        """Phases that half of the ranks are in themselves, or more: not those that wait in them for others."""
        present = sum(state.is_present for state in self.later.states.values())
        return frozenset(name for name, ranks in self._inside.items() if is_program(len(ranks), present))

    @property
    def _inside(self) -> Mapping[str, Sequence[int]]:
        """Phase -> ranks that are in it themselves. All that a job does before its first step is one."""
        if self._phases is None:
            self._phases = defaultdict(list)
            has_run = self.pace.step_s() is not None
            for state in self.later.states.values():
                work = state.innermost_work() if state.is_present and state.rank not in self.graph.waits else None
                if work is not None and (work.kind in PHASES or not has_run):
                    self._phases[work.segment].append(state.rank)
        return self._phases

    def _needed_by(self, rank: int, patience: float) -> float:
        state = self.later.states.get(rank)
        work = self._last_of(rank) if state is None else _work_of(state)
        if state is not None and state.process_state == "stopped":
            return STUCK_S
        if state is None and (work is None or work.kind not in PHASES):
            return patience
        usual = None if work is None else self.pace.segment_s(work.segment)
        if work is None or usual is None:
            return patience
        if work.kind == SegmentKind.DATA:
            return max(DATA_S, USUAL_TIMES * usual)
        return max(patience if work.kind in PHASES else STUCK_S, 2 * usual)

    def _last_of(self, rank: int) -> Work | None:
        """What a rank without data was last seen in: a host whose agent is gone may still write its checkpoint."""
        if self._last is None:
            self._last = dict(self.pace.last_works(self.later.missing))
        return self._last.get(rank)


def _work_of(state: RankState) -> Work | None:
    work = state.innermost_work()
    return None if work is None else Work(work.segment, work.kind)
