"""The clock of work stands still in whatever is no work, however that ends, and says so where it cannot be trusted."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megascope.profiler import session
from megascope.profiler.automatic.data import timed_next
from megascope.profiler.automatic.gc_spans import install_gc
from megascope.profiler.c10d.groups import Groups
from megascope.profiler.c10d.spans import OperationSpans
from megascope.profiler.vocabulary import SegmentKind
from megascope.profiler.work_clock import HELPED, WorkClock
from support.recording import Recorded
from support.work_machine import Machine, step_of


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        found = Machine(tmp_path / "schedstat", patch)
        patch.setattr(WorkClock, "of_this_thread", lambda: found.clock)
        yield found
        found.clock.close()


MOVES = ["enter", "leave", "rest_begin", "rest_end", "wait_begin 0", "wait_begin 1", "wait_end 0", "wait_end 1", "take"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.sampled_from(MOVES), max_size=40))
def test_whatever_begins_and_never_ends_nothing_is_counted_twice(machine: Machine, moves: list[str]) -> None:
    clock, counted, ran = machine.clock, 0, 0
    operations = [object(), object()]
    depth, rests, waits_for = 0, 0, None
    for move in moves:
        name, *which = move.split()
        if name == "take":
            counted += clock.take() or 0
        elif which:
            getattr(clock, name)(operations[int(which[0])])
        else:
            getattr(clock, name)()
        if name == "enter":
            depth += 1
            if depth == 1:
                rests, waits_for = 0, None
        elif name == "leave":
            depth = max(depth - 1, 0)
        elif depth and name == "rest_begin":
            rests += 1
        elif depth and name == "rest_end":
            rests = max(rests - 1, 0)
        elif depth and name == "wait_begin" and waits_for is None:
            waits_for = which[0]
        elif depth and name == "wait_end" and which[0] == waits_for:
            waits_for = None
        machine.pass_(7, 2)
        ran += 7 if depth and not rests and waits_for is None else 0
    for _ in range(depth):
        clock.leave()
    assert counted + (clock.take() or 0) == ran


def test_a_receive_that_was_there_in_time_is_no_work_and_ends_none(
    machine: Machine, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waited for late and at once, it is not measured; the clock goes on all the same. So it does after an error."""
    recorder = recorded.recorder
    monkeypatch.setattr(OperationSpans, "_is_vague", staticmethod(lambda *_: True))

    def wait(work: Callable[[], object]) -> object:
        machine.pass_(0, slept_ns=1_000)
        return work()

    def fail() -> object:
        raise RuntimeError("the peer has gone")

    spans = OperationSpans(recorder, Groups(recorder, None), wait)
    forward, receive = recorder.segment("forward"), recorder.segment("recv", SegmentKind.P2P)

    def run() -> None:
        with recorder.span(forward):
            machine.pass_(100)
            prompt, broken = (lambda: None), fail
            for work in (prompt, broken):
                spans.launched(recorder.begin_async(receive), work, is_p2p=True)
            spans.wait(prompt)
            machine.pass_(10)
            with pytest.raises(RuntimeError):
                spans.wait(broken)
            machine.pass_(1)

    assert step_of(recorded, run)["worked_ns"] == 111


def test_an_operation_that_could_not_be_issued_stops_no_clock(machine: Machine, recorded: Recorded) -> None:
    recorder = recorded.recorder
    spans = OperationSpans(recorder, Groups(recorder, None), lambda work: work)
    forward, reduce = recorder.segment("forward"), recorder.segment("reduce", SegmentKind.COLLECTIVE)

    def run() -> None:
        with recorder.span(forward):
            span = recorder.begin_async(reduce)
            spans.wait_begins(span)
            spans.failed(span)
            machine.pass_(5)

    assert step_of(recorded, run)["worked_ns"] == 5


@pytest.mark.parametrize("kind", sorted(set(SegmentKind) - {SegmentKind.COMPUTE, SegmentKind.OPTIMIZER}))
def test_segments_of_other_kinds_inside_of_work_are_none(
    machine: Machine, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, kind: SegmentKind
) -> None:
    recorder = recorded.recorder
    monkeypatch.setattr(session, "_recorder", recorder)
    forward, inside = recorder.segment("forward"), recorder.segment("inside", kind)

    def run() -> None:
        with recorder.span(forward):
            machine.pass_(100)
            with recorder.span(inside):
                machine.pass_(1_000)
            machine.pass_(10)
            with session.segment("inside", kind=kind):
                machine.pass_(1_000)
            machine.pass_(1)

    assert step_of(recorded, run)["worked_ns"] == 111


