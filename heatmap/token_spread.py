"""How unequally many tokens the ranks of a picture had: its times are as they were, whatever the tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..collectors.reading.store import Attempt, Store
from .matrix import Matrix
from .peers import FloatArray, IntArray, column_median, row_median
from .rank_tokens import ALIKE, load_told


@dataclass(frozen=True, slots=True)
class TokenSpread:
    """Tokens of ranks [R] over the median of those that do the same work, in the columns [C] of a picture.

    ``beside`` [R, C]: NaN where a rank has not told its tokens. ``column`` is what a column stands for, in a word.
    """

    ranks: IntArray
    beside: FloatArray
    column: str

    def said(self) -> str:
        """The range in a sentence, of a rank's median column; and of single columns where it is wider."""
        medians, known = row_median(self.beside), self.beside[np.isfinite(self.beside)]
        least, most = int(np.nanargmin(medians)), int(np.nanargmax(medians))
        low, high = float(known.min()), float(known.max())
        text = (
            f"Ranks had x{medians[least]:.2f} (rank {self.ranks[least]}) to x{medians[most]:.2f} (rank "
            f"{self.ranks[most]}) of their peers' tokens in the median {self.column}"
        )
        if not _alike(low, medians[least]) or not _alike(high, medians[most]):
            text += f" (x{low:.2f} to x{high:.2f} in single {self.column}s)"
        return (
            f"{text}: colours and tables are times as they are, not per token. The verdict divides the tokens out, or "
            f"says why it does not."
        )


def _alike(one: float, other: float) -> bool:
    return abs(math.log(one / other)) <= math.log1p(ALIKE)


def load_spread(store: Store, attempt: Attempt, matrix: Matrix, roles: IntArray) -> TokenSpread | None:
    """Tokens beside the peers' in a picture's columns; None where nobody tells them, or all have equally many.

    ``roles`` [R]: ranks of the same role do the same work, -1 for those of which it is not known.
    """
    each = load_told(store, attempt, matrix.ranks, matrix.steps, matrix.step_width)
    if each is None:
        return None
    beside = np.full(each.shape, np.nan)
    for role in np.unique(roles[roles >= 0]):
        here = roles == role
        beside[here] = each[here] / column_median(each[here])
    known = np.abs(np.log(beside[np.isfinite(beside)]))
    if not known.max(initial=0.0) > math.log1p(ALIKE):
        return None
    return TokenSpread(matrix.ranks, beside, "step" if matrix.step_width == 1 else "window")
