"""Noise of durations: ratios to the usual, drawn per rank, per rank and step, and per span from measured quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...profiler.errors import MegascopeError
from .noise_fit import FEW_LEVELS, LEVELS, NoiseTable, fit_noise
from .noise_tables import BUILTIN

DRAWS = 1 << 16
"""Different values that can be drawn from one distribution."""


class NoiseSource(Protocol):
    """Where ratios come from. Kinds: forward, backward, optimizer, p2p, collective.

    Levels: rank (kept by a rank for the whole job), rank_step (kept for all its spans of one kind in a step), span.
    """

    @property
    def name(self) -> str:
        """What the run's configuration calls it."""

    def values(self, kind: str, level: str) -> npt.NDArray[np.float32] | None:
        """`DRAWS` equally likely ratios, ascending; None for exactly 1."""


@dataclass(frozen=True, slots=True)
class Silence:
    """No noise: every duration is its cost."""

    name: str = "none"

    def values(self, kind: str, level: str) -> npt.NDArray[np.float32] | None:
        """None: exactly 1."""
        return None


@dataclass(frozen=True, slots=True)
class MeasuredNoise:
    """Quantile tables, with straight lines between the quantiles."""

    tables: Mapping[str, NoiseTable] = field(default_factory=lambda: BUILTIN)
    name: str = "builtin"
    _values: dict[tuple[str, str], npt.NDArray[np.float32]] = field(default_factory=dict, compare=False, repr=False)

    def values(self, kind: str, level: str) -> npt.NDArray[np.float32] | None:
        """The quantile function at the middles of `DRAWS` equal intervals."""
        quantiles = getattr(self.tables[kind], level) if kind in self.tables else ()
        if not quantiles:
            return None
        if (kind, level) not in self._values:
            middle = (np.arange(DRAWS) + 0.5) / DRAWS
            levels = FEW_LEVELS if level == "rank" else LEVELS
            self._values[kind, level] = np.interp(middle, levels, quantiles).astype(np.float32)
        return self._values[kind, level]


def load_noise(choice: str) -> NoiseSource:
    """``none``, ``builtin``, or the path of a what-if trace in Parquet whose residuals are to be drawn from.

    Raises MegascopeError for a file that cannot be read or is no such trace.
    """
    if choice == "none":
        return Silence()
    if choice == "builtin":
        return MeasuredNoise()
    path = Path(choice)
    if not path.is_file():
        raise MegascopeError(f"There is no noise file {path}: give none, builtin, or the path of a what-if trace.")
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise MegascopeError(f"The noise file {path} cannot be read ({error}): give a Parquet file.") from error
    return MeasuredNoise(fit_noise([table]), path.name)
