"""Peers: which ranks do the same work, and what the others of a rank's peers take for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..profiler.vocabulary import stage_axis

STAGE_AXIS = "pp"
"""The axis whose index is the stage: ranks of different stages hold different layers and are never compared.

Other stacks have other names for it: `Placement.stage_axis`."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where ranks run and stand: ``ranks`` [R] ascending, host names [R], per axis coordinates [R] (-1 unknown)."""

    ranks: IntArray
    hosts: tuple[str, ...]
    coordinates: Mapping[str, IntArray]

    @classmethod
    def from_table(cls, table: pa.Table, axes: Sequence[str]) -> Placement:
        """From rows of the store's table ``ranks``; a rank that has several rows keeps its last one."""
        backwards = table["rank"].to_numpy().astype(np.int64)[::-1]
        ranks, last = np.unique(backwards, return_index=True)
        rows = table.take(pa.array(len(backwards) - 1 - last))
        return cls(
            ranks,
            tuple(str(host) for host in rows["host"].to_pylist()),
            {axis: rows[axis].fill_null(-1).to_numpy().astype(np.int64) for axis in axes if axis in table.column_names},
        )

    def at(self, ranks: IntArray) -> IntArray:
        """Position of each given rank in this placement; -1 for a rank that it does not know."""
        if not len(self.ranks):
            return np.full(len(ranks), -1, np.int64)
        found = np.minimum(np.searchsorted(self.ranks, ranks), len(self.ranks) - 1)
        return np.where(self.ranks[found] == ranks, found, -1)

    def host_of(self, rank: int) -> str | None:
        """Host of a rank, if it is known."""
        position = int(self.at(np.array([rank], np.int64))[0])
        return None if position < 0 else self.hosts[position]

    def coordinate(self, axis: str, ranks: IntArray) -> IntArray:
        """Index of each given rank on an axis, [R]; -1 where it is not known."""
        values = self.coordinates.get(axis)
        position = self.at(ranks)
        if values is None or not len(values):
            return np.full(len(ranks), -1, np.int64)
        return np.where(position >= 0, values[position], -1)

    def roles(self, ranks: IntArray) -> IntArray:
        """Number of each rank's peer group, [R]: its stage, 0 for all where the mesh has no pipeline axis.

        -1 where the mesh has one but the rank's stage is not known: such a rank has no peers.
        """
        axis = self.stage_axis
        return np.zeros(len(ranks), np.int64) if axis is None else self.coordinate(axis, ranks)

    @property
    def stage_axis(self) -> str | None:
        """The axis whose index is the stage, by whichever of its usual names; None where the mesh has none."""
        return stage_axis(self.coordinates)


def refine(roles: IntArray, key: IntArray) -> IntArray:
    """Split every peer group by a second key, [R]; a rank without a role stays without one."""
    _, numbers = np.unique(np.stack([roles, key]), axis=1, return_inverse=True)
    return np.where(roles < 0, -1, numbers.reshape(-1))


def others_median(values: FloatArray) -> FloatArray:
    """Median of all other rows, per column: [R, S] -> [R, S]. NaN is missing; a row alone in its column gets NaN.

    A column is sorted once; leaving one element out only shifts the middle of what remains. Whoever is not larger than
    what stands in the middle stood before it, or is its equal.
    """
    columns = np.ascontiguousarray(values.T)
    ordered = np.sort(columns, axis=1)  # NaN goes last
    known = np.isfinite(columns)
    counts = known.sum(axis=1, keepdims=True)
    result = np.zeros_like(columns)
    for missing in (0, 1):  # what is left out is one of the known values, or it is missing itself
        remaining = counts - 1 + missing
        rows = known if not missing else ~known
        if not rows.any():
            continue
        middles = np.zeros_like(columns)
        for middle in ((remaining - 1) // 2, remaining // 2):
            here = np.take_along_axis(ordered, np.clip(middle, 0, columns.shape[1] - 1), axis=1)
            after = np.take_along_axis(ordered, np.clip(middle + 1, 0, columns.shape[1] - 1), axis=1)
            middles += 0.5 * np.where(known & (columns <= here), after, here)
        np.copyto(result, np.where(remaining > 0, middles, np.nan), where=rows)
    return result.T


def peers_median(values: FloatArray, roles: IntArray, excluded: npt.NDArray[np.bool_] | None = None) -> FloatArray:
    """Median of each rank's peers, itself left out: values [R, S], roles [R] -> [R, S], NaN where it has no peers.

    Rows that are ``excluded`` [R] are compared with the others but never stand as peers.
    """
    result = np.full_like(values, np.nan)
    excluded = np.zeros(len(roles), bool) if excluded is None else excluded
    for role in np.unique(roles[roles >= 0]):
        fit = np.flatnonzero((roles == role) & ~excluded)
        out = np.flatnonzero((roles == role) & excluded)
        if len(fit):
            result[fit] = others_median(values[fit])
        if len(fit) and len(out):
            result[out] = column_median(values[fit])
    return result


def column_median(values: FloatArray) -> FloatArray:
    """Median over the rows, [R, S] -> [S]; NaN where a column has no value."""
    return row_median(values.T)


def row_median(values: FloatArray) -> FloatArray:
    """Median over the last axis, [R, S] -> [R]; NaN where a row has no value."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    ordered = np.sort(values, axis=-1)  # NaN goes last
    counts = np.isfinite(values).sum(axis=-1, keepdims=True)
    low, high = (np.take_along_axis(ordered, np.maximum(at, 0), axis=-1) for at in ((counts - 1) // 2, counts // 2))
    middle: FloatArray = np.where(counts > 0, 0.5 * low + 0.5 * high, np.nan)[..., 0]
    return middle


def has_values(values: FloatArray) -> npt.NDArray[np.bool_]:
    """Which rows have any value, [R, S] -> [R]."""
    return np.asarray(np.isfinite(values).any(axis=1), np.bool_)


def peer_counts(roles: IntArray, usable: npt.NDArray[np.bool_]) -> IntArray:
    """How many peers each rank has, itself left out: roles [R], rows with data [R] -> [R]."""
    counts = np.zeros(len(roles), np.int64)
    for role in np.unique(roles[roles >= 0]):
        here = (roles == role) & usable
        counts[here] = here.sum() - 1
    return counts
