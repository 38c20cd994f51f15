"""The most memory that a rank holds at once in the steps after the warm-up, on a CPU and on a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .stopwatch import Stopwatch

FUNCTION = "mallinfo2"
"""glibc 2.33 and later; the one before counts in 32 bits."""


class _Malloc(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _allocator() -> Any:
    try:
        function = getattr(ctypes.CDLL(None), FUNCTION)
    except (AttributeError, OSError):
        return None
    function.restype = _Malloc
    return function


_ALLOCATOR = _allocator()


def held_bytes() -> int | None:
    """Bytes that this process has allocated and not freed, on any thread; None where its C library does not tell."""
    if _ALLOCATOR is None:
        return None
    counts = _ALLOCATOR()
    return int(counts.uordblks + counts.hblkhd)


class HostMemory(Stopwatch):
    """Looks at what is held wherever a span or an operation begins or ends. That takes time: not to be timed.

    torch's allocator on a CPU keeps no count, and its tracer does not see what threads of gloo free.
    """

    def __init__(self) -> None:
        self._before, self._most = held_bytes(), 0
        super().__init__(self._look)

    def most_bytes(self) -> int | None:
        """The most in the steps that are counted, beyond what was held before training was built."""
        return None if self._before is None else self._most - self._before

    def _look(self) -> None:
        self._most = max(self._most, held_bytes() or 0)

    def span(self, segment: int, *_: Any, **__: Any) -> Any:
        """Looked at as it begins and ends."""
        return _Looking(self)

    def begin_async(self, segment: int, **options: Any) -> Any:
        """An operation begins."""
        self.look()
        return super().begin_async(segment, **options)

    def wait_end(self, span: Any) -> None:
        """An operation has been waited for."""
        super().wait_end(span)
        self.look()

    def look(self) -> None:
        """Note what is held, in the steps that are counted."""
        if self.is_counting:
            self._look()


class _Looking:
    def __init__(self, watch: HostMemory) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.look()

    def __exit__(self, *_: object) -> None:
        self._watch.look()


def count_on_device() -> None:
    """The device's own count of the most bytes begins anew."""
    torch.cuda.reset_peak_memory_stats()


def device_bytes() -> int:
    """The most bytes of tensors on the device since `count_on_device`."""
    return int(torch.cuda.max_memory_allocated())
