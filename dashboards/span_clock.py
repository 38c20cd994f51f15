"""Moments of many ranks, brought to the reference clock at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..collectors.reading.store import Attempt
from .alignment import clocks_of
from .workbench import Workbench


def aligned_starts(
    bench: Workbench, attempt: Attempt, ranks: npt.NDArray[np.int32], starts_ns: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Moments [N], UTC ns, of ranks [N] by the formula of the view ``events_aligned``.

    Of a host that cannot be aligned, by its own clock.
    """
    clocks = clocks_of(bench, attempt)
    aligned = np.array(starts_ns, np.int64)
    if not len(aligned):
        return aligned
    base_ns = int(aligned.min())
    for rank in np.unique(ranks).tolist():
        if rank in clocks:
            own = np.flatnonzero(ranks == rank)
            offsets = clocks[rank].offsets_ns((aligned[own] - base_ns).astype(np.float64), base_ns)
            aligned[own] += np.rint(offsets).astype(np.int64)
    return aligned
