"""Schedules: complete, free of deadlock, bounded in memory, and in the same order at both ends of every edge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.vocabulary import ActionKind
from megascope.trainer.bubble import bubble, ideal_bubble, step_time
from megascope.trainer.config import Order
from megascope.trainer.schedule import (
    Action,
    Schedule,
    as_rows,
    compute_order,
    evaluation_schedule,
    training_schedule,
    virtual_stage,
    walk,
)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int]:
    """(stages, chunks, micro-batches) that have a schedule."""
    stages = draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 4)) if stages > 1 else 1
    microbatches = draw(st.integers(1, 12)) if chunks == 1 else stages * draw(st.integers(1, 3))
    return stages, chunks, microbatches


@given(shapes(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_action_is_there_once(shape: tuple[int, int, int], shards: bool) -> None:
    stages, chunks, microbatches = shape
    for stage, actions in enumerate(training_schedule(*shape, shards=shards)):
        keys = [action.key for action in actions]
        assert len(set(keys)) == len(keys)
        everything = {(chunk, microbatch) for chunk in range(chunks) for microbatch in range(microbatches)}
        last = stages * chunks - 1
        up = {place for place in everything if virtual_stage(stage, place[0], stages) < last}
        down = {place for place in everything if virtual_stage(stage, place[0], stages) > 0}
        expected = {
            ActionKind.FORWARD: everything,
            ActionKind.BACKWARD: everything,
            ActionKind.SEND_FORWARD: up,
            ActionKind.RECV_BACKWARD: up,
            ActionKind.RECV_FORWARD: down,
            ActionKind.SEND_BACKWARD: down,
            ActionKind.REDUCE_SCATTER: {(chunk, None) for chunk in range(chunks)} if shards else set(),
            ActionKind.ALL_GATHER: {(chunk, None) for chunk in range(chunks)} if shards else set(),
            ActionKind.OPTIMIZER_STEP: {(None, None)},
        }
        for kind, places in expected.items():
            assert {(a.chunk, a.microbatch) for a in actions if a.kind is kind} == places


@given(shapes(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_an_order_exists_and_respects_dependencies(shape: tuple[int, int, int], shards: bool) -> None:
    schedule = training_schedule(*shape, shards=shards)
    order = walk(schedule)
    when = {place: moment for moment, place in enumerate(order)}
    assert len(when) == sum(len(actions) for actions in schedule)
    for stage, actions in enumerate(schedule):
        for position, action in enumerate(actions):
            for place in action.depends_on:
                assert when[place] < when[stage, position]
                assert place[0] != stage or place[1] < position


@given(shapes())
@settings(max_examples=80, deadline=None)
def test_dependencies_follow_the_data(shape: tuple[int, int, int]) -> None:
    """A micro-batch passes all virtual stages upwards, then downwards, whatever path its dependencies take."""
    stages, chunks, microbatches = shape
    schedule = training_schedule(*shape, shards=True)
    for microbatch in range(microbatches):
        for virtual in range(stages * chunks):
            chunk, stage = divmod(virtual, stages)
            above = _compute_before(schedule, stage, ActionKind.FORWARD, chunk, microbatch)
            assert above == ({(ActionKind.FORWARD, virtual - 1)} if virtual else set())
            below = _compute_before(schedule, stage, ActionKind.BACKWARD, chunk, microbatch)
            is_last = virtual == stages * chunks - 1
            assert below == {(ActionKind.FORWARD, virtual)} | (
                set() if is_last else {(ActionKind.BACKWARD, virtual + 1)}
            )


def _compute_before(
    schedule: Schedule, stage: int, kind: ActionKind, chunk: int, microbatch: int
) -> set[tuple[ActionKind, int]]:
    """Forwards and backwards, with their virtual stages, that an action waits for directly or through transfers."""
    start = next(a for a in schedule[stage] if a.key == (kind, chunk, microbatch))
    found: set[tuple[ActionKind, int]] = set()
    open_places = list(start.depends_on)
    while open_places:
        other, position = open_places.pop()
        action = schedule[other][position]
        assert action.microbatch == microbatch
        if action.kind in (ActionKind.FORWARD, ActionKind.BACKWARD):
            assert action.chunk is not None
            found.add((action.kind, virtual_stage(other, action.chunk, len(schedule))))
        else:
            open_places += action.depends_on
    return found


@given(shapes())
@settings(max_examples=80, deadline=None)
def test_activations_in_flight_are_bounded(shape: tuple[int, int, int]) -> None:
    """1F1B holds at most stages - stage of them; interleaved at most its warm-up and one more."""
    stages, chunks, microbatches = shape
    for stage, actions in enumerate(training_schedule(*shape, shards=False)):
        held = most = 0
        for action in actions:
            held += (action.kind is ActionKind.FORWARD) - (action.kind is ActionKind.BACKWARD)
            most = max(most, held)
        behind = stages - 1 - stage
        bound = behind + 1 if chunks == 1 else 2 * behind + (chunks - 1) * stages + 1
        assert most == min(bound, microbatches * chunks)
        assert held == 0


@given(shapes(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_both_ends_of_an_edge_see_its_messages_in_one_order(shape: tuple[int, int, int], training: bool) -> None:
    """Messages of an edge are told apart by their order alone."""
    stages = shape[0]
    schedule = training_schedule(*shape, shards=True) if training else evaluation_schedule(*shape)
    sent: dict[tuple[str, int, int, bool], list[tuple[int, int | None]]] = {}
    received: dict[tuple[str, int, int, bool], list[tuple[int, int | None]]] = {}
    for stage, actions in enumerate(schedule):
        for action in actions:
            direction, _, what = str(action.kind).partition("_")
            if direction not in ("send", "recv") or action.chunk is None:
                continue
            virtual = virtual_stage(stage, action.chunk, stages)
            step = 1 if what == "forward" else -1
            source = virtual if direction == "send" else virtual - step
            edge = (what, source % stages, (source + step) % stages, source // stages != (source + step) // stages)
            (sent if direction == "send" else received).setdefault(edge, []).append((source, action.microbatch))
    assert sent == received


def test_a_known_interleaved_order() -> None:
    """Two stages, two chunks, four micro-batches: the order of Megatron-LM's interleaved 1F1B on the first stage."""
    first = training_schedule(2, 2, 4, shards=False)[0]
    shown = [f"{a.kind[0]}{a.chunk}.{a.microbatch}" for a in first if a.kind in ("forward", "backward")]
    assert " ".join(shown) == ("f0.0 f0.1 f1.0 f1.1 f0.2 b1.0 f0.3 b1.1 f1.2 b0.0 f1.3 b0.1 b1.2 b1.3 b0.2 b0.3")


