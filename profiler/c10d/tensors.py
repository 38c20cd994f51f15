"""Tensors as the operations of c10d take them: one, or lists of lists of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def flat(value: Any) -> Iterator[Any]:
    """All tensors in nested lists, in order."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    else:
        yield value


def size_of(value: Any) -> int:
    """Bytes of all tensors."""
    return sum(int(tensor.numel() * tensor.element_size()) for tensor in flat(value))


def is_on_device(value: Any) -> bool:
    """Whether the first tensor lies on CUDA; those of one operation lie together."""
    first = next(flat(value), None)
    return first is not None and bool(first.is_cuda)
