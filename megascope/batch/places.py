"""Where the ranks of a run stood and what its segments are called, attempt by attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..heatmap.peers import IntArray
from .scope import Scope


@dataclass(frozen=True, slots=True)
class Places:
    """By (attempt, rank): host and stage; by (attempt, segment): the name."""

    hosts: Mapping[tuple[int, int], str]
    stages: Mapping[tuple[int, int], int]
    names: Mapping[tuple[int, int], str]

    def host(self, attempt: int, rank: int) -> str | None:
        """Name of the machine; None where it was not recorded."""
        return self.hosts.get((attempt, rank))

    def stage(self, attempt: int, rank: int) -> int:
        """Index on the pp axis; 0 without such an axis."""
        return self.stages.get((attempt, rank), 0)

    def segment(self, attempt: int, segment: int) -> str:
        """The segment's name."""
        return self.names.get((attempt, segment), str(segment))

    def stage_of(self, rows: pa.Table) -> IntArray:
        """The stage of each row's rank, [R]."""
        keys = zip(rows["attempt"].to_pylist(), rows["rank"].to_pylist(), strict=True)
        return np.array([self.stage(*key) for key in keys], np.int64)


def load_places(scope: Scope) -> Places:
    """The places of all ranks of a scope."""
    hosts: dict[tuple[int, int], str] = {}
    stages: dict[tuple[int, int], int] = {}
    names: dict[tuple[int, int], str] = {}
    for one in scope.attempts:
        for row in scope.store.query("SELECT * FROM ranks", attempt=one).to_pylist():
            hosts[one.attempt, row["rank"]] = row["host"]
            stages[one.attempt, row["rank"]] = row.get("pp") or 0
        for row in scope.store.query("SELECT segment, name FROM segments", attempt=one).to_pylist():
            names[one.attempt, row["segment"]] = row["name"]
    return Places(hosts, stages, names)
