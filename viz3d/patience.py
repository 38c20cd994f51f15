"""How long a root must stand still before it is called stuck: by what it is in, and by what is usual in the job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..profiler.vocabulary import SegmentKind
from .graph import WaitGraph
from .mismatch import Root
from .pace import Pace, Work
from .states import RankState, Snapshot
from .verdict import CulpritKind

STUCK_S = 7.0
"""In a job that has run, no segment that usually takes far less is this long without being stuck."""

DATA_S = 15.0
"""Loading data gets this time at least: a shard that changes, a retry or a cold cache takes seconds where a batch takes
milliseconds."""

PATIENCE_S = 30.0
"""What is slow by nature, or was never completed before, or is not in any segment, gets this time at least (or three
steps, if that is more)."""

PROGRAM_S = 600.0
"""What most ranks of the job are in is the program, and no fault of theirs, for as long as collectives wait by default
before they time out."""

USUAL_TIMES = 10
"""Loading data gets so many times what it usually takes; a checkpoint or an evaluation may well be another one."""

PHASES = frozenset({SegmentKind.INIT, SegmentKind.COMPILE, SegmentKind.CHECKPOINT, SegmentKind.EVAL})
"""Work that a program enters once in a while, and that may take long."""

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
    """The patience with the roots of a look."""

    later: Snapshot
    graph: WaitGraph
    pace: Pace
    _program: frozenset[str] | None = None
    _last: dict[int, Work] | None = field(default=None)

    def needed_s(self, root: Root) -> float:
        """How long a root must stand still before it is called stuck, seconds."""
        step_s = self.pace.step_s()
        patience = max(PATIENCE_S, 3 * (step_s or 0.0))
        if root.kind in OF_THE_PROGRAM:
            return patience if step_s is None else STUCK_S
        if self.is_program(root):
            return max(patience, PROGRAM_S)
        return max((self._needed_by(rank, patience) for rank in root.ranks), default=patience)

    def is_program(self, root: Root) -> bool:
        """Whether a root is one of very many ranks that are in the same phase, and wait for nobody there."""
        if root.kind not in (CulpritKind.HOST_STUCK, CulpritKind.INIT):
            return False
        states = [self.later.states.get(rank) for rank in root.ranks]
        return all(state is not None and state.works_in in self.program for state in states)

    @property
    def program(self) -> frozenset[str]:
        """Phases that half of the ranks are in themselves, or more: not those that wait in them for others."""
        if self._program is None:
            works = [(state.rank, state.innermost_work()) for state in self.later.states.values() if state.is_present]
            inside = Counter(
                work.segment for rank, work in works
                if work is not None and work.kind in PHASES and rank not in self.graph.waits
            )  # fmt: skip
            self._program = frozenset(name for name, count in inside.items() if count > 1 and 2 * count >= len(works))
        return self._program

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
