"""Where pieces of a tensor lie that one layout cut up and another wants cut otherwise: pure geometry, no files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[Any]
"""Numbers that are moved and never looked at: unsigned integers of their width."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A tensor as rows and columns, so that its part ``index`` of ``count`` is a block of whole columns.

    With dimensions S, of which the one numbered d is cut, there are S[0] * ... * S[d - 1] rows of S[d] * ... columns.
    ``dimension`` None is a tensor that is not cut: one row.
    """

    shape: tuple[int, ...]
    dimension: int | None

    @property
    def rows(self) -> int:
        """Rows of the tensor, and of each of its parts."""
        return 1 if self.dimension is None else math.prod(self.shape[: self.dimension])

    @property
    def columns(self) -> int:
        """Columns of the whole tensor."""
        return math.prod(self.shape) // max(1, self.rows)


@dataclass(frozen=True, slots=True)
class Span:
    """Elements ``offset`` to ``offset + length`` of a flattened part, number ``index`` of ``count`` equal ones."""

    grid: Grid
    index: int
    count: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Rectangle:
    """Whole rows of a span, or part of one, in the tensor's rows and columns; ``place`` is its begin in the span."""

    row: int
    end_row: int
    column: int
    end_column: int
    place: int


def whole(grid: Grid) -> Span:
    """All of a tensor, uncut."""
    return Span(grid, 0, 1, 0, math.prod(grid.shape))


def copy_overlap(source: Span, data: Bits, target: Span, out: Bits, is_filled: npt.NDArray[np.bool_]) -> None:
    """Copy to ``out``, [target.length], what ``data``, [source.length], has of it, and mark it in ``is_filled``.

    Raises ValueError where the two are not cut from a tensor of the same shape along the same dimension.
    """
    if source.grid != target.grid:
        raise ValueError(f"{source.grid.shape} along {source.grid.dimension} is not {target.grid.shape}")
    from_width, to_width = (span.grid.columns // span.count for span in (source, target))
    for one in _rectangles(source):
        for other in _rectangles(target):
            row, end_row = max(one.row, other.row), min(one.end_row, other.end_row)
            column, end_column = max(one.column, other.column), min(one.end_column, other.end_column)
            if row >= end_row or column >= end_column:
                continue
            shape = (end_row - row, end_column - column)
            taken = _view(data, one, row, column, shape, from_width)
            _view(out, other, row, column, shape, to_width)[...] = taken
            _view(is_filled, other, row, column, shape, to_width)[...] = True


def overlaps(source: Span, target: Span) -> bool:
    """Whether two spans of one tensor have elements in common."""
    return any(
        max(one.row, other.row) < min(one.end_row, other.end_row)
        and max(one.column, other.column) < min(one.end_column, other.end_column)
        for one in _rectangles(source)
        for other in _rectangles(target)
    )


def _view(
    flat: npt.NDArray[Any], corner: _Rectangle, row: int, column: int, shape: tuple[int, int], width: int
) -> npt.NDArray[Any]:
    """The rectangle that begins at a row and a column of the tensor, in a span's flat array."""
    begin = corner.place + (row - corner.row) * width + (column - corner.column)
    last = begin + (shape[0] - 1) * width + shape[1]
    assert 0 <= begin < last <= len(flat)
    strides = (width * flat.itemsize, flat.itemsize)
    return np.lib.stride_tricks.as_strided(flat[begin:last], shape, strides)


def _rectangles(span: Span) -> list[_Rectangle]:
    """A span's end of a first row, its whole rows, and its begin of a last row, as far as there are such."""
    width = span.grid.columns // span.count
    left = span.index * width
    found, place, end = [], span.offset, span.offset + span.length
    while place < end:
        row, column = divmod(place, width)
        rows = (end - place) // width if column == 0 else 0
        size = rows * width if rows else min(width - column, end - place)
        right = left + (width if rows else column + size)
        found.append(_Rectangle(row, row + max(1, rows), left + column, right, place - span.offset))
        place += size
    return found
