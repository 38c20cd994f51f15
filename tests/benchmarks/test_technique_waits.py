"""The benchmark of exposed waits: both sides can be trained, differ in their switch alone, and are read rightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.technique_waits import CASES, READ, SLOW_READ_S, _spread, _waits, overlap
from benchmarks.trainer import STEPS, WARM_UP
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.vocabulary import SegmentKind


@pytest.mark.parametrize("name", CASES)
def test_both_sides_can_be_trained(name: str) -> None:
    case = CASES[name]
    off, on = case.config(case.off), case.config(case.on)
    for config in (off, on):
        config.validate(config.topology().world_size)
        assert config.train.steps == STEPS
    assert off != on
    assert off.topology() == on.topology()


def test_waits_are_those_of_the_segments_after_the_warm_up(tmp_path: Path) -> None:
    settings = RecorderSettings(run="b", attempt=0, rank=0, world_size=1, spool=tmp_path)
    recorder: Any = open_recorder(settings)
    names = ("dp_all_gather", "dp_reduce_scatter", READ)
    kinds = (SegmentKind.COLLECTIVE, SegmentKind.COLLECTIVE, SegmentKind.DATA)
    early = recorder.segment("tp_broadcast", SegmentKind.COLLECTIVE)
    gather, reduce, read = (recorder.segment(name, kind) for name, kind in zip(names, kinds, strict=True))
    for step in range(STEPS):
        recorder.step(step)
        with recorder.span(read):
            pass
        for segment in (gather, reduce) if step >= WARM_UP else (early,):
            span = recorder.begin_async(segment)
            recorder.end_async(span)
            recorder.wait_begin(span)
            recorder.wait_end(span)
    recorder.end_step()
    recorder.close()
    (path,) = tmp_path.rglob("*.box")
    whole, one, other = (_waits(path, segments) for segments in (("dp_",), ("dp_all_gather",), ("dp_reduce_scatter",)))
    assert 0 < one < whole
    assert whole == pytest.approx(one + other)
    assert _waits(path, (READ,)) > 0
    assert _waits(path, ("tp_broadcast",)) == 0, "that was in the warm-up"
    assert "tp_broadcast" in path.with_suffix(".meta.jsonl").read_text()


def test_a_spread_is_smallest_median_and_largest() -> None:
    assert _spread([3.001, 1.0, 7.0, 2.0, 5.0]) == [1.0, 3.0, 7.0]


@pytest.mark.timeout(120)
def test_a_slow_reader_is_waited_for_where_nothing_is_drawn_ahead() -> None:
    (measured,) = overlap(["prefetch, slow reading"], repeats=1).values()
    assert measured["off"][0] >= SLOW_READ_S * 1e3
    assert measured["change"] == pytest.approx([measured["on"][0] - measured["off"][0]] * 3, abs=0.02)
