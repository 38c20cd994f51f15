"""Which steps are timed: the same on all ranks, none by accident, and what is in flight kept in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.box.box import BoxReader
from megascope.profiler.box.span import Span
from megascope.profiler.cadence import DEFAULT_SHADOW_EVERY, Cadence, chosen
from megascope.profiler.device_clock import CudaTimer
from megascope.profiler.errors import UsageError
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support.fake_cuda import FakeCuda
from support.recording import Recorded, settings


@given(run=st.text(max_size=8), every=st.integers(2, 50), sample=st.integers(1, 7))
def test_each_block_of_sampled_steps_but_the_first_has_one_shadow(run: str, every: int, sample: int) -> None:
    cadence = Cadence(run, sample, every)
    steps = range(0, 6 * every * sample, sample)
    timed = [cadence.is_timed(step) for step in steps]
    assert [every - sum(timed[first : first + every]) for first in range(0, len(timed), every)] == [0] + [1] * 5
    others = (step for step in range(6 * every * sample) if step % sample)
    assert not any(cadence.is_timed(step) for step in others)
    assert [Cadence(run, sample, every).is_timed(step) for step in steps] == timed


def test_shadows_stand_at_changing_places() -> None:
    cadence = Cadence("run", 1, 20)
    places = {step % 20 for step in range(20, 4000) if cadence.is_shadow(step)}
    assert len(places) > 15
    assert all(Cadence("run").is_timed(step) for step in range(100))


@pytest.mark.parametrize("counts", [(0, 0), (-1, 20), (1, 1), (1, -5)])
def test_counts_that_make_no_sense_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="One step in"):
        Cadence("run", *counts)


def test_the_environment_chooses_where_no_argument_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGASCOPE_SHADOW")
    assert chosen("r") == Cadence("r", 1, DEFAULT_SHADOW_EVERY)
    monkeypatch.setenv("MEGASCOPE_SHADOW", "0")
    monkeypatch.setenv("MEGASCOPE_SAMPLE", "10")
    assert chosen("r") == Cadence("r", 10, 0)
    assert chosen("r", 2, 8) == Cadence("r", 2, 8)


@pytest.mark.parametrize(
    ("variable", "text", "expected", "is_warned"),
    [
        ("SHADOW", "", (1, DEFAULT_SHADOW_EVERY), False),
        ("SHADOW", "1", (1, DEFAULT_SHADOW_EVERY), False),
        ("SHADOW", "on", (1, DEFAULT_SHADOW_EVERY), False),
        ("SHADOW", " Off ", (1, 0), False),
        ("SHADOW", "none", (1, 0), False),
        ("SHADOW", "2", (1, 2), False),
        ("SHADOW", "-5", (1, DEFAULT_SHADOW_EVERY), True),
        ("SHADOW", "9" * 5000, (1, DEFAULT_SHADOW_EVERY), True),
        ("SAMPLE", "often", (1, DEFAULT_SHADOW_EVERY), True),
        ("SAMPLE", "0", (1, DEFAULT_SHADOW_EVERY), False),
        ("SAMPLE", "off", (1, DEFAULT_SHADOW_EVERY), False),
        ("SAMPLE", "1.5", (1, DEFAULT_SHADOW_EVERY), True),
        ("SAMPLE", "10", (10, DEFAULT_SHADOW_EVERY), False),
    ],
)
def test_the_environment_stops_no_training(
    variable: str,
    text: str,
    expected: tuple[int, int],
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for each in ("SAMPLE", "SHADOW"):
        monkeypatch.delenv(f"MEGASCOPE_{each}", raising=False)
    monkeypatch.setenv(f"MEGASCOPE_{variable}", text)
    assert chosen("r") == Cadence("r", *expected)
    assert (f"$MEGASCOPE_{variable}" in caplog.text) is is_warned
    with pytest.raises(UsageError):
        chosen("r", 0, 1)


@pytest.fixture
def sampled(tmp_path: Path) -> Recorded:
    """Every other step is timed, from step 0 on."""
    recorder = open_recorder(settings(tmp_path, cadence=Cadence("run", 2)))
    assert isinstance(recorder, Recorder)
    return Recorded(recorder, tmp_path / "run" / "0")


def test_in_steps_without_timings_everything_in_flight_is_kept(sampled: Recorded) -> None:
    recorder = sampled.recorder
    forward = recorder.segment("forward")
    gather = recorder.segment("gather", SegmentKind.COLLECTIVE, "tp")
    group = recorder.group("tp", [0, 1])
    reader = BoxReader(sampled.box)
    for step in range(6):
        recorder.step(step)
        with recorder.span(forward, step):
            operation = recorder.begin_async(gather, group=group, sequence=step + 1, microbatch=step)
            assert reader.slots()["segment"].tolist() == [forward, gather]
            assert reader.slots()["step"].tolist() == [step, step]
            recorder.wait_begin(operation)
            assert reader.slots()["waiting"].tolist() == [0, 1]
            recorder.end_async(operation)
            recorder.wait_end(operation)
            assert reader.slots()["segment"].tolist() == [forward]
        with pytest.raises(ZeroDivisionError), recorder.span(forward, 100 + step):
            raise ZeroDivisionError
        assert len(reader.slots()) == 0
        assert reader.progress()[group].tolist() == (step + 1, step + 1)
    recorder.end_step()
    spans = sampled.spans()
    assert set(spans["step"].tolist()) == {0, 2, 4}
    assert len(spans) == 9
    shadows = [line["shadow"] for line in sampled.metadata() if line["kind"] == "step"]
    assert shadows == [False, True] * 3
    recorder.close()


def test_a_span_over_the_end_of_a_step_follows_the_step_that_it_began_in(sampled: Recorded) -> None:
    recorder = sampled.recorder
    work, outer = recorder.segment("work"), recorder.segment("outer")
    for step in range(4):
        recorder.step(step)
        around = recorder.begin(outer, 10 + step)
        token = recorder.begin(work, step)
        recorder.step(step + 1)
        recorder.end(token)
        recorder.end(around)
        recorder.end(recorder.begin(work, 50 + step))  # in the next step
    assert sorted(sampled.spans()["microbatch"].tolist()) == [0, 2, 10, 12, 51, 53]
    assert len(BoxReader(sampled.box).slots()) == 0
    recorder.close()


def test_outside_of_steps_everything_is_timed(sampled: Recorded) -> None:
    recorder = sampled.recorder
    work = recorder.segment("work")
    recorder.end(recorder.begin(work, 1))
    recorder.step(1)
    recorder.end(recorder.begin(work, 2))
    recorder.end_step()
    recorder.end(recorder.begin(work, 3))
    assert sampled.spans()["microbatch"].tolist() == [1, 3]
    recorder.close()


def test_a_recorder_measures_what_a_span_costs_when_it_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the path that a rank's spans take: none of them goes the slower way over a slot."""

    def slower(*_: object) -> None:
        raise AssertionError("the slow path was measured")

    monkeypatch.setattr(Recorder, "begin_slotted", slower)
    recorder = open_recorder(settings(tmp_path))
    assert isinstance(recorder, Recorder)
    (header,) = (line for line in Recorded(recorder, tmp_path / "run" / "0").metadata() if line["kind"] == "header")
    assert header["recorder_span_ns"] > 0
    assert (header["sample"], header["shadow_every"]) == (1, 0)
    recorder.close()


