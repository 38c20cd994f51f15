"""What must neither stop training nor lose what was recorded: interruptions, threads, forks, names, little room."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from megascope.profiler.box.box import ABSENT_INDEX, BoxLayout, BoxReader
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support.open_spans import Action, Model
from support.recording import Recorded, settings


@given(actions=st.lists(st.builds(Action, st.sampled_from(Action.KINDS), st.integers(0, 30)), max_size=60))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
def test_whatever_is_begun_and_ended_in_whatever_order(tmp_path: Path, actions: list[Action]) -> None:
    """Nesting, overlap, second ends and operations in any order: each ended span once, with the parent that it had."""
    spool = tmp_path / str(time.monotonic_ns())
    recorder = open_recorder(settings(spool))
    assert isinstance(recorder, Recorder)
    model = Model(recorder)
    reader = BoxReader(spool / "run" / "0" / "rank-00000.box")
    for action in actions:
        model.apply(action)
        assert reader.slots()["microbatch"].tolist() == model.open_numbers
    spans = reader.read_ring(0, 0).records
    assert spans["microbatch"].tolist() == model.ended_numbers
    assert spans["parent"].tolist() == model.parents_of_ended
    assert (spans["self_ns"] >= 0).all()
    assert (spans["self_ns"] <= spans["duration_ns"]).all()
    reader.close()
    recorder.close()
    reader.path.unlink()


@contextmanager
def _collections_that_record(recorder: Recorder) -> Iterator[Counter[str]]:
    """Garbage collection strikes at almost every allocation, and each opens spans of its own."""
    pause, inner = recorder.segment("gc", SegmentKind.GC), recorder.segment("inside gc", SegmentKind.GC)
    counts: Counter[str] = Counter()
    running: list[object] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            running.append(recorder.begin(pause, info["generation"]))
        else:
            with recorder.span(inner):
                pass
            recorder.end(running.pop())  # type: ignore[arg-type]
            counts["gc"] += 1

    before = gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(2, 2, 1000)
    try:
        yield counts
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(callback)


def test_a_garbage_collection_in_the_middle_of_begin_loses_nothing(tmp_path: Path) -> None:
    recorder = open_recorder(settings(tmp_path, layout=BoxLayout(slots=64, rings=2, ring_records=65536, groups=4)))
    assert isinstance(recorder, Recorder)
    outer, work = recorder.segment("outer"), recorder.segment("work")
    keep: list[list[int]] = []
    with _collections_that_record(recorder) as counts:
        for number in range(2000):
            with recorder.span(outer, number):
                keep.append([])
                operation = recorder.begin_async(work, microbatch=number)
                recorder.end_async(operation)
                recorder.wait_begin(operation)
                recorder.wait_end(operation)
    spans = BoxReader(tmp_path / "run" / "0" / "rank-00000.box").read_ring(0, 0)
    found = Counter(spans.records["segment"].tolist())
    assert spans.lost == 0
    assert counts["gc"] > 500
    assert (found[outer], found[work]) == (2000, 2000)
    assert found[recorder.segment("gc", SegmentKind.GC)] == found[recorder.segment("inside gc", SegmentKind.GC)]
    assert found[recorder.segment("gc", SegmentKind.GC)] == counts["gc"]
    assert (spans.records["self_ns"] >= 0).all()
    recorder.close()


def test_a_signal_in_the_middle_of_begin_and_end_loses_nothing(tmp_path: Path) -> None:
    recorder = open_recorder(settings(tmp_path, layout=BoxLayout(slots=64, rings=2, ring_records=65536, groups=4)))
    assert isinstance(recorder, Recorder)
    work, handled = recorder.segment("work"), recorder.segment("handler")
    count = 0

    def handler(_: int, __: FrameType | None) -> None:
        nonlocal count
        outer = recorder.begin(handled, count)
        recorder.end(recorder.begin(handled, count))
        recorder.end(outer)
        count += 1

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        done = 0
        deadline = time.monotonic() + 20
        while (done < 20_000 or count < 100) and time.monotonic() < deadline and done < 60_000:
            recorder.end(recorder.begin(work, done))
            done += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    spans = BoxReader(tmp_path / "run" / "0" / "rank-00000.box").read_ring(0, 0)
    assert spans.lost == 0
    assert count >= 100
    assert sorted(spans.records[spans.records["segment"] == work]["microbatch"].tolist()) == list(range(done))
    assert np.count_nonzero(spans.records["segment"] == handled) == 2 * count
    recorder.close()


def test_many_threads_nest_and_end_each_others_spans(recorded: Recorded) -> None:
    """More threads than rings; each hands every tenth span to its neighbour, which ends it."""
    recorder = recorded.recorder
    outer, inner = recorder.segment("outer"), recorder.segment("inner")
    count, rounds = 6, 40
    handed: list[list[object]] = [[] for _ in range(count)]
    start = threading.Barrier(count)

    def work(number: int) -> None:
        start.wait(20)
        for turn in range(rounds):
            token = recorder.begin(outer, 1000 * number + turn)
            recorder.end(recorder.begin(inner, 1000 * number + turn))
            if turn % 10 == 0:
                handed[(number + 1) % count].append(token)
            else:
                recorder.end(token)
            while handed[number]:
                recorder.end(handed[number].pop())  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for tokens in handed:
        for token in tokens:
            recorder.end(token)  # type: ignore[arg-type]
    spans = np.concatenate([recorded.spans(ring) for ring in range(4)])
    expected = sorted(1000 * number + turn for number in range(count) for turn in range(rounds))
    for segment in (outer, inner):
        assert sorted(spans[spans["segment"] == segment]["microbatch"].tolist()) == expected
    inside = spans[spans["segment"] == inner]
    assert set(inside["parent"].tolist()) == {outer}
    assert len(BoxReader(recorded.box).slots()) == 0
    assert set(spans["thread"].tolist()) <= {0, 1, 2, 3}


def test_a_fork_while_threads_record_leaves_the_parent_alone(recorded: Recorded) -> None:
    """The child goes on with functions that it was handed before the fork; none of that reaches the parent's box."""
    from megascope.profiler import session

    recorder = recorded.recorder
    session.install(recorder)
    segment = recorder.segment("work")
    begin, end = recorder.begin, recorder.end
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            end(begin(segment, 1))

    thread = threading.Thread(target=busy)
    thread.start()
    open_in_parent = begin(segment, 2)
    child = os.fork()
    if child == 0:
        for _ in range(100):
            end(begin(segment, 99))
        end(open_in_parent)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    stop.set()
    thread.join(10)
    session.install(NullRecorder())
    assert status == 0
    assert BoxReader(recorded.box).slots()["microbatch"].tolist() == [2]
    end(open_in_parent)
    spans = np.concatenate([recorded.spans(ring) for ring in range(4)])
    assert set(spans["microbatch"].tolist()) == {1, 2}


