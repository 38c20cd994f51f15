"""How long the ranks of a host may do nothing before that is a stall: by the job's own pace, and by what it does."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from ...profiler.vocabulary import WAITING_KINDS, SegmentKind
from ..patience import (
    DATA_S,
    PATIENCE_S,
    PHASES,
    PROGRAM_S,
    PROGRAM_TIMES,
    STALL_S,
    USUAL_TIMES,
    is_program,
)
from ..spool.rank_drain import RankDrain
from .phases import SLOW_KINDS, PhaseBoard, held_in, only_waits, own_work

STEPS = 3
TIMES_LONGEST = 2
"""A stall is longer than so many steps, and than so many times the longest rest in the same work."""

WARM_UP_STEPS = 2
"""Until a rank has made more than so many steps, its pace is not known."""

_REST_NS = 10**9
_KEPT_STEPS = 64


class StallPace:
    """Learns from the ranks of one attempt how long their steps and their rests are.

    ``board`` tells what ranks of other hosts are in; None: nobody else is known.
    """

    def __init__(self, stall_s: float, state: Mapping[str, Any] | None = None, board: PhaseBoard | None = None) -> None:
        self._stall_ns, self._board = int(stall_s * 1e9), board
        known = state or {}
        self._steps: deque[int] = deque(known.get("steps", ()), maxlen=_KEPT_STEPS)
        self._longest: dict[str, int] = dict(known.get("longest", {}))
        self._seen: dict[int, tuple[int, int]] = {}
        self._first: dict[int, tuple[int, int]] = {}
        self._resting: tuple[frozenset[str], int] = frozenset(), 0
        self._phase_ns = 0

    def state(self) -> dict[str, Any]:
        """For a later agent."""
        return {"steps": list(self._steps), "longest": self._longest}

    def watch(self, ranks: Sequence[RankDrain]) -> tuple[int, int | None]:
        """Look once: for how long nothing has moved, and from when on that is a stall; both in nanoseconds.

        The second is None where nothing is in flight: ranks that rest without having begun anything are idle.
        """
        self._watch_steps(ranks)
        if self._board is not None:
            self._board.is_starting = not self._steps
        changed_ns = max((rank.changed_ns for rank in ranks), default=0)
        quiet_ns = time.monotonic_ns() - changed_ns
        if quiet_ns < min(_REST_NS, self._stall_ns):
            self._learn()
            return quiet_ns, self._stall_ns
        flights = [flight for rank in ranks if not rank.is_ended for flight in held_in(rank.flights())]
        phases = self._phases_elsewhere(ranks, quiet_ns)
        if self._resting[1] > quiet_ns:  # it moved since, and rests again
            self._learn()
        work = phases or _work(flights)
        self._resting = work, quiet_ns
        if not flights:
            return quiet_ns, None
        least_ns = self._least_ns(ranks, flights, phases, quiet_ns)
        # Who waited for a phase has as much time afterwards as if it had moved when that ended.
        waited_ns = 0 if phases else max(0, self._phase_ns - changed_ns)
        return quiet_ns, waited_ns + self._patience_ns(work, least_ns, flights)

    def _least_ns(
        self,
        ranks: Sequence[RankDrain],
        flights: Sequence[Mapping[str, Any]],
        phases: frozenset[str],
        quiet_ns: int,
    ) -> int:
        """What work of these kinds is given at least: the most where it is what most of the job's ranks do."""
        kinds = {one["kind"] for one in flights}
        program = self._program(ranks, quiet_ns)
        least_s = STALL_S
        if SegmentKind.DATA in kinds:
            least_s = DATA_S
        if phases or not self._steps or kinds & PHASES:
            least_s = PATIENCE_S
        least_ns = round(least_s / STALL_S * self._stall_ns)
        if not program:
            return least_ns
        program_ns = round(PROGRAM_S / STALL_S * self._stall_ns)
        usual = [PROGRAM_TIMES * self._longest.get(name, program_ns) for name in program]
        return max(least_ns, min(program_ns, max(usual)))

    def _program(self, ranks: Sequence[RankDrain], quiet_ns: int) -> frozenset[str]:
        """Phases that half of the job's ranks are in themselves, where all ranks of this host are in one or wait."""
        kinds = PHASES if self._steps else frozenset(SegmentKind)
        inside: Counter[str] = Counter()
        for rank in ranks:
            work = None if rank.is_ended else own_work(rank.flights())
            if work is None:
                continue
            if work["kind"] not in kinds:
                return frozenset()
            inside[str(work["segment"])] += 1
        if self._board is not None and quiet_ns >= self._stall_ns / 2:
            inside += self._board.elsewhere()
        world = max((rank.header.world_size for rank in ranks if rank.header is not None), default=len(ranks))
        return frozenset(name for name, count in inside.items() if is_program(count, world))

    def _phases_elsewhere(self, ranks: Sequence[RankDrain], quiet_ns: int) -> frozenset[str]:
        """What ranks of other hosts are in, where those of this host do nothing but wait for others."""
        if self._board is None or quiet_ns < self._stall_ns / 2 or not only_waits(ranks):
            return frozenset()
        phases = frozenset(self._board.elsewhere())
        if phases:
            self._phase_ns = time.monotonic_ns()
        return phases

    def _patience_ns(self, work: frozenset[str], least_ns: int, flights: Sequence[Mapping[str, Any]]) -> int:
        usual = int(statistics.median(self._steps)) if self._steps else 0
        loads = any(one["kind"] == SegmentKind.DATA for one in flights)
        longest = max((self._longest.get(name, 0) for name in work), default=0)
        return max(least_ns, STEPS * usual, (USUAL_TIMES if loads else TIMES_LONGEST) * longest)

    def _learn(self) -> None:
        """A rest has ended by itself: so long may the next one in the same work be as well."""
        work, rested_ns = self._resting
        for name in work:
            self._longest[name] = max(rested_ns, self._longest.get(name, 0))
        self._resting = frozenset(), 0

    def _watch_steps(self, ranks: Sequence[RankDrain]) -> None:
        for rank in ranks:
            step, start_ns = rank.reader.step, rank.reader.step_start_ns
            if step is None or start_ns is None:
                continue
            ended = rank.metadata.steps  # short steps are over before the agent looks for the first time
            first = self._first.setdefault(rank.rank, (ended and ended.first) or (step, start_ns))
            before, before_ns = self._seen.get(rank.rank, first)
            if step > max(before, first[0] + WARM_UP_STEPS) and start_ns > before_ns:
                self._steps.append((start_ns - before_ns) // (step - before))
            self._seen[rank.rank] = step, start_ns


def _work(flights: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The segments that a rest is put down to: what takes long by nature, else own work, else what is waited for."""
    for kinds in (SLOW_KINDS, frozenset(SegmentKind) - WAITING_KINDS, frozenset(SegmentKind)):
        found = frozenset(str(one["segment"]) for one in flights if one["kind"] in kinds)
        if found:
            return found
    return frozenset(str(one["segment"]) for one in flights)
