"""Where the ranks of a run stood and what its segments are called; ranks that stayed in their place over attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..heatmap.peers import IntArray
from ..profiler.vocabulary import stage_axis
from .scope import Scope


@dataclass(frozen=True, slots=True)
class Place:
    """A rank in its place; ``attempt`` is None where several attempts are put together."""

    attempt: int | None
    rank: int
    host: str | None
    stage: int


@dataclass(frozen=True, slots=True)
class Places:
    """Places by their number, names of segments, and which number a rank of an attempt has: attempt, rank, place."""

    known: tuple[Place, ...]
    names: Mapping[int, str]
    table: pa.Table

    def stages(self, places: IntArray) -> IntArray:
        """The stage of each place number, [R]."""
        return np.array([one.stage for one in self.known], np.int64)[places]


def load_places(scope: Scope, *, together: bool) -> Places:
    """The places of all ranks of a scope; ``together``: a rank on the same host in several attempts has one place."""
    numbers: dict[Place, int] = {}
    names: dict[int, str] = {}
    rows = []
    for one in scope.attempts:
        stages = stage_axis(one.layout)
        for row in scope.store.query("SELECT * FROM ranks ORDER BY rank", attempt=one).to_pylist():
            place = Place(
                None if together else one.attempt, row["rank"], row["host"], (row.get(stages) or 0) if stages else 0
            )
            rows.append((one.attempt, row["rank"], numbers.setdefault(place, len(numbers))))
        for row in scope.store.query("SELECT segment, name FROM segments", attempt=one).to_pylist():
            names[row["segment"]] = row["name"]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = (("attempt", pa.int32()), ("rank", pa.int32()), ("place", pa.int64()))
    arrays = {name: pa.array(values, kind) for (name, kind), values in zip(kinds, columns, strict=True)}
    return Places(tuple(numbers), names, pa.table(arrays))
