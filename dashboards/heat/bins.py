"""Heatmaps of more cells than a screen has pixels: each bin of ranks and steps keeps its hottest cell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MOST_CELLS = 190_000
"""Cells that are sent as they are: 3 MB in four planes of float32."""

BIN_ROWS, BIN_COLUMNS = 440, 256
"""Beyond, at least so many rows and columns of bins: about what the page has pixels for, and 2.7 MB in six planes."""

IntArray = npt.NDArray[np.int64]


def bin_size(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of cells in a bin; (1, 1) where all cells are sent."""
    if rows * columns <= MOST_CELLS:
        return 1, 1
    most = BIN_ROWS * BIN_COLUMNS
    wide = -(-columns // max(BIN_COLUMNS, most // rows))
    return -(-rows // max(BIN_ROWS, most // -(-columns // wide))), wide


def few_cells() -> int:
    """Cells of a window that are sent as they are with half of the window on all its sides, which is four times it."""
    return MOST_CELLS // 4


def hottest(shown: npt.NDArray[np.float64], size: tuple[int, int]) -> tuple[IntArray, IntArray]:
    """Row and column of the cell with the largest value in each bin, both [bin rows, bin columns]; -1: none has one.

    ``shown`` [R, S] has NaN where nothing was measured; the last bins of a side may be smaller than ``size``.
    """
    high, wide = size
    rows, columns = (-(-length // each) for length, each in zip(shown.shape, size, strict=True))
    padded = np.full((rows * high, columns * wide), -np.inf)
    padded[: shown.shape[0], : shown.shape[1]] = np.where(np.isnan(shown), -np.inf, shown)
    bins = padded.reshape(rows, high, columns, wide).transpose(0, 2, 1, 3).reshape(rows, columns, high * wide)
    best = bins.argmax(axis=2)
    is_known = np.take_along_axis(bins, best[..., None], axis=2)[..., 0] > -np.inf
    row = np.arange(rows)[:, None] * high + best // wide
    column = np.arange(columns)[None, :] * wide + best % wide
    return np.where(is_known, row, -1), np.where(is_known, column, -1)
