"""Identities of a job's process groups, as arrays in the grid's shape and as rows of the table ``groups``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...profiler.topology import group_id
from .effects import IntArray
from .job import SimulatedJob

Ends = tuple[int, int]


class Groups:
    """All groups that communicate: tp, dp, pp, world, and a pair of ranks for each directed pipeline edge."""

    def __init__(self, job: SimulatedJob) -> None:
        self._job = job
        self._identities: dict[tuple[str, Ends | None], IntArray] = {}

    def identities(self, kind: str, stage: int, ends: Ends | None = None) -> IntArray:
        """Identity of the group of each rank of a stage, [T, G]. ``ends``: the stages that a pipeline edge joins."""
        if (kind, ends) not in self._identities:
            self._identities[kind, ends] = self._find(kind, ends)
        of_stage: IntArray = self._identities[kind, ends][stage if ends is None else 0]
        return of_stage

    def _find(self, kind: str, ends: Ends | None) -> IntArray:
        grid = self._job.grid
        members = self._members(kind, ends)
        ids = np.array([group_id(kind, line) for line in members.tolist()], np.int64)
        if ends is not None:
            return ids.reshape(1, grid.width, grid.replicas)
        result = np.empty(grid.rank.size, np.int64)
        result[members] = ids[:, np.newaxis]
        return result[grid.rank]

    def _members(self, kind: str, ends: Ends | None) -> IntArray:
        """Ranks of all groups of a kind, [groups, members]; of an edge, in the order [T, G]."""
        grid = self._job.grid
        if ends is not None:
            return np.stack([grid.rank[stage].reshape(-1) for stage in ends], axis=1)
        if kind == "world":
            return np.arange(grid.rank.size, dtype=np.int64)[np.newaxis]
        return {"tp": grid.tp_groups, "dp": grid.dp_groups, "pp": grid.pipelines}[kind]()

    def rows(self) -> Iterator[pa.Table]:
        """Rows of ``groups`` for all groups of more than one rank, kind by kind."""
        for kind, ends in self._kinds():
            members = np.sort(self._members(kind, ends), axis=1)
            if members.shape[1] < 2:
                continue
            if ends is None:
                self.identities(kind, 0)
                ids = self._identities[kind, None].reshape(-1)[self._positions(members[:, 0])]
            else:
                ids = self.identities(kind, ends[0], ends).reshape(-1)
            offsets = np.arange(len(members) + 1, dtype=np.int32) * members.shape[1]
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(members.reshape(-1).astype(np.int32)))
            yield pa.table({"group": ids, "kind": pa.repeat(pa.scalar(kind), len(members)), "ranks": lists})

    def _positions(self, ranks: IntArray) -> IntArray:
        """Place of ranks in the flattened grid."""
        grid = self._job.grid
        return (grid.stage[ranks] * grid.width + grid.tp[ranks]) * grid.replicas + grid.replica[ranks]

    def _kinds(self) -> Iterator[tuple[str, Ends | None]]:
        for kind in ("tp", "dp", "pp", "world"):
            yield kind, None
        stages = self._job.grid.stages
        for low in range(stages - 1):
            yield "pp_forward", (low, low + 1)
            yield "pp_backward", (low + 1, low)
        if self._job.chunks > 1 and stages > 1:
            yield "pp_forward_wrap", (stages - 1, 0)
            yield "pp_backward_wrap", (0, stages - 1)
