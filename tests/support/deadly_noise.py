"""Noise that ends the process that draws from it: for what outlives a worker's death."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class DeadlyNoise:
    """A `NoiseSource` at whose first draw the process is gone, as if it had been killed."""

    name: str = "deadly"

    def values(self, kind: str, level: str) -> npt.NDArray[np.float32] | None:
        """Never returns."""
        os._exit(9)
