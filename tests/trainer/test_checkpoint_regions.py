"""Whatever cut a tensor up, and however it is wanted: every element comes to its place, and what is missing shows."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.trainer.checkpoints.regions import Grid, Span, copy_overlap, overlaps, whole


def part_of(tensor: np.ndarray[Any, Any], span: Span) -> np.ndarray[Any, Any]:
    """What a span holds, by numpy's own split."""
    part = tensor
    if span.grid.dimension is not None:
        part = np.split(tensor, span.count, axis=span.grid.dimension)[span.index]
    return part.flatten()[span.offset : span.offset + span.length].copy()


@st.composite
def tensors(draw: st.DrawFn) -> Grid:
    rank = draw(st.integers(1, 3))
    dimension = draw(st.one_of(st.none(), st.integers(0, rank - 1)))
    return Grid(tuple(draw(st.integers(1, 3)) * (12 if axis == dimension else 1) for axis in range(rank)), dimension)


@st.composite
def cuttings(draw: st.DrawFn, grid: Grid) -> list[Span]:
    """A tensor in equal parts, each cut at random places."""
    count = 1 if grid.dimension is None else draw(st.sampled_from([1, 2, 3, 4, 6]))
    length = math.prod(grid.shape) // count
    spans = []
    for index in range(count):
        places = draw(st.lists(st.integers(0, length), max_size=3))
        borders = sorted({0, length, *places})
        spans += [Span(grid, index, count, begin, end - begin) for begin, end in pairwise(borders)]
    return spans


@given(data=st.data())
def test_any_cutting_becomes_any_other(data: st.DataObject) -> None:
    grid = data.draw(tensors())
    sources, targets = data.draw(cuttings(grid)), data.draw(cuttings(grid))
    tensor = np.arange(math.prod(grid.shape), dtype=np.uint32).reshape(grid.shape)
    for target in targets:
        out, is_filled = np.zeros(target.length, np.uint32), np.zeros(target.length, bool)
        for source in sources:
            before = is_filled.sum()
            copy_overlap(source, part_of(tensor, source), target, out, is_filled)
            assert overlaps(source, target) == (is_filled.sum() > before)
        assert is_filled.all()
        np.testing.assert_array_equal(out, part_of(tensor, target))


@given(data=st.data())
def test_what_no_source_has_is_not_marked(data: st.DataObject) -> None:
    grid = data.draw(tensors())
    sources = data.draw(cuttings(grid))
    lost = data.draw(st.sampled_from(sources))
    size = math.prod(grid.shape)
    out, is_filled = np.zeros(size, np.uint32), np.zeros(size, bool)
    for source in sources:
        if source is not lost:
            copy_overlap(source, np.zeros(source.length, np.uint32), whole(grid), out, is_filled)
    assert (~is_filled).sum() == lost.length


def test_two_tensors_are_not_mixed_up() -> None:
    one, other = whole(Grid((4, 6), 1)), whole(Grid((6, 4), 1))
    with pytest.raises(ValueError, match="is not"):
        copy_overlap(one, np.zeros(24, np.uint32), other, np.zeros(24, np.uint32), np.zeros(24, bool))