def test_a_wall_clock_that_steps_changes_no_time(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("work")
    real = time.time_ns
    for hours in (0, -5, 7):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: real() + hours * 3600 * 10**9)
        monkeypatch.setattr(time, "time", lambda hours=hours: real() / 1e9 + hours * 3600)
        recorder.step(hours % 24)
        recorder.end(recorder.begin(segment))
    spans = recorded.spans()
    assert (np.diff(spans["begun_ns"]) > 0).all()
    assert spans["begun_ns"][-1] - spans["begun_ns"][0] < 5 * 10**9
    starts = [line["start_ns"] for line in recorded.metadata() if line["kind"] == "step"]
    assert starts == sorted(starts)


NO_SHUTDOWN = """
import os, sys
from pathlib import Path
from megascope.profiler.opening import RecorderSettings, open_recorder
recorder = open_recorder(RecorderSettings(run="run", attempt=0, rank=0, world_size=1, spool=Path(sys.argv[1])))
outer, work = recorder.segment("outer"), recorder.segment("work")
recorder.begin(outer, 1)
for number in range(50):
    recorder.end(recorder.begin(work, number))
recorder.begin(work, 77)
os._exit(3)
"""


def test_without_a_shutdown_all_that_ended_and_all_that_was_open_is_there(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NO_SHUTDOWN, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == 3
    reader = BoxReader(tmp_path / "run" / "0" / "rank-00000.box")
    assert not reader.closed
    assert reader.read_ring(0, 0).records["microbatch"].tolist() == list(range(50))
    assert reader.slots()["microbatch"].tolist() == [1, 77]
    assert reader.slots()["parent"].tolist()[0] == ABSENT_INDEX
