"""The order of the heatmap's rows: by rank or the worst first, in sections of one host or one index on an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt
from ...heatmap.matrix import Matrix
from ...heatmap.peers import Placement
from ...profiler.errors import UsageError
from ...profiler.vocabulary import stage_axis

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

ORDERS = {"rank": "rank", "worst": "worst first"}
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of one host or of one index on an axis: label, first row, last row."""

    label: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the matrix in the order in which they are shown, and the sections that they fall into (or none)."""

    rows: IntArray
    sections: tuple[Section, ...]


def groups_of(attempt: Attempt) -> dict[str, str]:
    """What rows can be grouped by: value to text; empty for nothing."""
    stages = stage_axis(attempt.layout)
    axes = {axis: f"{axis} (stage)" if axis == stages else f"{axis} index" for axis in attempt.layout}
    return {"": "nothing", "host": "host", **axes}


def plane_of(matrix: Matrix, show: str) -> FloatArray:
    """The plane of a matrix that is shown, [R, S]: ratio, value or z."""
    return planes_of(matrix, np.arange(len(matrix.ranks)))[show]


def over_steps(plane: FloatArray, over: str) -> FloatArray:
    """One number a row, [R, S] -> [R]: the mean of its cells or the largest; NaN where it has none."""
    known = np.isfinite(plane)
    if over == "worst":
        highest = np.where(known, plane, -np.inf).max(axis=1, initial=-np.inf)
        return np.where(known.any(axis=1), highest, np.nan)
    count = known.sum(axis=1)
    total = np.where(known, plane, 0.0).sum(axis=1)
    mean: FloatArray = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return mean


def planes_of(matrix: Matrix, rows: IntArray) -> dict[str, FloatArray]:
    """The planes of some rows in their order, [rows, S]: value, peers, ratio, z."""
    named = {"value": matrix.values, "peers": matrix.peers_median, "ratio": matrix.ratio, "z": matrix.z}
    return {name: plane[rows] for name, plane in named.items()}


def per_rank(planes: Mapping[str, FloatArray], show: str, over: str) -> tuple[dict[str, FloatArray], IntArray]:
    """One number a row of each plane [R], with the worst ratio as ``worst``; and the column of that [R].

    ``over`` is mean, or worst: the step in which the shown plane is highest.
    """
    if over == "worst":
        at = _highest(planes[show])
        numbers = {name: plane[np.arange(len(plane)), at] for name, plane in planes.items()}
    else:
        numbers = {name: over_steps(plane, "mean") for name, plane in planes.items()}
    return numbers | {"worst": over_steps(planes["ratio"], "worst")}, _highest(planes["ratio"])


def _highest(plane: FloatArray) -> IntArray:
    place: IntArray = np.where(np.isfinite(plane), plane, -np.inf).argmax(axis=1)
    return place


def arrange(
    matrix: Matrix, placement: Placement, *, ranks: Sequence[int], order: str, group: str, scores: FloatArray
) -> Rows:
    """Order the rows of the ``ranks`` (all if empty) by rank or, of ``scores`` [R], by the highest; NaN goes last.

    Sections follow the same order: that of their lowest index or rank, or of their highest score. Raises UsageError
    where none of the ranks is there.
    """
    rows = np.arange(len(matrix.ranks))
    if ranks:
        rows = rows[np.isin(matrix.ranks, ranks)]
        if not len(rows):
            raise UsageError(f"None of the ranks {', '.join(map(str, ranks[:8]))} is in this run.")
    score = np.where(np.isfinite(scores[rows]), -scores[rows], np.inf) if order == "worst" else np.zeros(len(rows))
    if not group:
        return Rows(rows[np.lexsort((rows, score))], ())
    keys, texts = _groups(matrix.ranks[rows], placement, group)
    best = np.full(len(texts), np.inf)
    np.minimum.at(best, keys, score)
    order_of = np.lexsort((rows, score, keys, best[keys]))
    starts = np.flatnonzero(np.diff(keys[order_of], prepend=-1))
    ends = np.append(starts[1:], len(rows)) - 1
    sections = (
        Section(f"{group} {texts[keys[order_of[first]]]}", int(first), int(last))
        for first, last in zip(starts, ends, strict=True)
    )
    return Rows(rows[order_of], tuple(sections))


def _groups(ranks: IntArray, placement: Placement, group: str) -> tuple[IntArray, list[str]]:
    """Number of each rank's section, and the sections' names: hosts by their lowest rank, what is unknown last."""
    if group == "host":
        names = [name or UNKNOWN for name in host_names(placement, ranks)]
        first: dict[str, int] = {}
        for name in names:
            first.setdefault(name, len(first) if name != UNKNOWN else len(names))
        texts = sorted(first, key=lambda name: first[name])
        place = {name: at for at, name in enumerate(texts)}
        return np.array([place[name] for name in names], np.int64), texts
    indices = placement.coordinate(group, ranks)
    known = np.where(indices < 0, np.iinfo(np.int64).max, indices)
    found, keys = np.unique(known, return_inverse=True)
    return keys.astype(np.int64), [str(index) if index < np.iinfo(np.int64).max else UNKNOWN for index in found]


def host_names(placement: Placement, ranks: IntArray) -> list[str | None]:
    """Each rank's host; None where it is not known."""
    return [None if at < 0 else placement.hosts[at] for at in placement.at(ranks).tolist()]


def place_texts(placement: Placement, ranks: Sequence[int]) -> list[str]:
    """Each rank's coordinates in words, such as "pp1 dp0 tp1"."""
    wanted = np.array(ranks, np.int64)
    columns = [
        [f"{axis}{index}" if index >= 0 else "" for index in placement.coordinate(axis, wanted).tolist()]
        for axis in placement.coordinates
    ]
    return [" ".join(filter(None, texts)) for texts in zip(*columns, strict=True)] if columns else [""] * len(wanted)
