"""From differences between pairs of hosts to one offset and drift a host, against the reference host."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .fit import Lines
from .pairs import FloatArray, IntArray

REFERENCE = 0
OUTLIER_UNCERTAINTIES = 3.0
"""A pair that is off by so many of its uncertainties loses weight."""

ROUNDS = 3
ITERATIONS = 400


@dataclass(frozen=True, slots=True)
class HostLines:
    """Offset of every host, [H], to be added to its times, at t after t0: value_ns + slope * t. NaN: not alignable.

    ``parent`` and ``edge`` are the tree over which uncertainty adds up: the next host towards the reference, and the
    pair of hosts (index in the lines) that leads there; -1 at the reference and where there is no way.
    """

    value_ns: FloatArray
    slope: FloatArray
    strain_ns: FloatArray
    parent: IntArray
    edge: IntArray
    order: IntArray

    def uncertainty_ns(self, edge_uncertainty_ns: FloatArray) -> FloatArray:
        """Of each host [H], from that of each pair [E]: biases may all point one way, so they add up on the way."""
        total = np.full(len(self.parent), np.nan)
        total[REFERENCE] = 0.0
        for host in self.order[1:]:
            total[host] = total[self.parent[host]] + edge_uncertainty_ns[self.edge[host]]
        summed: FloatArray = total + self.strain_ns
        return summed


def solve_hosts(lines: Lines, hosts: int, at_ns: float) -> HostLines:
    """Weighted least squares over all pairs, as corrections to the tree of least uncertainty from the reference.

    Pairs that contradict the others lose weight (`OUTLIER_UNCERTAINTIES`). Hosts without a way to the reference
    are NaN. ``at_ns`` is the moment at which the pairs' uncertainties count.
    """
    uncertainty = np.maximum(lines.uncertainty_ns(at_ns), 1.0)
    parent, edge, order = _tree(lines, hosts, uncertainty)
    value, slope = np.full(hosts, np.nan), np.full(hosts, np.nan)
    value[REFERENCE] = slope[REFERENCE] = 0.0
    whole = np.zeros(hosts, np.int64)
    for host in order[1:]:
        up, at = parent[host], edge[host]
        sign = 1 if lines.first[at] == host else -1
        whole[host] = whole[up] + sign * lines.level_ns[at]
        value[host] = value[up] + sign * lines.value_ns[at]
        slope[host] = slope[up] + sign * lines.slope[at]
    reached = np.isfinite(value)
    usable = reached[lines.first] & reached[lines.second]
    one, other = lines.first[usable], lines.second[usable]
    missed = (lines.level_ns - whole[lines.first] + whole[lines.second])[usable].astype(np.float64)
    missed += lines.value_ns[usable] - value[one] + value[other]
    missed_slope = lines.slope[usable] - slope[one] + slope[other]
    weight = 1.0 / uncertainty[usable] ** 2
    correction = _least_squares(one, other, missed, weight, hosts)
    for _ in range(ROUNDS - 1):
        off = np.abs(missed - correction[one] + correction[other]) / uncertainty[usable]
        reweighted = weight * np.minimum(1.0, OUTLIER_UNCERTAINTIES / np.maximum(off, OUTLIER_UNCERTAINTIES)) ** 2
        correction = _least_squares(one, other, missed, reweighted, hosts)
    tilt = _least_squares(one, other, missed_slope * 1e9, weight, hosts) * 1e-9
    return HostLines(whole + value + correction, slope + tilt, np.abs(correction), parent, edge, order)


def _tree(lines: Lines, hosts: int, uncertainty_ns: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
    """Parents, edges, and hosts from the reference on: each by its way of least total uncertainty (Dijkstra)."""
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(hosts)]
    for at, (one, other) in enumerate(zip(lines.first.tolist(), lines.second.tolist(), strict=True)):
        pairs[one].append((other, at))
        pairs[other].append((one, at))
    parent, edge = np.full(hosts, -1, np.int64), np.full(hosts, -1, np.int64)
    done: npt.NDArray[np.bool_] = np.zeros(hosts, bool)
    order = []
    queue = [(0.0, REFERENCE, -1, -1)]
    while queue:
        far, host, up, at = heapq.heappop(queue)
        if done[host]:
            continue
        done[host], parent[host], edge[host] = True, up, at
        order.append(host)
        for other, which in pairs[host]:
            if not done[other]:
                heapq.heappush(queue, (far + float(uncertainty_ns[which]), other, host, which))
    return parent, edge, np.array(order, np.int64)


def _least_squares(
    one: IntArray, other: IntArray, difference: FloatArray, weight: FloatArray, hosts: int
) -> FloatArray:
    """x [H] with x[one] - x[other] = difference as well as the weights allow, and x = 0 at the reference.

    Conjugate gradients on the graph's Laplacian, preconditioned by its diagonal: memory is that of the pairs.
    """

    def spread(flow: FloatArray) -> FloatArray:
        out: FloatArray = (np.bincount(one, flow, hosts) - np.bincount(other, flow, hosts)).astype(np.float64)
        out[REFERENCE] = 0.0
        return out

    x = np.zeros(hosts)
    if not len(one):
        return x
    diagonal = np.bincount(one, weight, hosts) + np.bincount(other, weight, hosts)
    scale = np.where(diagonal > 0, 1.0 / np.where(diagonal > 0, diagonal, 1.0), 0.0)
    left = spread(weight * difference)
    towards = better = scale * left
    power = float(left @ better)
    target = 1e-18 * max(power, 1e-300)
    for _ in range(ITERATIONS):
        if power <= target:
            break
        image = spread(weight * (towards[one] - towards[other]))
        stride = power / float(towards @ image)
        x = x + stride * towards
        left = left - stride * image
        better = scale * left
        power, before = float(left @ better), power
        towards = better + (power / before) * towards
    return x
