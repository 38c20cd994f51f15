"""Pipeline schedules as data: the actions of every stage in order, and what each of them depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..profiler.vocabulary import ActionKind
from .sections import Order

Place = tuple[int, int]
"""(stage, position): one action of a schedule."""

COMPUTE = frozenset({ActionKind.FORWARD, ActionKind.BACKWARD})


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of a stage's list. ``microbatch`` and ``chunk`` are None for actions of the whole step.

    A receive depends on the send at the other end, and stands right before the action that uses what it brings;
    an executor may post it earlier. A reduce-scatter depends on the last backward of its chunk, or on its own
    micro-batch's; bucket by bucket it may begin inside that backward. The first forward of a chunk also waits for the
    previous step's all-gather; with ZeRO-3 there is none, and weights are gathered as computing needs them.
    """

    kind: ActionKind
    chunk: int | None = None
    microbatch: int | None = None
    depends_on: tuple[Place, ...] = ()

    @property
    def key(self) -> tuple[ActionKind, int | None, int | None]:
        """What identifies the action in its stage's list."""
        return self.kind, self.chunk, self.microbatch


Schedule = tuple[tuple[Action, ...], ...]
"""The actions of every stage, by stage."""


def compute_order(
    stages: int, stage: int, chunks: int, microbatches: int, order: Order = Order.ONE_F_ONE_B
) -> list[Action]:
    """Forwards and backwards of a stage, without communication.

    GPipe (Huang et al. 2019): all forwards, then all backwards.

    One chunk: 1F1B (Narayanan et al. 2019, PipeDream), after ``stages - 1 - stage`` forwards of warm-up. More:
    interleaved 1F1B (Narayanan et al. 2021), which takes micro-batches in groups of ``stages`` through one chunk
    after another. Raises ValueError where the interleaved order does not exist.
    """
    if order is Order.GPIPE:
        if chunks > 1:
            raise ValueError("GPipe has one chunk on a stage")
        kinds = (ActionKind.FORWARD, ActionKind.BACKWARD)
        return [Action(kind, 0, number) for kind in kinds for number in range(microbatches)]
    if chunks > 1 and (stages == 1 or microbatches % stages):
        raise ValueError("interleaved 1F1B needs several stages, and micro-batches in groups of as many")
    total = microbatches * chunks
    behind = stages - 1 - stage
    warm_up = min(total, behind if chunks == 1 else 2 * behind + (chunks - 1) * stages)

    def place(number: int) -> tuple[int, int]:
        if chunks == 1:
            return 0, number
        group, within = divmod(number, stages * chunks)
        return within // stages, group * stages + within % stages

    def forward(number: int) -> Action:
        chunk, microbatch = place(number)
        return Action(ActionKind.FORWARD, chunk, microbatch)

    def backward(number: int) -> Action:
        chunk, microbatch = place(number)
        return Action(ActionKind.BACKWARD, chunks - 1 - chunk, microbatch)

    actions = [forward(number) for number in range(warm_up)]
    for number in range(total - warm_up):
        actions += [forward(warm_up + number), backward(number)]
    return actions + [backward(number) for number in range(total - warm_up, total)]


def training_schedule(
    stages: int,
    chunks: int,
    microbatches: int,
    *,
    shards: bool,
    order: Order = Order.ONE_F_ONE_B,
    zero: int = 1,
) -> Schedule:
    """All actions of one training step; ``shards``: with reduce-scatters and all-gathers over data-parallel ranks.

    From ``zero`` 2 on, gradients are reduced once a micro-batch; with 3, weights are not gathered after the step.
    """
    lists = []
    for stage in range(stages):
        computed = compute_order(stages, stage, chunks, microbatches, order)
        last_backward = {action.chunk: index for index, action in enumerate(computed)}
        actions: list[Action] = []
        for index, action in enumerate(computed):
            actions += _with_transfers(action, stage, stages, chunks)
            if not shards or action.kind is not ActionKind.BACKWARD:
                continue
            if zero > 1:
                actions.append(Action(ActionKind.REDUCE_SCATTER, action.chunk, action.microbatch))
            elif last_backward[action.chunk] == index:
                actions.append(Action(ActionKind.REDUCE_SCATTER, action.chunk))
        actions.append(Action(ActionKind.OPTIMIZER_STEP))
        if shards and zero < 3:
            actions += [Action(ActionKind.ALL_GATHER, chunk) for chunk in range(chunks)]
        lists.append(actions)
    return _link(lists)


def evaluation_schedule(stages: int, chunks: int, microbatches: int, order: Order = Order.ONE_F_ONE_B) -> Schedule:
    """Forwards only, in the order in which training takes them."""
    lists = []
    for stage in range(stages):
        computed = compute_order(stages, stage, chunks, microbatches, order)
        forwards = [action for action in computed if action.kind is ActionKind.FORWARD]
        lists.append([part for action in forwards for part in _with_transfers(action, stage, stages, chunks)])
    return _link(lists)


def virtual_stage(stage: int, chunk: int, stages: int) -> int:
    """Place of a chunk in the whole model: chunks of one rank are ``stages`` apart."""
    return chunk * stages + stage


