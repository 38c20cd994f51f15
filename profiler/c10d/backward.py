"""Waits in C++ that no Python sees: DDP's reducer for its buckets after a backward, a broadcast of its buffers."""

from __future__ import annotations

import sys
from types import FrameType

from .spans import OperationSpans
from .work import OpenWork

_BACKWARD = "_engine_run_backward"
_BROADCASTS = frozenset(
    {"_distributed_broadcast_coalesced", "_sync_params_and_buffers", "_verify_param_shape_across_processes"}
)
"""Functions of torch that call C++ which broadcasts buffers and parameters, and waits for that before it returns."""

_OURS = __name__.rpartition(".")[0]


class Backwards:
    """Operations that the reducer issued, by the backward in which it did."""

    def __init__(self, spans: OperationSpans) -> None:
        self._spans = spans
        self._waiting: dict[int, list[OpenWork]] = {}

    def note(self, entry: OpenWork) -> bool:
        """Time the wait for an operation if the reducer issued it, just now; whether it did.

        The engine runs callbacks in the order in which they were queued, and the reducer queues its own, which waits,
        once it has issued its last bucket: ours comes just before it, and waits in its stead.
        """
        if not _is_called_by_reducer():
            return False
        import torch  # noqa: PLC0415  (only where it is used)

        task = torch._C._current_graph_task_id()
        if task < 0:
            return False
        entries = self._waiting.get(task)
        if entries is None:
            entries = self._waiting[task] = []
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._after(task))
        entries.append(entry)
        self._spans.note_native_wait(entry)
        return True

    def _after(self, task: int) -> None:
        self._spans.wait_for_reducer(self._waiting.pop(task, ()))


def _is_called_by_reducer() -> bool:
    """Whether C++ issues an operation inside a backward: no Python frame stands between, or none is there at all."""
    frame = _caller()
    return frame is None or frame.f_code.co_name == _BACKWARD


def is_native_broadcast() -> bool:
    """Whether C++ issues a broadcast for which it then waits: of DDP's buffers before a forward, of parameters."""
    frame = _caller()
    return frame is not None and frame.f_code.co_name in _BROADCASTS


def _caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame = frame.f_back
    return frame
