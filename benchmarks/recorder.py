"""What one span costs: this recorder, `record_function`, and other Python recorders that persist their spans."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder

from .machine import report
from .paired_training import paired_overhead

REPEATS = 7
SPANS = 20_000

Loop = Callable[[int], None]


def empty(count: int) -> None:
    """The loop itself, to be taken off."""
    for _ in range(count):
        pass


@contextlib.contextmanager
def megascope_spans(folder: Path) -> Iterator[tuple[Loop, Recorder]]:
    """Begin and end with a micro-batch, into a black box."""
    recorder = open_recorder(RecorderSettings(run="bench", attempt=0, rank=0, world_size=1, spool=folder))
    assert isinstance(recorder, Recorder)
    segment = recorder.segment("forward")
    begin, end = recorder.begin, recorder.end

    def loop(count: int) -> None:
        for number in range(count):
            end(begin(segment, number))

    yield loop, recorder
    recorder.close()


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


def main() -> None:
    """Measure and print."""
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as folder, megascope_spans(Path(folder)) as (loop, _):
        base = nanoseconds(empty)
        # Interleaved, so that both meet the same machine.
        rounds = [(nanoseconds(loop, SPANS, 1), nanoseconds(record_function_spans, SPANS, 1)) for _ in range(REPEATS)]
    span_ns = min(ours for ours, _ in rounds) - base
    record_function_ns = min(theirs for _, theirs in rounds) - base
    paired = paired_overhead()
    per_step = statistics.median(paired.spans_per_step)
    values = {
        "span_ns": round(span_ns, 1),
        "record_function_ns": round(record_function_ns, 1),
        "ratio": round(span_ns / record_function_ns, 4),
        "others": others(),
        "spans_per_step": per_step,
        "step_ms": round(paired.step_ms, 3),
        "step_overhead_percent": round(100 * span_ns * per_step / (paired.step_ms * 1e6), 4),
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
