"""From a recording and the schedule to a program: what else each operation waited for, as the recorded order tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ...profiler.vocabulary import REPLICA_AXES, ActionKind
from ..peers import FloatArray
from .program import CircularWaitError, Meeting, Node, Program
from .reasons import CannotReplayError
from .recording import Recording
from .schedule import COMPUTE, RECEIVES, Matched

ALWAYS = 0.99
"""Share of ranks and steps in which one operation began after another for it to be taken as waiting for it."""

TOLERANCE_NS = 200_000.0
"""Traces of others give moments in tenths of a millisecond."""


def build_program(recording: Recording, matched: Matched) -> Program:
    """The program of complete steps (`complete`).

    Beside the schedule: receives that are only ever posted once the compute of the same direction before is done wait
    for it (a batched exchange); what is not in the schedule (data, garbage collection, reductions, clipping,
    checkpoints) runs before the first or after the last compute of its stage, behind what had always ended by then; the
    all-gather that ends a step is the one that the next step's forward waits for, and is put there. Raises
    CannotReplayError where operations wait for each other.
    """
    timing = _Timing(recording, len(matched.nodes))
    _late_receives(matched, timing)
    stages = 1 + max(node.stage for node in matched.nodes)
    for stage in range(stages):
        _extras(matched, timing, stage)
    _gathers_first(matched)
    try:
        return Program.of(matched.nodes, matched.after, _meetings(recording, matched))
    except CircularWaitError as error:
        raise CannotReplayError(f"the schedule cannot be run: {error}") from None


def complete(recording: Recording, matched: Matched) -> Recording:
    """Only the steps in which every rank has a span of each action; what else is not in all of them is left out.

    Raises CannotReplayError where there is no such step.
    """
    needed = [node for node in matched.actions if node < len(recording.nodes)]
    whole = np.asarray(np.isfinite(recording.start[needed]).all(axis=(0, 1, 2)))
    if not whole.any():
        raise CannotReplayError("no step was read in which the spans of all ranks are complete")
    chosen = recording.of_steps(whole)
    for number, node in enumerate(recording.nodes):
        if node.is_transfer and not np.isfinite(chosen.start[number]).all():
            matched.nodes[number] = replace(node, name="", is_transfer=False)
    return chosen


class _Timing:
    """Begin and end of the nodes [N, lanes]; NaN where there is no span."""

    def __init__(self, recording: Recording, count: int) -> None:
        shape = (len(recording.nodes), -1)
        self.start, self.end = recording.start.reshape(shape), recording.last_end.reshape(shape)
        self._count = len(recording.nodes)

    def has(self, node: int) -> bool:
        """Whether the node was recorded at all."""
        return node < self._count

    def follows(self, later: int, earlier: int) -> bool:
        """Whether one (nearly) always begins once the other has ended, on the same rank."""
        return self._usually(self.start[later] - self.end[earlier])

    def is_inside(self, inner: int, outer: int) -> bool:
        """Whether one always runs while the other is open."""
        begins = self._usually(self.start[inner] - self.start[outer])
        return begins and self._usually(self.end[outer] - self.end[inner])

    def median_start(self, node: int) -> float:
        """Usual begin, for an order."""
        known = self.start[node][np.isfinite(self.start[node])]
        return float(np.median(known)) if len(known) else np.inf

    @staticmethod
    def _usually(gap: FloatArray) -> bool:
        known = gap[np.isfinite(gap)]
        return bool(len(known)) and float((known >= -TOLERANCE_NS).mean()) >= ALWAYS


def _late_receives(matched: Matched, timing: _Timing) -> None:
    """Make receives wait for the compute of the same direction before theirs, if they always do."""
    found: list[tuple[int, int]] = []
    fed = {
        one: node
        for node, action in matched.actions.items()
        if action.kind in COMPUTE
        for one in matched.after.get(node, ())
    }
    for stage in {action.stage for action in matched.actions.values()}:
        before: dict[str, int] = {}
        for node, action in matched.of_stage(stage):
            if action.kind in RECEIVES and node in fed and timing.has(node):
                direction = matched.actions[fed[node]].kind
                if direction in before:
                    found.append((node, before[direction]))
            if action.kind in COMPUTE:
                before[action.kind] = node
    if found and all(timing.follows(node, earlier) for node, earlier in found):
        for node, earlier in found:
            matched.after[node].add(earlier)


def _extras(matched: Matched, timing: _Timing, stage: int) -> None:
    """Place what runs beside the compute of a stage: before its first, or after its last."""
    compute = [node for node, action in matched.of_stage(stage) if action.kind in COMPUTE]
    if not compute:
        raise CannotReplayError(f"stage {stage} has no forward or backward in the schedule")
    scheduled = {ActionKind.REDUCE_SCATTER, ActionKind.OPTIMIZER_STEP}
    mine = [number for number, node in enumerate(matched.nodes) if node.stage == stage and timing.has(number)]
    kinds = {matched.first_phase.get(node, node): action.kind for node, action in matched.actions.items()}
    kinds |= {node: action.kind for node, action in matched.actions.items()}
    free = [one for one in mine if kinds.get(one, ActionKind.OPTIMIZER_STEP) in scheduled]
    last = compute[-1]
    late = sorted((one for one in free if timing.follows(one, last)), key=timing.median_start)
    early = sorted((one for one in free if one not in late and one not in kinds), key=timing.median_start)
    _chain(matched, timing, early)
    for node in early:
        matched.after[compute[0]].add(node)
    _chain(matched, timing, [last, *late])
    for node in late:
        if node not in kinds:
            matched.after[node].add(last)


def _chain(matched: Matched, timing: _Timing, nodes: list[int]) -> None:
    """Each of the nodes, in the order of their begin, waits for those before it that had ended or enclose it."""
    for place, node in enumerate(nodes):
        after = matched.after.setdefault(node, set())
        for earlier in nodes[:place]:
            if timing.follows(node, earlier) or timing.is_inside(node, earlier):
                after.add(earlier)


def _gathers_first(matched: Matched) -> None:
    """Put all-gathers that end a step before the first forward of their chunk: a step's stands for the one before."""
    for node, action in matched.actions.items():
        if action.kind != ActionKind.ALL_GATHER or not matched.after[node]:
            continue
        first = matched.first_phase.get(node, node)
        matched.after[first] = set()
        matched.handed_on.update((first, node))
        for other, user in matched.of_stage(action.stage):
            if user.kind == ActionKind.FORWARD and user.chunk == action.chunk:
                matched.after[other].add(node)
                break