def _with_transfers(action: Action, stage: int, stages: int, chunks: int) -> Iterator[Action]:
    """The receive that feeds a compute action, the action, and the send of what it makes."""
    assert action.chunk is not None
    virtual = virtual_stage(stage, action.chunk, stages)
    is_first, is_last = virtual == 0, virtual == stages * chunks - 1
    if action.kind is ActionKind.FORWARD:
        receive, send, takes, gives = ActionKind.RECV_FORWARD, ActionKind.SEND_FORWARD, not is_first, not is_last
    else:
        receive, send, takes, gives = ActionKind.RECV_BACKWARD, ActionKind.SEND_BACKWARD, not is_last, not is_first
    if takes:
        yield Action(receive, action.chunk, action.microbatch)
    yield action
    if gives:
        yield Action(send, action.chunk, action.microbatch)


def _link(lists: Sequence[Sequence[Action]]) -> Schedule:
    """Fill in ``depends_on``."""
    stages = len(lists)
    where: dict[tuple[int, ActionKind, int | None, int | None], int] = {}
    for stage, actions in enumerate(lists):
        for position, action in enumerate(actions):
            where[(stage, *action.key)] = position
    reductions = tuple(
        (stage, position)
        for stage, actions in enumerate(lists)
        for position, action in enumerate(actions)
        if action.kind is ActionKind.REDUCE_SCATTER
    )
    last = tuple((stage, _last_backward(actions)) for stage, actions in enumerate(lists))

    def depends_on(stage: int, action: Action) -> Iterator[Place]:
        if action.kind is ActionKind.OPTIMIZER_STEP:  # clipping needs the gradients of all stages
            yield from reductions or last
            return
        for other, kind, chunk in _sources(stage, action, stages):
            microbatch = action.microbatch
            if action.kind is ActionKind.REDUCE_SCATTER and microbatch is None:
                microbatch = max(a.microbatch or 0 for a in lists[stage] if a.kind is kind)
            position = where.get((other, kind, chunk, microbatch))
            if position is not None:
                yield other, position

    return tuple(
        tuple(Action(*action.key, tuple(depends_on(stage, action))) for action in actions)
        for stage, actions in enumerate(lists)
    )


def _last_backward(actions: Sequence[Action]) -> int:
    return max((i for i, action in enumerate(actions) if action.kind is ActionKind.BACKWARD), default=0)


def _sources(stage: int, action: Action, stages: int) -> Iterator[tuple[int, ActionKind, int | None]]:
    """(stage, kind, chunk) of the actions that a given one waits for, where they exist."""
    kind, chunk = action.kind, action.chunk
    if kind is ActionKind.FORWARD:
        yield stage, ActionKind.RECV_FORWARD, chunk
    elif kind is ActionKind.BACKWARD:
        yield stage, ActionKind.RECV_BACKWARD, chunk
        yield stage, ActionKind.FORWARD, chunk
    elif kind is ActionKind.SEND_FORWARD:
        yield stage, ActionKind.FORWARD, chunk
    elif kind in (ActionKind.SEND_BACKWARD, ActionKind.REDUCE_SCATTER):
        yield stage, ActionKind.BACKWARD, chunk
    elif kind is ActionKind.RECV_FORWARD:
        assert chunk is not None
        source = virtual_stage(stage, chunk, stages) - 1
        yield source % stages, ActionKind.SEND_FORWARD, source // stages
    elif kind is ActionKind.RECV_BACKWARD:
        assert chunk is not None
        source = virtual_stage(stage, chunk, stages) + 1
        yield source % stages, ActionKind.SEND_BACKWARD, source // stages
    elif kind is ActionKind.ALL_GATHER:
        yield stage, ActionKind.OPTIMIZER_STEP, None


def walk(schedule: Schedule) -> list[Place]:
    """An order in which all actions can run, each stage strictly in its own order.

    Raises ValueError naming the actions that wait for each other, where there is none: such a schedule deadlocks.
    """
    next_position = [0] * len(schedule)
    order: list[Place] = []
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(schedule):
            while next_position[stage] < len(actions):
                action = actions[next_position[stage]]
                if any(position >= next_position[other] for other, position in action.depends_on):
                    break
                order.append((stage, next_position[stage]))
                next_position[stage] += 1
                moved = True
    stuck = [
        f"stage {stage} at {actions[next_position[stage]].key}"
        for stage, actions in enumerate(schedule)
        if next_position[stage] < len(actions)
    ]
    if stuck:
        raise ValueError(f"the schedule deadlocks: {'; '.join(stuck)}")
    return order


def as_rows(schedule: Schedule) -> list[dict[str, Any]]:
    """The schedule as rows of the table ``schedule``."""
    return [
        {
            "stage": stage,
            "position": position,
            "action": str(action.kind),
            "chunk": action.chunk,
            "microbatch": action.microbatch,
            "depends_on": [list(place) for place in action.depends_on],
        }
        for stage, actions in enumerate(schedule)
        for position, action in enumerate(actions)
    ]