def test_a_step_without_timings_has_no_events_but_those_of_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation's events also tell when it is no longer in flight; they are kept."""
    recorder = open_recorder(settings(tmp_path, cadence=Cadence("run", 2)))
    assert isinstance(recorder, Recorder)
    cuda = FakeCuda(0.0)
    recorder.device = timer = CudaTimer(cuda, recorder, cuda.host_ns)
    marked: list[int] = []
    mark = timer.mark

    def noting(span: Span, field: str, cuda_stream: object, *, last: bool) -> None:
        marked.append(span.segment)
        mark(span, field, cuda_stream, last=last)

    monkeypatch.setattr(timer, "mark", noting)
    forward = recorder.segment("forward")
    gather = recorder.segment("gather", SegmentKind.COLLECTIVE, "tp")
    group = recorder.group("tp", [0, 1])
    reader = BoxReader(tmp_path / "run" / "0" / "rank-00000.box")
    for step in range(4):
        recorder.step(step)
        marked.clear()
        span = recorder.begin(forward)
        operation = recorder.begin_async(gather, group=group, sequence=step + 1)
        cuda.current.launch(50)
        assert reader.slots()["segment"].tolist() == [forward, gather]
        recorder.end_async(operation)
        recorder.wait_begin(operation)
        recorder.wait_end(operation)
        recorder.end(span)
        timer.poll()
        assert marked.count(forward) == (2 if step % 2 == 0 else 0)
        assert reader.slots()["segment"].tolist() == ([forward, gather] if step % 2 == 0 else [gather])
        assert reader.progress()[group].tolist() == (step + 1, step)
        cuda.now_ms += 100
        timer.poll()
        assert reader.progress()[group].tolist() == (step + 1, step + 1)
        assert len(reader.slots()) == 0
    assert reader.read_ring(0, 0).records["step"].tolist() == [0, 0, 2, 2]
    reader.close()
