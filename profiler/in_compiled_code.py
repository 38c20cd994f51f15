"""What code that torch compiles calls in the stead of the public API: nothing can be timed inside of a graph."""

from __future__ import annotations

from typing import Any

from .box.hot_path import NO_SPAN
from .vocabulary import SegmentKind


class NoSegment:
    """What compiled code gets for a segment."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def no_segment(
    name: str,
    *,
    kind: SegmentKind | str = SegmentKind.COMPUTE,
    microbatch: int | None = None,
    chunk: int | None = None,
) -> NoSegment:
    """Stands for `session.segment`."""
    return NoSegment()


def no_begin(name: str, *, kind: SegmentKind | str = SegmentKind.COMPUTE, microbatch: int | None = None) -> Any:
    """Stands for `session.begin`."""
    return NO_SPAN


def no_end(span: Any) -> None:
    """Stands for `session.end`."""
