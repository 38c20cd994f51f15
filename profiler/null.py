"""The recorder that is off: the same methods, doing nothing, at next to no cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class _NullSpan:
    __slots__ = ()

    def __enter__(self) -> _NullSpan:
        return self

    def __exit__(self, *_: object) -> None:
        return None


_SPAN = _NullSpan()


class NullRecorder:
    """Stands in for `Recorder` where recording is off."""

    enabled = False
    work_clocks: Mapping[int, Any] = {}

    def segment(self, *_: Any, **__: Any) -> int:
        """Index 0 for every segment."""
        return 0

    def group(self, *_: Any, **__: Any) -> int:
        """Index 0 for every group."""
        return 0

    def span(self, *_: Any, **__: Any) -> _NullSpan:
        """A context manager that does nothing."""
        return _SPAN

    def begin(self, *_: Any, **__: Any) -> _NullSpan:
        """Return the one span that is never recorded."""
        return _SPAN

    begin_async = begin

    def end(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    end_async = wait_begin = wait_end = wait_over = abandon = end
    step = end_step = step_metrics = topology = configuration = schedule = fault = exception = close = end

    def innermost(self) -> None:
        """No span is ever open."""
