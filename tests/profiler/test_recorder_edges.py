"""Ends of spans that were never begun, threads that appear during a step, and self times around untimed steps."""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import megascope
from megascope.profiler.box.box import BoxReader
from megascope.profiler.box.hot_path import NO_SPAN
from megascope.profiler.box.open_spans import LEAK_STEPS
from megascope.profiler.box.ring_writer import ABORTED
from megascope.profiler.box.span import Span
from megascope.profiler.cadence import Cadence
from megascope.profiler.in_compiled_code import no_begin
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from support.recording import SMALL, Recorded, settings

NO_TOKENS = [no_begin("x"), None]
"""What compiled code gets for a span: 0; and what code that forgot to begin one has."""


@pytest.mark.parametrize("status", [0, ABORTED])
@pytest.mark.parametrize("token", NO_TOKENS)
@pytest.mark.parametrize("is_quiet", [False, True])
def test_an_end_without_a_begin_does_nothing(tmp_path: Path, token: Any, status: int, is_quiet: bool) -> None:
    """With nothing open, with a leaf open, with a span open that has a slot, and around both."""
    recorder = open_recorder(settings(tmp_path, cadence=Cadence("run", 2)))
    assert isinstance(recorder, Recorder)
    recorder.step(int(is_quiet))
    work = recorder.segment("work")
    recorder.end(token, status)
    leaf = recorder.begin(work, 1)
    recorder.end(token, status)
    recorder.innermost()  # gives the leaf a slot
    recorder.end(token, status)
    inner = recorder.begin(work, 2)
    recorder.end(token, status)
    assert BoxReader(tmp_path / "run" / "0" / "rank-00000.box").slots()["microbatch"].tolist() == [1, 2]
    recorder.end(inner)
    recorder.end(leaf)
    recorder.end(token, status)
    spans = Recorded(recorder, tmp_path / "run" / "0").spans()
    assert spans["microbatch"].tolist() == ([] if is_quiet else [2, 1])
    recorder.close()


def test_what_compiled_code_begins_may_be_ended_outside_of_it(tmp_path: Path) -> None:
    recorder = megascope.init(spool=tmp_path, agent=False, run="r", automatic="none")
    try:
        megascope.end(no_begin("x"))
        with megascope.segment("y"):
            megascope.end(no_begin("x"))
        assert len(BoxReader(tmp_path / "r" / "0" / "rank-00000.box").read_ring(0, 0).records) == 1
    finally:
        megascope.shutdown()
        assert recorder is not megascope.current()


def test_a_span_begun_in_compiled_code_and_ended_elsewhere(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    megascope.init(spool=tmp_path, agent=False, run="r", attempt=0, automatic="compile")
    try:

        @torch.compile(backend="eager")  # type: ignore[untyped-decorator,unused-ignore]
        def work(values: Any) -> tuple[Any, Any]:
            span = megascope.begin("inside")
            values = values + 1
            torch._dynamo.graph_break()
            return values * 2, span

        values, span = work(torch.ones(2))
        megascope.end(span)
        assert values.tolist() == [4.0, 4.0]
        assert span == NO_SPAN
    finally:
        megascope.shutdown()


def test_spans_whose_end_is_compiled_away_are_given_up_when_slots_run_out(recorded: Recorded) -> None:
    recorder = recorded.recorder
    work = recorder.segment("work")
    for step in range(3 * SMALL.slots):
        recorder.step(step)
        recorder.begin(work, step)
    reader = BoxReader(recorded.box)
    assert reader.leaked > SMALL.slots
    assert len(reader.slots()) <= SMALL.slots
    assert recorder._step is not None
    assert max(reader.slots()["step"].tolist()) >= recorder._step - LEAK_STEPS


class FakeTimer:
    """Times nothing."""

    def stream_index(self, cuda_stream: Any) -> tuple[int, str]:
        return 0, "default"

    def mark(self, span: Span, field: str, cuda_stream: Any, *, last: bool) -> None:
        return None

    def close(self) -> None:
        return None


@pytest.mark.parametrize("use", ["step", "end", "device"])
def test_a_thread_that_appears_while_threads_are_looked_at_does_no_harm(
    recorded: Recorded, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each line of Python that a look at the threads takes, another one records its first span."""
    recorder = recorded.recorder
    held, kept = threading.Event(), list[threading.Thread]()

    def appear(*_: object) -> bool:
        if len(kept) >= 60:
            return True
        began = threading.Event()

        def appeared() -> None:
            recorder.new_writer()
            began.set()
            held.wait(20)

        kept.append(threading.Thread(target=appeared))
        kept[-1].start()
        assert began.wait(10)
        return True

    for _ in range(3):
        appear()
    recorder.end(recorder.begin(recorder.segment("work")))
    monkeypatch.setattr(recorder, "_empty_ring", appear)

    def trace(*_: object) -> Any:
        appear()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        if use == "step":
            recorder._enter(1, is_quiet=True)
        elif use == "device":
            recorder.device = FakeTimer()
        else:
            recorder.end(12345)
    finally:
        sys.settrace(before)
        held.set()
        for thread in kept:
            thread.join(20)
    assert len(kept) > 5


def test_threads_that_ended_are_forgotten(recorded: Recorded) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("work")
    for _ in range(50):
        thread = threading.Thread(target=lambda: recorder.end(recorder.begin(segment)))
        thread.start()
        thread.join()
    gc.collect()
    assert len(recorder.writers()) <= 2


@pytest.mark.parametrize("status", [0, ABORTED])
def test_an_untimed_leaf_is_no_self_time_of_the_span_around_it(tmp_path: Path, status: int) -> None:
    """A span over several steps, every other of them timed: what is inside counts in all of them."""
    recorder = open_recorder(settings(tmp_path, cadence=Cadence("run", 2)))
    assert isinstance(recorder, Recorder)
    epoch, child = recorder.segment("epoch"), recorder.segment("child")
    recorder.step(0)
    around = recorder.begin(epoch, 9)
    for step in range(4):
        recorder.step(step)
        inner = recorder.begin(child, step)
        time.sleep(0.02)
        recorder.end(inner, status)
    recorder.end(around)
    spans = Recorded(recorder, tmp_path / "run" / "0").spans()
    assert spans["microbatch"].tolist() == [0, 2, 9]
    assert spans["duration_ns"][-1] >= 80_000_000
    assert spans["self_ns"][-1] <= spans["duration_ns"][-1] - 80_000_000
    recorder.close()


def test_time_in_which_two_spans_overlap_counts_once(recorded: Recorded) -> None:
    """The second is begun inside the first, and goes on after it: around both is what neither took."""
    recorder = recorded.recorder
    segments = [recorder.segment(name) for name in ("around", "first", "second")]
    around, first, second = (recorder.begin(segment) for segment in segments)
    time.sleep(0.05)
    recorder.end(first)
    time.sleep(0.02)
    recorder.end(second)
    recorder.end(around)
    spans = {int(span["segment"]): span for span in recorded.spans()}
    whole, early, late = (spans[segment] for segment in segments)
    assert 0 <= whole["self_ns"] <= whole["duration_ns"] - 70_000_000
    assert 0 <= early["self_ns"] <= early["duration_ns"] - 50_000_000
    assert late["self_ns"] == late["duration_ns"] >= 70_000_000
