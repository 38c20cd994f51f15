"""How far a rank's host is ahead of its device: which operations it has issued, and when it issued them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....profiler.vocabulary import SegmentKind
from ..effects import BoolArray, IntArray
from .program import Call, Op, Programs

LAUNCH_NS = 10_000
"""What issuing a call takes the host."""

NEEDS_RESULTS = frozenset({SegmentKind.CHECKPOINT, SegmentKind.EVAL, SegmentKind.INIT})
"""Work that the host cannot begin before its device has done all that was issued."""


@dataclass(frozen=True, slots=True)
class Lead:
    """How far hosts may be ahead: ``in_flight`` operations begun and not completed, with 1 they wait for each; and
    whether they read the result of every collective of the whole job, or only of those that end a phase."""

    in_flight: int = 1
    reads_results: bool = True

    def barriers(self, calls: Sequence[Call]) -> BoolArray:
        """Calls that a host does not get to before its device does, [N]: it reads the result of the one before."""
        marked = np.zeros(len(calls), bool)
        for at, call in enumerate(calls):
            before = calls[at - 1] if at else call
            is_read = before.op == Op.WORLD and (self.reads_results or before.parent is not None)
            marked[at] = call.kind in NEEDS_RESULTS or is_read
        return marked


IN_STEP = Lead()
"""Hosts wait for each operation, as on a CPU."""


def issued(programs: Programs, which: IntArray, at: IntArray, stops: IntArray, lead: Lead) -> IntArray:
    """The call in which each rank's host is, [P, T, G], where its device is in ``at``.

    The host goes on until as many operations are begun as may be, or to its last call in ``stops``.
    """
    if lead.in_flight <= 1:
        return at
    shape = programs.op.shape
    ordinal = np.cumsum(programs.op != Op.WORK, axis=1)
    furthest = np.empty(shape, np.int64)
    for row, calls in enumerate(programs.calls):
        end = len(calls)
        places = np.append(np.flatnonzero(programs.op[row] != Op.WORK), end)
        completed = ordinal[row] - (programs.op[row] != Op.WORK)
        not_issued = places[np.minimum(completed + lead.in_flight, len(places) - 1)]
        marked = np.append(np.flatnonzero(lead.barriers(calls)), end)
        held = marked[np.minimum(np.searchsorted(marked, np.arange(shape[1]), side="right"), len(marked) - 1)]
        furthest[row] = np.maximum(np.minimum(not_issued, held) - 1, np.arange(shape[1]))
    reached: IntArray = np.maximum(at, np.minimum(furthest[which, at], stops))
    return reached


def issue_times(calls: Sequence[Call], begin: Sequence[int], lead: Lead) -> list[int]:
    """When a host issues each call, [N]: ``begin`` [N + 1] is when its device begins them, in a job that runs on."""
    if lead.in_flight <= 1:
        return list(begin[: len(calls)])
    held, operations = lead.barriers(calls), [at for at, call in enumerate(calls) if call.op != Op.WORK]
    number = {at: index for index, at in enumerate(operations)}
    times: list[int] = []
    for at in range(len(calls)):
        earliest = times[-1] + LAUNCH_NS if times else begin[0]
        if held[at]:
            earliest = max(earliest, begin[at])
        if number.get(at, 0) >= lead.in_flight:
            earliest = max(earliest, begin[operations[number[at] - lead.in_flight] + 1])
        times.append(min(earliest, begin[at]))
    return times
