"""Timed regions of the trainer's own code: the recorder's spans, with the fault switches inside them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ..profiler.box.box import ABSENT_I16, ABSENT_I32
from ..profiler.null import NullRecorder
from ..profiler.recorder import Recorder
from .faults.segments import KINDS
from .faults.switches import FaultSwitches


class Probe:
    """Opens spans by name. Without faults it hands out the recorder's own."""

    def __init__(self, recorder: Recorder | NullRecorder, switches: FaultSwitches) -> None:
        self.recorder, self._switches = recorder, switches
        self._segments = {name: recorder.segment(name, kind) for name, kind in KINDS.items()}

    def span(self, name: str, microbatch: int = ABSENT_I32, chunk: int = ABSENT_I16) -> AbstractContextManager[Any]:
        """``with probe.span("forward", microbatch=3, chunk=0): ...``"""
        span = self.recorder.span(self._segments[name], microbatch, chunk)
        return _FaultySpan(span, self._switches, name) if self._switches.active else span


class _FaultySpan:
    __slots__ = ("_name", "_span", "_switches")

    def __init__(self, span: AbstractContextManager[Any], switches: FaultSwitches, name: str) -> None:
        self._span, self._switches, self._name = span, switches, name

    def __enter__(self) -> None:
        self._span.__enter__()
        self._switches.enter(self._name)

    def __exit__(self, *error: Any) -> None:
        self._switches.leave()
        self._span.__exit__(*error)
