"""The rendezvous as an operation: who has come to it and who has not can be told, as of any collective."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from .box.ring_writer import ABORTED
from .patching import Undo, replace
from .recorder import AnyRecorder
from .vocabulary import SegmentKind

RENDEZVOUS = "rendezvous"
"""Name of the segment, of the span around it, and kind of its group."""


_failed: MutableMapping[AnyRecorder, Any] = weakref.WeakKeyDictionary()
"""The operation of each recorder's last rendezvous that failed, which is in flight until the next one begins."""


@contextmanager
def in_rendezvous(recorder: AnyRecorder, world_size: int) -> Iterator[None]:
    """Within, this rank is in the one operation that all ranks must come to before there is any process group.

    Where it fails, the operation stays in flight, for whoever reads the black box, until it is tried again: then the
    one that failed is `aborted`.
    """
    before = _failed.pop(recorder, None)
    if before is not None:
        recorder.abandon(before, status=ABORTED)
    with recorder.span(recorder.segment(RENDEZVOUS, SegmentKind.INIT)):
        group = recorder.group(RENDEZVOUS, range(world_size))
        span: Any = recorder.begin_async(
            recorder.segment(RENDEZVOUS, SegmentKind.COLLECTIVE, "world"), group=group, sequence=1
        )
        recorder.wait_begin(span)
        try:
            yield
        except BaseException:
            if recorder.enabled:
                _failed[recorder] = span
            raise
        recorder.end_async(span)
        recorder.wait_end(span)


def install_rendezvous(recorder: AnyRecorder) -> Undo | None:
    """Record `torch.distributed.init_process_group`, by whichever of its two names it is called.

    None while torch.distributed is not loaded; nothing to do where the process group is there already.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    if distributed.is_initialized():
        return lambda: None
    original = distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        world_size = _world_size(kwargs.get("world_size", args[3] if len(args) > 3 else None))
        if world_size is None or distributed.is_initialized():
            return original(*args, **kwargs)
        with in_rendezvous(recorder, world_size):
            return original(*args, **kwargs)

    owners = (distributed, distributed.distributed_c10d)
    undone = [replace(owner, "init_process_group", init_process_group) for owner in owners]

    def undo() -> None:
        for each in undone:
            each()

    return undo


def _world_size(given: Any) -> int | None:
    """How many ranks are to come: as given, else as the launcher says; None where nobody says."""
    if isinstance(given, int) and given > 0:
        return given
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None
