"""Device time on a fake device: no synchronisation, one queue a stream, chained references, exposed time right."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.box.box import ABSENT_I64, ABSENT_INDEX, BoxReader
from megascope.profiler.device_clock import CudaTimer
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import STATUS_CODES, SegmentKind, Status
from support.fake_cuda import FakeCuda
from support.recording import settings

MS = 1_000_000


class Bench:
    """A recorder on a fake device; ``advance`` lets the device work up to a moment."""

    def __init__(self, spool: Path, skew_ppm: float = 0.0) -> None:
        recorder = open_recorder(settings(spool))
        assert isinstance(recorder, Recorder)
        self.cuda = FakeCuda(skew_ppm)
        self.timer = CudaTimer(self.cuda, recorder, self.cuda.host_ns)
        self.recorder = recorder
        recorder.device = self.timer
        self.box = spool / "run" / "0" / "rank-00000.box"
        self.synchronizations_at_start = self.cuda.synchronizations

    def advance(self, moment_ms: float) -> int:
        self.cuda.now_ms = moment_ms
        return self.timer.poll()

    def spans(self) -> dict[int, dict[str, int]]:
        """Completed spans by segment, each as a field-to-value mapping."""
        records = BoxReader(self.box).read_ring(0, 0).records
        names = records.dtype.names or ()
        return {int(record["segment"]): {name: int(record[name]) for name in names} for record in records}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_overlapped_communication_shows_its_exposed_part_without_synchronising(bench: Bench) -> None:
    recorder, cuda = bench.recorder, bench.cuda
    forward, backward = recorder.segment("forward"), recorder.segment("backward")
    scatter = recorder.segment("dp_reduce_scatter", SegmentKind.COLLECTIVE, "dp")
    group = recorder.group("dp", [0, 1])
    side = cuda.Stream()

    span = recorder.begin(forward)
    cuda.current.launch(10)  # 0..10
    recorder.end(span)
    side.drained_ms = cuda.current.drained_ms
    operation = recorder.begin_async(scatter, group=group, sequence=1, cuda_stream=side)
    side.launch(25)  # 10..35
    recorder.end_async(operation)
    done = cuda.Event()
    done.record(side)
    outer = recorder.begin(backward)
    cuda.current.launch(20)  # 10..30, beside it
    recorder.wait_begin(operation)
    cuda.current.wait_event(done)
    recorder.wait_end(operation)  # 30..35
    recorder.end(outer)

    assert bench.advance(5) > 0
    assert bench.spans() == {}
    bench.advance(12)
    assert set(bench.spans()) == {forward}
    bench.advance(31)  # what waits on the side stream blocks nobody on the compute stream
    assert set(bench.spans()) == {forward}
    assert bench.advance(40) == 0
    spans = bench.spans()
    assert (spans[forward]["start_ns"], spans[forward]["duration_ns"]) == (0, 10 * MS)
    assert (spans[scatter]["start_ns"], spans[scatter]["duration_ns"]) == (10 * MS, 25 * MS)
    assert spans[scatter]["exposed_ns"] == 5 * MS
    assert (spans[backward]["duration_ns"], spans[backward]["self_ns"]) == (25 * MS, 20 * MS)
    assert [spans[s]["clock"] for s in (forward, scatter, backward)] == [1, 1, 1]
    assert spans[scatter]["stream"] != spans[forward]["stream"]
    assert cuda.synchronizations == bench.synchronizations_at_start
    assert BoxReader(bench.box).progress()[group]["completed"] == 1


def test_a_finished_stream_is_not_held_up_by_a_busy_one(bench: Bench) -> None:
    recorder, cuda = bench.recorder, bench.cuda
    slow, quick = recorder.segment("slow", SegmentKind.COLLECTIVE), recorder.segment("quick")
    side = cuda.Stream()
    operation = recorder.begin_async(slow, cuda_stream=side)
    side.launch(500)
    recorder.end_async(operation)
    recorder.abandon(operation)
    span = recorder.begin(quick)
    cuda.current.launch(1)
    recorder.end(span)
    bench.advance(2)
    assert set(bench.spans()) == {quick}
    bench.advance(501)
    assert set(bench.spans()) == {quick, slow}
    assert bench.spans()[slow]["exposed_ns"] == ABSENT_I64


def test_events_are_pooled(bench: Bench) -> None:
    segment = bench.recorder.segment("work")

    def once() -> None:
        span = bench.recorder.begin(segment)
        bench.cuda.current.launch(1)
        bench.recorder.end(span)
        bench.advance(bench.cuda.current.drained_ms)

    once()
    created = bench.timer.events_created
    for _ in range(200):
        once()
    assert bench.timer.events_created == created


def test_children_on_the_device_are_not_self_time(bench: Bench) -> None:
    recorder, cuda = bench.recorder, bench.cuda
    outer, inner = recorder.segment("outer"), recorder.segment("inner")
    host = recorder.segment("collect", SegmentKind.GC)
    span = recorder.begin(outer)
    cuda.current.launch(4)
    child = recorder.begin(inner)
    cuda.current.launch(6)
    recorder.end(child)
    with recorder.span(host):
        pass
    recorder.end(span)
    bench.advance(20)
    spans = bench.spans()
    assert (spans[outer]["duration_ns"], spans[outer]["self_ns"]) == (10 * MS, 4 * MS)
    assert spans[inner]["parent"] == outer
    assert spans[host]["clock"] == 0
    assert spans[outer]["parent"] == ABSENT_INDEX


def test_a_stuck_kernel_stays_in_flight(bench: Bench) -> None:
    recorder, cuda = bench.recorder, bench.cuda
    span = recorder.begin(recorder.segment("forward"), 3)
    cuda.current.launch(1e9)
    recorder.end(span)
    bench.advance(1000)
    assert BoxReader(bench.box).slots()["microbatch"].tolist() == [3]


def test_a_span_inside_a_graph_capture_is_unmeasured_not_zero(bench: Bench) -> None:
    recorder, cuda = bench.recorder, bench.cuda
    around, captured, after = (recorder.segment(name) for name in ("around", "captured", "after"))
    outer = recorder.begin(around)
    cuda.capturing = True
    recorder.end(recorder.begin(captured))
    recorder.end(outer)
    cuda.capturing = False
    span = recorder.begin(after)
    cuda.current.launch(1)
    recorder.end(span)
    bench.advance(5)
    spans = bench.spans()
    for unmeasured in (around, captured):
        assert STATUS_CODES[spans[unmeasured]["status"]] is Status.UNMEASURED
        assert spans[unmeasured]["duration_ns"] == ABSENT_I64
    assert spans[after]["duration_ns"] == 1 * MS
    assert len(BoxReader(bench.box).slots()) == 0


def test_one_event_that_fails_costs_one_span(bench: Bench) -> None:
    recorder, cuda = bench.recorder, bench.cuda
    bad, good = recorder.segment("bad"), recorder.segment("good")
    cuda.capturing = True  # unseen: an event is recorded into a capture that the check did not notice
    cuda.is_current_stream_capturing = lambda: False  # type: ignore[method-assign]
    recorder.end(recorder.begin(bad))
    cuda.capturing = False
    recorder.end(recorder.begin(good))
    bench.advance(1)
    assert STATUS_CODES[bench.spans()[bad]["status"]] is Status.UNMEASURED
    assert bench.spans()[good]["duration_ns"] == 0


def test_a_lost_device_leaves_the_hosts_clock_and_no_growing_queue(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, cuda = bench.recorder, bench.cuda
    before, after = recorder.segment("before"), recorder.segment("after")
    held = recorder.begin(before, 1)
    for _ in range(200):
        recorder.end(recorder.begin(before))
    cuda.broken = True
    bench.advance(1)
    assert recorder.device is None
    assert caplog.text.count("cannot be timed any more") == 1
    recorder.end(held)
    recorder.end(recorder.begin(after))
    recorder.close()
    spans = bench.spans()
    assert STATUS_CODES[spans[before]["status"]] is Status.UNMEASURED
    assert (spans[after]["clock"], STATUS_CODES[spans[after]["status"]]) == (0, Status.OK)
    assert len(BoxReader(bench.box).slots()) == 0


def test_what_autograds_thread_waits_for_belongs_to_the_main_threads_backward(bench: Bench) -> None:
    recorder, cuda = bench.recorder, bench.cuda
    backward = recorder.segment("backward")
    gather = recorder.segment("tp_all_gather", SegmentKind.COLLECTIVE, "tp")
    group = recorder.group("tp", [0, 1])
    side = cuda.Stream()
    outer = recorder.begin(backward)
    cuda.current.launch(2)

    def on_autograds_thread() -> None:
        operation = recorder.begin_async(gather, group=group, sequence=1, cuda_stream=side)
        side.launch(7)
        recorder.end_async(operation)
        done = cuda.Event()
        done.record(side)
        recorder.wait_begin(operation)
        cuda.current.wait_event(done)
        recorder.wait_end(operation)

    thread = threading.Thread(target=on_autograds_thread)
    thread.start()
    thread.join()
    recorder.end(outer)
    bench.advance(20)
    spans = bench.spans()
    assert spans[gather]["parent"] == backward
    assert (spans[backward]["duration_ns"], spans[backward]["self_ns"]) == (7 * MS, 2 * MS)


def test_references_are_chained_not_taken_from_the_hosts_clock(bench: Bench) -> None:
    bench.cuda.clock_jitter_ns = itertools.cycle([-1 * MS, 1 * MS])  # just before and just after an event
    segment = bench.recorder.segment("work")
    for second in range(1, 20):
        bench.advance(second * 1000.0)
        bench.cuda.current.drained_ms = bench.cuda.now_ms
    span = bench.recorder.begin(segment)
    bench.cuda.current.launch(1)
    bench.recorder.end(span)
    bench.advance(bench.cuda.now_ms + 5)
    assert abs(bench.spans()[segment]["start_ns"] - 19_000 * MS) < 10_000


@pytest.mark.parametrize("skew_ppm", [0.0, 50.0, -50.0])
def test_hours_of_chained_references_stay_on_the_hosts_clock(tmp_path: Path, skew_ppm: float) -> None:
    bench = Bench(tmp_path, skew_ppm)
    recorder, cuda = bench.recorder, bench.cuda
    segment = recorder.segment("work")
    for second in range(1, 3601, 1):
        bench.advance(second * 1000.0)
        cuda.current.drained_ms = cuda.now_ms
        if second % 900 == 0:
            span = recorder.begin(segment, second)
            cuda.current.launch(0.75)
            recorder.end(span)
            started_ns = cuda.host_ns()
            bench.advance(cuda.now_ms + 1)
            record = BoxReader(bench.box).read_ring(0, 0).records[-1]
            assert abs(int(record["start_ns"]) - started_ns) < 100_000
            assert abs(int(record["duration_ns"]) - 750_000) < 200


@given(durations=st.lists(st.floats(0.001, 5.0), min_size=1, max_size=60))
def test_durations_are_right_to_the_grain_of_the_events(
    tmp_path_factory: pytest.TempPathFactory, durations: list[float]
) -> None:
    bench = Bench(tmp_path_factory.mktemp("device"))
    segment = bench.recorder.segment("work")
    for number, duration in enumerate(durations):
        span = bench.recorder.begin(segment, number)
        bench.cuda.current.launch(duration)
        bench.recorder.end(span)
    bench.advance(bench.cuda.current.drained_ms + 1)
    records = BoxReader(bench.box).read_ring(0, 0).records
    assert records["microbatch"].tolist() == list(range(len(durations)))
    assert np.abs(records["duration_ns"] - np.array(durations) * 1e6).max() < 100
    assert (np.diff(records["start_ns"]) > 0).all()
    bench.box.unlink()
