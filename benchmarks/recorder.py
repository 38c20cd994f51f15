"""What one span costs: this recorder, `record_function`, and other Python recorders that persist their spans."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from megascope.profiler import session
from megascope.profiler.box.format import DURATION_OFFSET, LEAF, LEAF_END
from megascope.profiler.cadence import Cadence
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind

from .machine import report
from .paired_training import paired_overhead

REPEATS = 7
SPANS = 20_000
ROUNDS, SHORT_ROUND = 400, 500

Loop = Callable[[int], None]


def empty(count: int) -> None:
    """The loop itself, to be taken off."""
    for _ in range(count):
        pass


@contextlib.contextmanager
def open_scratch(folder: Path, run: str = "bench", cadence: Cadence | None = None) -> Iterator[Recorder]:
    """A recorder of a black box like any other."""
    settings = RecorderSettings(run=run, attempt=0, rank=0, world_size=1, spool=folder, cadence=cadence or Cadence(run))
    recorder = open_recorder(settings)
    assert isinstance(recorder, Recorder)
    yield recorder
    recorder.close()


def megascope_loops(recorder: Recorder, untimed: Recorder) -> dict[str, Loop]:
    """What users do, a span a turn (``nested`` and ``nested_operation``: two); ``span`` is begin and end."""
    forward, layer = recorder.segment("forward"), recorder.segment("layer")
    gather = recorder.segment("gather", SegmentKind.COLLECTIVE, "tp")
    group = recorder.group("tp", [0, 1])
    begin, end, with_span = recorder.begin, recorder.end, recorder.span
    shadow_begin, shadow_end = untimed.begin, untimed.end
    shadow = untimed.segment("forward")
    untimed.step(1)

    def span(count: int) -> None:
        for number in range(count):
            end(begin(forward, number))

    def with_statement(count: int) -> None:
        for number in range(count):
            with with_span(forward, number):
                pass

    def named_segment(count: int) -> None:
        for number in range(count):
            with session.segment("forward", microbatch=number):
                pass

    def nested(count: int) -> None:
        for number in range(count):
            outer = begin(forward, number)
            end(begin(layer, number))
            end(outer)

    def operation(count: int) -> None:
        for number in range(count):
            one = recorder.begin_async(gather, group=group, sequence=number, size_bytes=4096, microbatch=number)
            recorder.wait_begin(one)
            recorder.end_async(one)
            recorder.wait_end(one)

    def shadow_span(count: int) -> None:
        for number in range(count):
            shadow_end(shadow_begin(shadow, number))

    return {
        "span": span,
        "with_statement": with_statement,
        "named_segment": named_segment,
        "nested": nested,
        "operation": operation,
        "shadow_span": shadow_span,
    }


def floor_loops() -> dict[str, Loop]:
    """What begin and end consist of at least, each twice: reading the clock, finding the thread, packing into a map."""
    now_ns, pack_begin, pack_end = time.monotonic_ns, LEAF.pack_into, LEAF_END.pack_into
    box, local = mmap.mmap(-1, 4096), threading.local()
    local.writer = now = now_ns()

    def clock(count: int) -> None:
        for _ in range(count):
            now_ns()
            now_ns()

    def thread(count: int) -> None:
        for _ in range(count):
            _writer = local.writer
            _writer = local.writer

    def packing(count: int) -> None:
        for number in range(count):
            pack_begin(box, 0, now, number, 5, 6, number, 0, now)
            pack_end(box, DURATION_OFFSET, now, 1)

    def calls(count: int) -> None:
        for number in range(count):
            _takes(_gives(5, number))

    return {"clock": clock, "thread": thread, "packing": packing, "calls": calls}


def _gives(_: int, number: int) -> int:
    return number


def _takes(_: int) -> None:
    return None


def record_function_spans(count: int) -> None:
    """torch's own marker, with or without a profiler attached."""
    from torch.profiler import record_function

    for _ in range(count):
        with record_function("forward"):
            pass


