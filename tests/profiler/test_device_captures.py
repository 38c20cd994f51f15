"""Captures of CUDA graphs hold the device's timer, and torch is as it was once nothing is timed any more."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import megascope
from megascope.profiler.device_clock import CudaTimer
from megascope.profiler.opening import open_recorder, pause_during_captures
from megascope.profiler.recorder import Recorder
from support.fake_cuda import FakeCuda
from support.recording import Recorded, settings


def graphs_of(cuda: FakeCuda) -> Any:
    """A class with the two methods of `torch.cuda.CUDAGraph`."""

    class Graph:
        def capture_begin(self) -> None:
            if cuda.broken:
                raise RuntimeError("no capture")
            cuda.capturing = True

        def capture_end(self) -> None:
            cuda.capturing = False

    return Graph


def methods(graph: Any) -> tuple[Any, Any]:
    return graph.capture_begin, graph.capture_end


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def graph(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The graph class of a torch that uses its device."""
    found = graphs_of(cuda)
    properties = SimpleNamespace(uuid="12345678-0000")
    for name, value in {
        "CUDAGraph": found,
        "is_initialized": lambda: True,
        "get_device_properties": lambda device: properties,
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(cuda, name, value, raising=False)
    monkeypatch.setattr(CudaTimer, "start_thread", lambda self: None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return found


def test_nothing_is_asked_of_events_while_a_graph_is_captured(recorded: Recorded, cuda: FakeCuda) -> None:
    timer = CudaTimer(cuda, recorded.recorder, cuda.host_ns)
    kind = graphs_of(cuda)
    pause_during_captures(kind, timer)
    graph = kind()
    graph.capture_begin()
    asked = cuda.queries
    polling = threading.Thread(target=timer.poll)
    polling.start()
    polling.join(0.1)
    assert polling.is_alive()
    assert cuda.queries == asked
    graph.capture_end()
    polling.join(5)
    assert not polling.is_alive()


def test_a_capture_that_fails_or_began_before_holds_nothing(recorded: Recorded, cuda: FakeCuda) -> None:
    timer = CudaTimer(cuda, recorded.recorder, cuda.host_ns)
    kind = graphs_of(cuda)
    early = kind()
    early.capture_begin()
    undo = pause_during_captures(kind, timer)
    early.capture_end()
    cuda.broken = True
    with pytest.raises(RuntimeError, match="no capture"):
        kind().capture_begin()
    undo()
    polling = threading.Thread(target=timer.poll)
    polling.start()
    polling.join(5)
    assert not polling.is_alive()


@pytest.mark.parametrize("end", ["close", "lost", "forked"])
def test_torch_is_as_it_was_once_the_device_is_not_timed_any_more(tmp_path: Path, graph: Any, end: str) -> None:
    before = methods(graph)
    for turn in range(2):
        recorder = open_recorder(settings(tmp_path / str(turn)))
        assert isinstance(recorder, Recorder)
        assert all(now is not then for now, then in zip(methods(graph), before, strict=True))
        if end == "close":
            recorder.close()
        elif end == "lost":
            recorder.lose_device()
        else:
            recorder.detach()
        assert methods(graph) == before
        recorder.close()


def test_where_nothing_is_automatic_only_the_captures_of_a_timed_device_are_wrapped(tmp_path: Path, graph: Any) -> None:
    before, hook = methods(graph), sys.excepthook
    megascope.init(spool=tmp_path, agent=False, run="r", attempt=0, automatic="none")
    assert methods(graph) != before
    assert sys.excepthook is hook
    megascope.shutdown()
    assert methods(graph) == before
