"""The schedule behind a what-if trace: each stage's actions in the order of a recorded step, and their dependencies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ....profiler.vocabulary import ActionKind
from ..columns import ABSENT
from .places import Places
from .rows import Operations
from .wires import Wires

_ACTIONS = {
    "params-all-gather": ActionKind.ALL_GATHER,
    "forward-recv": ActionKind.RECV_FORWARD,
    "backward-recv": ActionKind.RECV_BACKWARD,
    "forward-compute": ActionKind.FORWARD,
    "backward-compute": ActionKind.BACKWARD,
    "forward-send": ActionKind.SEND_FORWARD,
    "backward-send": ActionKind.SEND_BACKWARD,
    "grads-reduce-scatter": ActionKind.REDUCE_SCATTER,
    "optimizer": ActionKind.OPTIMIZER_STEP,
}
_SENDS = (ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD)

Action = tuple[ActionKind, int | None, int | None]
"""Kind, chunk and micro-batch."""

Place = tuple[int, int]
"""Stage and position."""


def schedule_rows(operations: Operations, wires: Wires, places: Places) -> pa.Table:
    """Rows of ``schedule``: as the first replica ran the recorded step that has the most operations.

    Of two transfers that began as one batch, the send stands first, so that the order can be run as it is.
    """
    lists = [_stage_actions(operations, wires, stage) for stage in range(places.stages)]
    where: dict[tuple[object, ...], Place] = {
        (stage, *action): (stage, position)
        for stage, actions in enumerate(lists)
        for position, action in enumerate(actions)
    }
    rows = [
        (stage, position, action, list(_depends_on(stage, position, action, lists, where, places)))
        for stage, actions in enumerate(lists)
        for position, action in enumerate(actions)
    ]
    depends = [[{"stage": one, "position": at} for one, at in places_of] for *_, places_of in rows]
    return pa.table(
        {
            "stage": pa.array([row[0] for row in rows], pa.int32()),
            "position": pa.array([row[1] for row in rows], pa.int32()),
            "action": pa.array([str(row[2][0]) for row in rows], pa.string()),
            "chunk": pa.array([row[2][1] for row in rows], pa.int16()),
            "microbatch": pa.array([row[2][2] for row in rows], pa.int32()),
            "depends_on": pa.array(depends, pa.list_(pa.struct([("stage", pa.int32()), ("position", pa.int32())]))),
        }
    )


def _stage_actions(operations: Operations, wires: Wires, stage: int) -> list[Action]:
    mine = (operations.stage == stage) & wires.launched & operations.is_sound & operations.of(*_ACTIONS)
    if not mine.any():
        return []
    mine &= operations.dp == operations.dp[mine].min()
    fullest = np.argmax(np.bincount(operations.step_index[mine]))
    rows = np.flatnonzero(mine & (operations.step_index == fullest))
    kinds = [_ACTIONS.get(name) for name in operations.names]
    is_send = np.array([kind in _SENDS for kind in kinds])[operations.code[rows]]
    rows = rows[np.lexsort((~is_send, operations.start_ns[rows]))]
    found: dict[Action, None] = {}
    for row in rows.tolist():
        kind = kinds[int(operations.code[row])]
        if kind is not None:
            found[kind, _known(int(wires.chunk[row])), _known(int(wires.microbatch[row]))] = None
    return list(found)


def _known(value: int) -> int | None:
    return None if value == ABSENT else value


def _depends_on(
    stage: int, position: int, action: Action, lists: list[list[Action]], where: dict[tuple[object, ...], Place],
    places: Places,
) -> Iterator[Place]:  # fmt: skip
    """Places of what must have ended before an action, where they exist."""
    kind, chunk, microbatch = action
    if kind is ActionKind.OPTIMIZER_STEP:
        yield from _reductions(lists)
        return
    if kind is ActionKind.REDUCE_SCATTER:
        yield from _last_backward(stage, chunk, lists)
        return
    if kind is ActionKind.FORWARD:
        gather = where.get((stage, ActionKind.ALL_GATHER, chunk, None))
        if gather is not None and gather[1] < position:
            yield gather
    for other, source, of_chunk in _sources(stage, kind, chunk, places):
        found = where.get((other, source, of_chunk, microbatch))
        if found is not None:
            yield found


def _reductions(lists: list[list[Action]]) -> Iterator[Place]:
    """All reduce-scatters, for clipping needs the gradients of all stages; without any, all last backwards."""
    found = [
        (stage, position)
        for stage, actions in enumerate(lists)
        for position, (kind, *_) in enumerate(actions)
        if kind is ActionKind.REDUCE_SCATTER
    ]
    yield from found
    for stage, actions in enumerate(lists) if not found else ():
        for chunk in dict.fromkeys(one for kind, one, _ in actions if kind is ActionKind.BACKWARD):
            yield from _last_backward(stage, chunk, lists)


def _last_backward(stage: int, chunk: int | None, lists: list[list[Action]]) -> Iterator[Place]:
    found = [at for at, (kind, one, _) in enumerate(lists[stage]) if kind is ActionKind.BACKWARD and one == chunk]
    if found:
        yield stage, found[-1]


def _sources(
    stage: int, kind: ActionKind, chunk: int | None, places: Places
) -> Iterator[tuple[int, ActionKind, int | None]]:
    """Stage, kind and chunk of what feeds an action of one micro-batch."""
    if kind is ActionKind.FORWARD:
        yield stage, ActionKind.RECV_FORWARD, chunk
    elif kind is ActionKind.BACKWARD:
        yield stage, ActionKind.RECV_BACKWARD, chunk
        yield stage, ActionKind.FORWARD, chunk
    elif kind is ActionKind.SEND_FORWARD:
        yield stage, ActionKind.FORWARD, chunk
    elif kind is ActionKind.SEND_BACKWARD:
        yield stage, ActionKind.BACKWARD, chunk
    elif kind in (ActionKind.RECV_FORWARD, ActionKind.RECV_BACKWARD):
        is_forward = kind is ActionKind.RECV_FORWARD
        other = (chunk or 0) * places.stages + stage + (-1 if is_forward else 1)
        yield (
            other % places.stages,
            ActionKind.SEND_FORWARD if is_forward else ActionKind.SEND_BACKWARD,
            other // places.stages,
        )