def test_the_walker_names_a_deadlock() -> None:
    schedule = training_schedule(2, 1, 2, shards=False)
    crossed = tuple(
        (replace(actions[0], depends_on=((1 - stage, 1),)), *actions[1:]) for stage, actions in enumerate(schedule)
    )
    with pytest.raises(ValueError, match=r"stage 0 at .*; stage 1 at"):
        walk(crossed)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (3, 4)])
def test_interleaving_that_does_not_exist_is_refused(stages: int, microbatches: int) -> None:
    with pytest.raises(ValueError, match="interleaved 1F1B needs"):
        training_schedule(stages, 2, microbatches, shards=False)


def test_rows_of_the_table() -> None:
    rows = as_rows(training_schedule(2, 1, 1, shards=True))
    assert [(row["stage"], row["position"], row["action"]) for row in rows[:4]] == [
        (0, 0, "forward"),
        (0, 1, "send_forward"),
        (0, 2, "recv_backward"),
        (0, 3, "backward"),
    ]
    assert rows[0]["depends_on"] == []
    assert rows[2] == {
        "stage": 0,
        "position": 2,
        "action": "recv_backward",
        "chunk": 0,
        "microbatch": 0,
        "depends_on": [[1, 3]],
    }
    assert [row["depends_on"] for row in rows if row["action"] == "optimizer_step"] == [[[0, 4], [1, 4]]] * 2


