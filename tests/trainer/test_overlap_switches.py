"""Data-parallel communication beside other work: what each of the two switches moves where, and that no bit changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megascope.profiler.null import NullRecorder
from megascope.trainer.config import TrainConfig
from megascope.trainer.loop import Trainer
from support.forkrun import run_ranks
from support.training import run_config, small_config

STEPS = 3
Event = tuple[str, str]
SWITCHES = [(gather, reduce) for gather in (False, True) for reduce in (False, True)]


class Notes(NullRecorder):
    """What happens on a rank, in order: spans entered and left, operations begun and waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._names: list[str] = []

    def segment(self, name: str, *_: Any) -> int:
        self._names.append(name)
        return len(self._names) - 1

    def span(self, segment: int, *_: Any) -> Any:
        return _Span(self.events, self._names[segment])

    def begin_async(self, segment: int, **_: Any) -> Any:
        self.events.append(("begin", self._names[segment]))
        return self._names[segment]

    def wait_begin(self, span: str) -> None:
        self.events.append(("wait", span))


class _Span:
    def __init__(self, events: list[Event], name: str) -> None:
        self._events, self._name = events, name

    def __enter__(self) -> None:
        self._events.append(("enter", self._name))

    def __exit__(self, *_: object) -> None:
        self._events.append(("leave", self._name))


def noted(config: TrainConfig) -> list[Event]:
    """The events of rank 0."""

    def work() -> list[Event]:
        notes = Notes()
        Trainer(config, notes, torch.device("cpu")).run()
        return notes.events

    return run_ranks(config.topology().world_size, work, timeout_s=60)[0]


def places(events: list[Event], wanted: Event, span: str) -> list[bool]:
    """Of each event of a kind, whether it came inside a span of that name."""
    inside, found = False, []
    for event in events:
        if event[1] == span:
            inside = event[0] == "enter"
        if event == wanted:
            found.append(inside)
    return found


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("gather", "reduce"), SWITCHES)
def test_each_switch_moves_its_own_collective(gather: bool, reduce: bool) -> None:
    config = small_config(dp=2, steps=STEPS, parallel={"overlap_gather": gather, "overlap_reduce": reduce})
    events = noted(config)
    reduced = places(events, ("begin", "dp_reduce_scatter"), "backward")
    assert any(reduced) == reduce
    assert len(reduced) % STEPS == 0
    sent = events.index(("begin", "dp_all_gather"))
    loaded = events.index(("enter", "data"), sent)
    before = {event for event in events[sent:loaded] if event[1] == "dp_all_gather"}
    assert (("wait", "dp_all_gather") in before) == (not gather)
    batch_is_there = events.index(("leave", "data"), loaded)
    after = events[batch_is_there : events.index(("enter", "forward"), batch_is_there)]
    assert (("wait", "dp_all_gather") in after) == gather, "they travel while the batch is loaded"


@pytest.mark.timeout(60)
def test_without_overlap_neither_is_moved() -> None:
    both = {"overlap": False, "overlap_gather": True, "overlap_reduce": True}
    events = noted(small_config(dp=2, steps=STEPS, parallel=both))
    assert not any(places(events, ("begin", "dp_reduce_scatter"), "backward"))
    waits = [event for event in events if event[1] == "dp_all_gather"]
    assert waits[::2] == [("begin", "dp_all_gather")] * (len(waits) // 2)
    assert waits[1::2] == [("wait", "dp_all_gather")] * (len(waits) // 2)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_neither_switch_changes_a_bit(zero: int) -> None:
    layout: dict[str, Any] = {"pp": 2, "dp": 2, "chunks": 2, "steps": STEPS}
    expected = run_config(small_config(**layout, parallel={"zero": zero}))
    for gather, reduce in SWITCHES[:-1]:
        switches = {"zero": zero, "overlap_gather": gather, "overlap_reduce": reduce}
        for result, plain in zip(run_config(small_config(**layout, parallel=switches)), expected, strict=True):
            assert (result.losses, result.grad_norms, result.traffic) == (plain.losses, plain.grad_norms, plain.traffic)