@contextlib.contextmanager
def opentelemetry_spans() -> Iterator[Loop]:
    """The SDK with a batch processor that writes JSON to a file."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    with tempfile.NamedTemporaryFile("w") as out:
        provider = TracerProvider()
        processor = BatchSpanProcessor(ConsoleSpanExporter(out=out), max_queue_size=10 * SPANS)
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("bench")

        def loop(count: int) -> None:
            for number in range(count):
                with tracer.start_as_current_span("forward") as span:
                    span.set_attribute("microbatch", number)
            processor.force_flush()

        yield loop
        provider.shutdown()


@contextlib.contextmanager
def viztracer_spans() -> Iterator[Loop]:
    """viztracer's custom events, saved to a file."""
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0, log_sparse=True, tracer_entries=10 * SPANS)
    with tempfile.TemporaryDirectory() as folder:

        def loop(count: int) -> None:
            tracer.start()
            for _ in range(count):
                with tracer.log_event("forward"):
                    pass
            tracer.stop()
            tracer.save(str(Path(folder) / "trace.json"))
            tracer.clear()

        yield loop


@contextlib.contextmanager
def torch_profiler_spans() -> Iterator[Loop]:
    """record_function under torch.profiler, exported as a Chrome trace."""
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder:

        def loop(count: int) -> None:
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                record_function_spans(count)
            profiler.export_chrome_trace(str(Path(folder) / "trace.json"))

        yield loop


def nanoseconds(loop: Loop, count: int = SPANS, repeats: int = REPEATS) -> float:
    """Best time of one round over several repeats: what a busy machine adds is not the recorder's."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter_ns()
        loop(count)
        best = min(best, (time.perf_counter_ns() - start) / count)
    return best


def interleaved(loops: Mapping[str, Loop], rounds: int = ROUNDS) -> dict[str, float]:
    """Best ns a turn of each loop, without the loop itself: many short rounds in turns, so that all meet the same
    machine, and some of each are not disturbed by what else runs on it."""
    best = dict.fromkeys(["", *loops], float("inf"))
    everything = {"": empty, **loops}
    for loop in everything.values():
        loop(SHORT_ROUND)
    gc.collect()
    for _, (name, loop) in itertools.product(range(rounds), everything.items()):
        start = time.perf_counter_ns()
        loop(SHORT_ROUND)
        best[name] = min(best[name], (time.perf_counter_ns() - start) / SHORT_ROUND)
    base = best.pop("")
    return {name: ns - base for name, ns in best.items()}


def others() -> dict[str, float | None]:
    """ns a span of recorders that persist what they record; null for one that is not installed."""
    result: dict[str, float | None] = {}
    candidates = {
        "opentelemetry-sdk": opentelemetry_spans,
        "viztracer": viztracer_spans,
        "torch.profiler": torch_profiler_spans,
    }
    for name, opener in candidates.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()), opener() as loop:
                result[name] = round(nanoseconds(loop, SPANS // 4, 3), 1)
        except ModuleNotFoundError:
            result[name] = None
    return result


def measure(folder: Path) -> dict[str, float]:
    """ns a turn of everything that is ours, of its parts, and of record_function."""
    with open_scratch(folder) as recorder, open_scratch(folder, "shadow", Cadence("shadow", 2)) as untimed:
        session.install(recorder)
        loops = megascope_loops(recorder, untimed) | {f"floor_{name}": loop for name, loop in floor_loops().items()}
        found = interleaved({**loops, "record_function": record_function_spans})
        session.shutdown()
    return found


def main() -> None:
    """Measure and print."""
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        found = measure(Path(folder))
    span_ns, record_function_ns = found["span"], found["record_function"]
    paired = paired_overhead()
    per_step = statistics.median(paired.spans_per_step)
    values = {
        "span_ns": round(span_ns, 1),
        "record_function_ns": round(record_function_ns, 1),
        "ratio": round(span_ns / record_function_ns, 4),
        "with_statement_ns": round(found["with_statement"], 1),
        "named_segment_ns": round(found["named_segment"], 1),
        "nested_pair_ns": round(found["nested"], 1),
        "operation_ns": round(found["operation"], 1),
        "shadow_span_ns": round(found["shadow_span"], 1),
        "floor_ns": {name[6:]: round(ns, 1) for name, ns in found.items() if name.startswith("floor_")},
        "others": others(),
        "spans_per_step": per_step,
        "step_ms": round(paired.step_ms, 3),
        "step_overhead_percent": round(100 * span_ns * per_step / (paired.step_ms * 1e6), 4),
        "step_overhead_percent_500_spans": round(100 * 500 * span_ns / 1e9, 4),
        "paired_overhead_percent": {
            "median": round(paired.overhead_percent, 3),
            "interval_95": [round(value, 3) for value in paired.interval_percent],
            "pairs": paired.pairs,
        },
        "losses_identical": paired.losses_identical,
    }
    report("recorder", values)


if __name__ == "__main__":
    main()