def test_evaluation_has_forwards_and_their_transfers_only() -> None:
    kinds = {action.kind for actions in evaluation_schedule(3, 2, 3) for action in actions}
    assert kinds == {ActionKind.FORWARD, ActionKind.SEND_FORWARD, ActionKind.RECV_FORWARD}
    assert walk(evaluation_schedule(3, 2, 3))
    assert Action(ActionKind.FORWARD, 0, 0) == evaluation_schedule(3, 2, 3)[0][0]


# -- GPipe, and the bubble -----------------------------------------------------------------------------------------


COSTS = {ActionKind.FORWARD: 1.0, ActionKind.BACKWARD: 2.0}


@given(shapes())
@settings(max_examples=80, deadline=None)
def test_with_free_transfers_the_bubble_is_the_formula_s(shape: tuple[int, int, int]) -> None:
    assert bubble(training_schedule(*shape, shards=False), COSTS) == pytest.approx(ideal_bubble(*shape))
    stages, chunks, microbatches = shape
    if chunks == 1:
        gpipe = training_schedule(*shape, shards=False, order=Order.GPIPE)
        assert bubble(gpipe, COSTS) == pytest.approx((stages - 1) / microbatches)


def test_a_step_s_time_worked_out_by_hand() -> None:
    """Two stages, two micro-batches: 1 + 1 + 2 + 1 + 2 + 2, with a transfer of 0.5 each way at both ends."""
    schedule = training_schedule(2, 1, 2, shards=False)
    assert step_time(schedule, COSTS) == 9.0
    slow = {**COSTS, ActionKind.RECV_FORWARD: 0.5, ActionKind.RECV_BACKWARD: 0.5}
    assert step_time(schedule, slow) > 9.0
    assert bubble(schedule, slow) > ideal_bubble(2, 1, 2) == 0.5


def test_four_times_the_microbatches_leave_a_quarter_of_the_bubble() -> None:
    """As with LAMB at four times the batch: 75 % less, not 87.5 %."""
    small, large = (bubble(training_schedule(4, 1, count, shards=False), COSTS) for count in (8, 32))
    assert 1 - large / small == pytest.approx(0.75)


@given(st.integers(1, 6), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_gpipe_keeps_all_activations_and_1f1b_those_of_the_stages_behind(stages: int, microbatches: int) -> None:
    for order, bound in ((Order.GPIPE, microbatches), (Order.ONE_F_ONE_B, min(stages, microbatches))):
        held = most = 0
        for action in compute_order(stages, 0, 1, microbatches, order):
            held += 1 if action.kind is ActionKind.FORWARD else -1
            most = max(most, held)
        assert (most, held) == (bound, 0)
    assert walk(training_schedule(stages, 1, microbatches, shards=True, order=Order.GPIPE))
    assert walk(evaluation_schedule(stages, 1, microbatches, Order.GPIPE))


def test_gpipe_has_one_chunk_on_a_stage() -> None:
    with pytest.raises(ValueError, match="GPipe has one chunk"):
        training_schedule(2, 2, 2, shards=False, order=Order.GPIPE)


@given(shapes(), st.sampled_from([2, 3]))
@settings(max_examples=40, deadline=None)
def test_sharded_gradients_are_reduced_after_each_backward(shape: tuple[int, int, int], zero: int) -> None:
    schedule = training_schedule(*shape, shards=True, zero=zero)
    assert walk(schedule)
    for stage, actions in enumerate(schedule):
        reductions = [
            (place, action) for place, action in enumerate(actions) if action.kind is ActionKind.REDUCE_SCATTER
        ]
        assert len(reductions) == sum(action.kind is ActionKind.BACKWARD for action in actions)
        for _, action in reductions:
            ((other, place),) = action.depends_on
            assert other == stage
            assert actions[place].key == (ActionKind.BACKWARD, action.chunk, action.microbatch)
        step = next(action for action in actions if action.kind is ActionKind.OPTIMIZER_STEP)
        assert {(stage, place) for place, _ in reductions} <= set(step.depends_on)
        gathers = [action for action in actions if action.kind is ActionKind.ALL_GATHER]
        assert len(gathers) == (shape[1] if zero == 2 else 0)
