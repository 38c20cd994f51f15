"""What every pipeline stage runs in a step, call by call, as tables that a vectorised walk can look numbers up in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ....profiler.vocabulary import ActionKind, SegmentKind
from ...schedule import COMPUTE, Action, Schedule

IntArray = npt.NDArray[np.int64]

EDGES = ("pp_forward", "pp_backward", "pp_forward_wrap", "pp_backward_wrap")
"""Kinds of directed pipeline edges, as the trainer names their groups."""


class Op(IntEnum):
    """Classes of calls that are numbered in their group; the sends and receives of edge e are ``send(e)``,
    ``recv(e)``."""

    WORK = -1
    TP = 0
    DP = 1
    WORLD = 2


OPS = 3 + 2 * len(EDGES)

SETUP = "setup"
"""The segment before the first step."""


def send(edge: int) -> int:
    """Class of the sends over an edge, by its place in EDGES."""
    return 3 + 2 * edge


def recv(edge: int) -> int:
    """Class of the receives over an edge, by its place in EDGES."""
    return 4 + 2 * edge


@dataclass(frozen=True, slots=True)
class Call:
    """One entry of a rank's program: work that it begins (``op`` is WORK), or an operation with others.

    ``parent`` is the name of the work around it, if any; ``step`` counts from the step of the fault. ``share`` is how
    much of the usual bytes an operation moves.
    """

    name: str
    kind: SegmentKind
    op: int
    step: int
    parent: str | None = None
    microbatch: int | None = None
    chunk: int | None = None
    share: float = 1.0


PHASES = {
    "checkpoint": SegmentKind.CHECKPOINT,
    "evaluation": SegmentKind.EVAL,
    "compile": SegmentKind.COMPILE,
}
"""Work that a step has only now and then: a compilation comes first in it, the others last."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a layout decides which calls there are. ``layers`` is the number of tensor-parallel pairs of an
    all-gather and a reduce-scatter in each forward and backward; ``phase`` one of PHASES that the steps have."""

    tp: int
    world: int
    layers: int = 1
    phase: str | None = None


def step_calls(schedule: Schedule, stage: int, shape: Shape, step: int) -> list[Call]:
    """The calls of one step of a stage, in order."""
    stages = len(schedule)
    loads = stage in (0, stages - 1)
    calls = [Call("data", SegmentKind.DATA, Op.WORK, step)] if loads else []
    for action in schedule[stage]:
        calls += _calls_of(action, stage, stages, shape, step)
    if shape.phase is None:
        return calls
    phase = Call(shape.phase, PHASES[shape.phase], Op.WORK, step)
    return [phase, *calls] if phase.kind is SegmentKind.COMPILE else [*calls, phase]


def _calls_of(action: Action, stage: int, stages: int, shape: Shape, step: int) -> list[Call]:
    kind = action.kind
    collective = SegmentKind.COLLECTIVE
    if kind in COMPUTE:
        pair = ("tp_all_gather", "tp_reduce_scatter") * (shape.layers if shape.tp > 1 else 0)
        inside = [Call(name, collective, Op.TP, step, str(kind), action.microbatch, action.chunk) for name in pair]
        return [Call(str(kind), SegmentKind.COMPUTE, Op.WORK, step, None, action.microbatch, action.chunk), *inside]
    if kind is ActionKind.OPTIMIZER_STEP:
        norm = [Call("world_all_reduce", collective, Op.WORLD, step)] if shape.world > 1 else []
        return [*norm, Call("optimizer", SegmentKind.OPTIMIZER, Op.WORK, step)]
    if kind in (ActionKind.REDUCE_SCATTER, ActionKind.ALL_GATHER):
        return [Call(f"dp_{kind}", collective, Op.DP, step, None, action.microbatch, action.chunk)]
    edge = edge_of(kind, stage, stages)
    is_send = kind in (ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD)
    op = send(edge) if is_send else recv(edge)
    return [Call(str(kind), SegmentKind.P2P, op, step, None, action.microbatch, action.chunk)]


def edge_of(kind: ActionKind, stage: int, stages: int) -> int:
    """Place in EDGES of the edge that a send or receive of a stage uses: beyond the last stage it wraps around."""
    goes_up = kind in (ActionKind.SEND_FORWARD, ActionKind.RECV_BACKWARD)
    wraps = not 0 <= stage + (1 if goes_up else -1) < stages
    is_forward = kind in (ActionKind.SEND_FORWARD, ActionKind.RECV_FORWARD)
    return (0 if is_forward else 1) + (2 if wraps else 0)


@dataclass(frozen=True, slots=True)
class Programs:
    """Programs as padded tables; P programs of at most N calls, the last of each being its end.

    ``op`` [P, N]; ``count`` [P, OPS, N]: operations of a class among the calls up to and with this one; ``place``
    [P, OPS, K + 1]: the call that is the k-th of a class, the end where there is none; ``posted`` [P, EDGES, N]:
    receives that are posted when a call begins; ``posted_at`` [P, EDGES, K + 1]: the call at which the k-th is.
    """

    calls: tuple[tuple[Call, ...], ...]
    op: IntArray
    count: IntArray
    place: IntArray
    posted: IntArray
    posted_at: IntArray

    @classmethod
    def of(cls, programs: Sequence[Sequence[Call]], ahead: int) -> Programs:
        """Tables of programs, where receives are posted ``ahead`` compute actions before the one they feed."""
        ended = [(*calls, Call("end", SegmentKind.HOST, Op.WORK, calls[-1].step + 1)) for calls in programs]
        shape = len(ended), max(len(calls) for calls in ended)
        op = np.full(shape, int(Op.WORK), np.int64)
        for row, calls in enumerate(ended):
            op[row, : len(calls)] = [call.op for call in calls]
        count = np.stack([np.cumsum(op == one, axis=1) for one in range(OPS)], axis=1)
        most = int(count.max()) + 1
        place = np.empty((shape[0], OPS, most), np.int64)
        posted = np.zeros((shape[0], len(EDGES), shape[1]), np.int64)
        posted_at = np.empty((shape[0], len(EDGES), most), np.int64)
        for row, calls in enumerate(ended):
            place[row], posted_at[row] = len(calls) - 1, len(calls) - 1
            for one in range(OPS):
                where = np.flatnonzero(op[row] == one)
                place[row, one, : len(where)] = where
            for edge in range(len(EDGES)):
                opened = _posted(calls, recv(edge), ahead)
                posted_at[row, edge, : len(opened)] = opened
                posted[row, edge] = np.searchsorted(opened, np.arange(shape[1]), side="right")
        return cls(tuple(ended), op, count, place, posted, posted_at)


def _posted(calls: Sequence[Call], op: int, ahead: int) -> list[int]:
    """The call at which each receive of a class is posted; receives are posted in order, within their own step.

    ``ahead`` compute actions before the one that it feeds; 0: not before the rank gets to it.
    """
    if ahead == 0:
        return [at for at, call in enumerate(calls) if call.op == op]
    opened: list[int] = []
    for at, call in enumerate(calls):
        if call.op != op:
            continue
        before = [i for i in range(at) if calls[i].kind is SegmentKind.COMPUTE and calls[i].step == call.step]
        # Posted before the action after the (feeds - ahead)-th compute action; at the step's begin if there are fewer.
        first = next(i for i, one in enumerate(calls) if one.step == call.step and not _precedes_steps(one))
        feeds = len(before)
        opened.append(first if feeds <= ahead else _after_action(calls, before[feeds - ahead - 1]))
    return opened


def _precedes_steps(call: Call) -> bool:
    """Whether a call comes before all that a step usually is."""
    return SETUP in (call.name, call.parent) or call.kind is SegmentKind.COMPILE


def _after_action(calls: Sequence[Call], at: int) -> int:
    """The call after a compute action and what it encloses."""
    name = calls[at].name
    end = at + 1
    while end < len(calls) and calls[end].parent == name and calls[end].microbatch == calls[at].microbatch:
        end += 1
    return end


def without(calls: Sequence[Call], at: int) -> list[Call]:
    """A program that leaves out one call."""
    return [*calls[:at], *calls[at + 1 :]]


def renamed(calls: Sequence[Call], at: int, name: str, parent: str | None = None) -> list[Call]:
    """A program in which one call has another name, and with ``parent`` the work around it too."""
    changed = list(calls)
    around = calls[at].parent
    changed[at] = replace(calls[at], name=name, parent=parent or around)
    if parent is not None:
        opened = max(i for i in range(at) if calls[i].name == around and calls[i].op == Op.WORK)
        for i in range(opened, len(calls)):
            if i > opened and calls[i].parent != around:
                break
            same = {"name": parent} if i == opened else {"parent": parent}
            changed[i] = replace(changed[i], **same)  # type: ignore[arg-type]
    return changed


def resized(calls: Sequence[Call], at: int, share: float) -> list[Call]:
    """A program in which one operation moves another share of the usual bytes."""
    changed = list(calls)
    changed[at] = replace(calls[at], share=share)
    return changed


def find_call(calls: Sequence[Call], name: str, microbatch: int | None) -> int | None:
    """The call of the fault's step with a name, at a micro-batch or else half-way through; None if there is none."""
    found = [i for i, call in enumerate(calls) if call.name == name and call.step == 0]
    if microbatch is not None:
        found = [i for i in found if calls[i].microbatch == microbatch]
    return found[len(found) // 2] if found else None
