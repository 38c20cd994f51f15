"""Spans for collectives and p2p operations of code that uses torch.distributed directly: on and off again."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ..null import NullRecorder
from ..patching import Undo, replace
from ..recorder import Recorder
from ..topology import Topology
from .functional import install_functional
from .groups import Groups
from .hooks import has_hooks, install_hooks
from .kernels import KEY, install_kernels
from .spans import OperationSpans


def install_collectives(recorder: Recorder | NullRecorder, topology: Topology | None) -> Undo | None:
    """Record every c10d operation of this process; what is returned takes it all off again.

    None while torch.distributed is not loaded. Operations are seen where torch dispatches them, so that it does not
    matter who issues them: a public function, DDP's reducer, FSDP, compiled code. torch's own hooks are used where it
    has them, and the wrappers of its operations where it has not, or where the hooks turn out to be others.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    import torch  # noqa: PLC0415  (loaded already)
    from torch._C import _distributed_c10d as c10d  # noqa: PLC0415

    cuda = torch.cuda if torch.cuda.is_available() else None
    spans = OperationSpans(recorder, Groups(recorder, topology), c10d.Work.wait, cuda)
    undone = _wrap_methods(spans, c10d)
    if has_hooks(c10d.ProcessGroup):
        functional = install_functional(spans, KEY)

        def fall_back() -> None:
            functional()  # the wrappers bring their own
            undone.append(install_kernels(spans, cuda))

        undone += [functional, install_hooks(spans, distributed.distributed_c10d, cuda, fall_back)]
    else:
        undone.append(install_kernels(spans, cuda))

    def uninstall() -> None:
        for step in undone:
            step()
        spans.close()

    return uninstall


def _wrap_methods(spans: OperationSpans, c10d: Any) -> list[Undo]:
    """Time the waits in Python, and see which operations are coalesced into one."""
    start, end, wait = c10d.ProcessGroup._start_coalescing, c10d.ProcessGroup._end_coalescing, c10d.Work.wait

    @functools.wraps(wait)
    def timed_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        return spans.wait(work, *args, **kwargs)

    @functools.wraps(start)
    def start_coalescing(group: Any, *args: Any, **kwargs: Any) -> Any:
        spans.start_batch()
        return start(group, *args, **kwargs)

    @functools.wraps(end)
    def end_coalescing(group: Any, *args: Any, **kwargs: Any) -> Any:
        work = None
        try:
            work = end(group, *args, **kwargs)
        finally:
            spans.end_batch(work)
        return work

    return [
        replace(c10d.Work, "wait", timed_wait),
        replace(c10d.ProcessGroup, "_start_coalescing", start_coalescing),
        replace(c10d.ProcessGroup, "_end_coalescing", end_coalescing),
    ]
