"""How much memory a cached result holds, near enough to bound a cache by it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa

_SAMPLE = 64
"""Of a long list the first so many items stand for all."""


def size_bytes(value: Any) -> int:
    """Bytes of arrays, tables and texts, through dataclasses, mappings and sequences; an estimate for long ones."""
    if isinstance(value, np.ndarray | pa.Table | pa.Array | pa.ChunkedArray):
        return int(value.nbytes)
    own = sys.getsizeof(value, 64)
    if is_dataclass(value) and not isinstance(value, type):
        return own + sum(size_bytes(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Mapping):
        return own + _of_many([*value.keys()]) + _of_many([*value.values()])
    if isinstance(value, list | tuple | set | frozenset):
        return own + _of_many(list(value))
    return own


def _of_many(values: list[Any]) -> int:
    # Few are counted one by one: of a handful of arrays the first tells nothing about the others.
    shown = values[:_SAMPLE]
    return sum(size_bytes(each) for each in shown) * len(values) // max(1, len(shown))