def _meetings(recording: Recording, matched: Matched) -> Iterable[Meeting]:
    """Who begins together: ends of p2p, members of collectives, and the inner group in its compute."""
    inner = recording.places.ranks.shape[1] > 1
    for pair in matched.pairs:
        yield Meeting(pair)
    paired = {node for pair in matched.pairs for node in pair}
    met: set[int] = set()
    for number, node in enumerate(matched.nodes):
        if number in paired or number in met:
            continue
        if node.is_transfer:
            meeting = _collective(recording, matched.nodes, number)
            meeting = replace(meeting, nodes=tuple(one for one in meeting.nodes if one not in met | paired))
            met.update(meeting.nodes)
            yield meeting
        elif inner and number in matched.actions and matched.actions[number].kind in COMPUTE:
            yield Meeting((number,), members=True)


def _collective(recording: Recording, nodes: list[Node], number: int) -> Meeting:
    """The meeting of a collective, from its group; from the axis alone where no group was recorded."""
    node, (stages, _, replicas) = nodes[number], recording.places.ranks.shape
    everyone = (tuple(range(replicas)),)
    groups = recording.groups.get(number)
    group = recording.group_ranks.get(int(groups[0, 0])) if groups is not None else None
    if groups is None or group is None:
        axis = recording.axes[number]
        across = axis in (*REPLICA_AXES, "world")
        over_stages = range(stages) if axis == "world" else (node.stage,)
        joined = _same(nodes, node, over_stages)
        return Meeting(joined, axis in ("world", *recording.places.inner), everyone if across and replicas > 1 else ())
    lanes = recording.places.lanes()
    ranks = [rank for rank in group if rank < len(lanes) and lanes[rank] >= 0]
    place = np.stack(np.unravel_index(lanes[ranks], recording.places.ranks.shape))
    parts = [tuple(np.flatnonzero(groups[0] == one).tolist()) for one in dict.fromkeys(groups[0].tolist())]
    meets = any(len(part) > 1 for part in parts)
    return Meeting(
        _same(nodes, node, np.unique(place[0]).tolist()), len(np.unique(place[1])) > 1, tuple(parts) if meets else ()
    )


def _same(nodes: list[Node], node: Node, stages: Iterable[int]) -> tuple[int, ...]:
    """Nodes of the same operation on several stages."""
    chosen = set(stages)
    return tuple(
        number
        for number, other in enumerate(nodes)
        if other.stage in chosen
        and other.is_transfer
        and (other.name, other.chunk, other.microbatch) == (node.name, node.chunk, node.microbatch)
    )
