"""Where ranks stand in space: any number of axes onto x, y and z."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FOLD_GAP = 1.0
"""Free places between the blocks that an axis beyond the third is folded into."""

Point = tuple[float, float, float]


def place_ranks(axes: Sequence[str], coordinates: Mapping[int, Mapping[str, int | None]]) -> dict[int, Point]:
    """Point of each rank. ``axes`` are the mesh's, the outermost first; ``coordinates`` maps rank -> axis -> index.

    The three innermost axes longer than one are x, y and z (the innermost is x); further ones are folded onto them
    in the same order, as blocks with a gap. A rank that lacks a coordinate stands in a row of its own below the
    mesh, so that it is seen. No two ranks with different coordinates share a point.
    """
    sizes = {
        axis: 1 + max((index for place in coordinates.values() if (index := place.get(axis)) is not None), default=-1)
        for axis in axes
    }
    used = [axis for axis in reversed(axes) if sizes[axis] > 1]
    strides = _strides(used, sizes)
    points: dict[int, Point] = {}
    unplaced = 0
    for rank in sorted(coordinates):
        place = coordinates[rank]
        if any(place.get(axis) is None for axis in used) or (not used and len(coordinates) > 1):
            points[rank] = (float(unplaced), -2.0, 0.0)
            unplaced += 1
            continue
        point = [0.0, 0.0, 0.0]
        for depth, axis in enumerate(used):
            point[depth % 3] += strides[axis] * (place[axis] or 0)
        points[rank] = (point[0], point[1], point[2])
    return points


def _strides(used: Sequence[str], sizes: Mapping[str, int]) -> dict[str, float]:
    """Distance between neighbours on each axis: one, or a whole block of what is folded beneath it."""
    strides: dict[str, float] = {}
    for depth, axis in enumerate(used):
        if depth < 3:
            strides[axis] = 1.0
        else:
            beneath = used[depth - 3]
            strides[axis] = strides[beneath] * sizes[beneath] + FOLD_GAP
    return strides


def axis_of_dimension(axes: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, str, str]:
    """Titles of x, y and z: the axes that run along them, folded ones joined by a multiplication sign."""
    used = [axis for axis in reversed(axes) if sizes.get(axis, 1) > 1]
    titles = [" × ".join(used[dimension::3][::-1]) for dimension in range(3)]
    return titles[0], titles[1], titles[2]
