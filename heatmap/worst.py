"""The worst ranks of a whole job at a glance, from rollups: robust z of every rank among its peers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..collectors.reading.store import Attempt, Store
from ..collectors.rollups.windows import WINDOW_STEPS
from .cells import WORK_KINDS
from .detect import MAD_TO_SIGMA
from .matrix import MIN_SPREAD, load_placement
from .peers import FloatArray, IntArray, row_median
from .window_cells import ranks_of
from .windows import window_range, windows_of_segments

_FEWEST_WINDOWS = 8


def worst_ranks(store: Store, attempt: Attempt, *, limit: int = 20, metric: str = "self") -> pa.Table:
    """Ranks by their largest robust z at any segment of work, over all steps.

    z of a window: (x - median) / (1.4826 MAD) of x = log of the mean time per span, over the ranks of the same stage; a
    spread below 1 % counts as 1 %. Columns: rank, host, segment (where its mean z over the windows is largest), z (that
    mean), worst_z and worst_step (its worst window there, and the window's first step), ratio (to the median rank, in
    the median window), window_steps. Without rollups: no rows.
    """
    found = window_range(store, attempt)
    placement = load_placement(store, attempt)
    ranks = ranks_of(store, attempt, placement)
    if found is None or not len(ranks):
        none = np.zeros(0)
        return _table(np.zeros(0, np.int64), (), none, none, none, none, 0, ())
    length = _length(found[1] - found[0] + WINDOW_STEPS[0])
    first_steps = np.arange(found[0] // length * length, found[1] + 1, length)
    kinds = [str(kind) for kind in WORK_KINDS]
    names, means = windows_of_segments(store, attempt, ranks, first_steps, kinds, metric=metric, window_steps=length)
    logs = np.log(np.where(means > 0, means, np.nan))
    z, excess = _against_peers(logs, placement.roles(ranks))
    score = _mean(z)
    best = np.where(np.isfinite(score), score, -np.inf).argmax(axis=1)
    rows = np.arange(len(ranks))
    order = np.argsort(-np.nan_to_num(score[rows, best], nan=-np.inf), kind="stable")[:limit]
    order = order[np.isfinite(score[order, best[order]])]
    own = z[order, best[order]]
    worst = np.where(np.isfinite(own), own, -np.inf).argmax(axis=1)
    return _table(
        ranks[order],
        tuple(names[at] for at in best[order]),
        score[order, best[order]],
        own[np.arange(len(order)), worst],
        first_steps[worst],
        np.exp(row_median(excess[order, best[order]])),
        length,
        tuple(placement.host_of(int(rank)) for rank in ranks[order]),
    )


def _length(steps: int) -> int:
    """The longest windows of which there are enough to tell a passing trouble from a lasting one."""
    return next((length for length in reversed(WINDOW_STEPS) if steps >= _FEWEST_WINDOWS * length), WINDOW_STEPS[0])


def _against_peers(logs: FloatArray, roles: IntArray) -> tuple[FloatArray, FloatArray]:
    """Robust z and difference to the peers' median of logs [R, K, W], within each role; NaN without a role."""
    z, excess = np.full_like(logs, np.nan), np.full_like(logs, np.nan)
    for role in np.unique(roles[roles >= 0]):
        members = np.flatnonzero(roles == role)
        columns = np.ascontiguousarray(logs[members].reshape(len(members), -1).T)
        away = columns - row_median(columns)[:, None]
        spread = np.fmax(MAD_TO_SIGMA * row_median(np.abs(away)), MIN_SPREAD)
        excess[members] = away.T.reshape(logs[members].shape)
        z[members] = (away / spread[:, None]).T.reshape(logs[members].shape)
    return z, excess


def _mean(z: FloatArray) -> FloatArray:
    """Mean over the windows that were measured, [R, K, W] -> [R, K]; NaN where none was."""
    known = np.isfinite(z)
    count = known.sum(axis=2)
    total = np.where(known, z, 0.0).sum(axis=2)
    mean: FloatArray = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return mean


def _table(
    ranks: IntArray,
    segments: tuple[str, ...],
    z: FloatArray,
    worst_z: FloatArray,
    worst_step: IntArray | FloatArray,
    ratio: FloatArray,
    window_steps: int,
    hosts: tuple[str | None, ...],
) -> pa.Table:
    return pa.table(
        {
            "rank": pa.array(ranks, pa.int64()),
            "host": pa.array(hosts, pa.string()),
            "segment": pa.array(segments, pa.string()),
            "z": pa.array(z, pa.float64()),
            "worst_z": pa.array(worst_z, pa.float64()),
            "worst_step": pa.array(worst_step.astype(np.int64)),
            "ratio": pa.array(ratio, pa.float64()),
            "window_steps": pa.array(np.full(len(ranks), window_steps), pa.int32()),
        }
    )