def test_waiting_for_data_inside_of_work_is_none(machine: Machine, recorded: Recorded) -> None:
    recorder = recorded.recorder
    train_step = recorder.segment("train_step")
    recorder.segment("data_wait", SegmentKind.DATA)

    def run() -> None:
        with recorder.span(train_step):
            timed_next(recorder, "data_wait", lambda: machine.pass_(1_000))
            machine.pass_(3)

    assert step_of(recorded, run)["worked_ns"] == 3


def test_a_full_garbage_collection_inside_of_work_is_none(machine: Machine, recorded: Recorded) -> None:
    recorder = recorded.recorder
    undo = install_gc(recorder)
    forward = recorder.segment("forward")

    def collecting(phase: str, info: dict[str, Any]) -> None:
        machine.pass_(1_000 if phase == "start" and info["generation"] == 2 else 0)

    gc.callbacks.append(collecting)

    def run() -> None:
        with recorder.span(forward):
            machine.pass_(4)
            gc.collect()
            machine.pass_(2)

    try:
        assert step_of(recorded, run)["worked_ns"] == 6
    finally:
        gc.callbacks.remove(collecting)
        undo()


@pytest.mark.parametrize(("kind", "known"), [(SegmentKind.COLLECTIVE, False), (SegmentKind.COMPUTE, True)])
def test_what_nobody_ends_by_name_makes_a_step_unknown(
    machine: Machine, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, kind: SegmentKind, known: bool
) -> None:
    recorder = recorded.recorder
    monkeypatch.setattr(session, "_recorder", recorder)
    forward = recorder.segment("forward")
    recorder.segment("inside", kind)

    def run(*, begins: bool) -> Callable[[], None]:
        def inner() -> None:
            with recorder.span(forward):
                span: Any = session.begin("inside", kind=kind) if begins else None
                machine.pass_(9)
                session.end(span)

        return inner

    assert ("worked_ns" in step_of(recorded, run(begins=True))) == known
    assert step_of(recorded, run(begins=False))["worked_ns"] == 9, "the next step is known again"


@pytest.mark.parametrize(("kind", "known"), [(SegmentKind.COLLECTIVE, True), (SegmentKind.COMPUTE, False)])
def test_work_that_nobody_ends_by_name_is_not_left_out_unsaid(
    machine: Machine, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, kind: SegmentKind, known: bool
) -> None:
    recorder = recorded.recorder
    monkeypatch.setattr(session, "_recorder", recorder)
    forward = recorder.segment("forward")
    recorder.segment("beside", kind)

    def run() -> None:
        with recorder.span(forward):
            machine.pass_(9)
        span: Any = session.begin("beside", kind=kind)
        machine.pass_(9)
        session.end(span)

    assert ("worked_ns" in step_of(recorded, run)) == known


@pytest.mark.parametrize(
    ("inside", "known"), [(0.0, True), (HELPED - 0.01, True), (HELPED + 0.01, False), (3.0, False)]
)
def test_work_that_other_threads_of_the_process_share_is_not_known(
    machine: Machine, inside: float, known: bool
) -> None:
    clock = machine.clock

    def step(outside: float) -> int | None:
        clock.enter()
        machine.pass_(800, 70, slept_ns=200, helped_ns=round(800 * inside))
        clock.leave()
        machine.pass_(0, helped_ns=round(800 * outside))
        return clock.take()

    usual = 1_000 if known else None
    assert step(0.0) == usual
    assert step(9.0) is None, "it may lie in work"
    assert step(9.0) == usual, "from now on it is looked at where it lies"


def test_what_threads_of_a_process_shared_since_before_it_began_is_not_known(machine: Machine) -> None:
    clock = machine.clock
    clock.enter()
    machine.pass_(100, helped_ns=400)
    clock.leave()
    clock.enter()
    assert clock.take() is None  # with work under way, whose helpers were not read at its begin
    machine.pass_(100, helped_ns=400)
    clock.leave()
    assert clock.take() is None
