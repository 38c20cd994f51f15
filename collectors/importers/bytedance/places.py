"""Where the ranks of a what-if trace stand: its mesh, from the file beside it or from the ranks' own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....profiler.errors import FormatError
from ....profiler.topology import Topology
from ..columns import IntArray
from ..layout_file import MOST_RANKS, sizes_of
from .rows import Operations


def layout_file_of(path: Path) -> Path | None:
    """``meta-X.yaml`` beside ``trace-X.parquet``; None where there is none."""
    beside = path.with_name(path.name.replace("trace", "meta", 1)).with_suffix(".yaml")
    return beside if beside != path and beside.is_file() else None


@dataclass(frozen=True, slots=True)
class Places:
    """The mesh, and who was recorded. ``rank_of`` [P, D] is the recorded rank of a stage and data-parallel index.

    ``left_out`` are the axes on which only coordinate 0 was recorded.
    """

    topology: Topology
    ranks: tuple[int, ...]
    rank_of: IntArray
    chunks: int
    left_out: tuple[str, ...]

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.rank_of)


def check_places(operations: Operations, path: Path) -> None:
    """Raise FormatError where rows have no place in a job, or one that no job has."""
    numbers = (operations.rank, operations.stage, operations.dp)
    if min(int(values.min()) for values in numbers) < 0:
        raise FormatError(f"{path} has rows without a rank, stage or dp_rank: there is no telling whose.")
    size = (int(operations.stage.max()) + 1) * (int(operations.dp.max()) + 1)
    if max(int(operations.rank.max()) + 1, size) > MOST_RANKS:
        raise FormatError(f"{path} has a rank, stage or dp_rank beyond {MOST_RANKS:,}: no job has that many.")


def find_places(operations: Operations, meta: Mapping[str, str], where: Path) -> Places:
    """The mesh of a trace. Raises FormatError where the sizes do not fit the ranks that were recorded."""
    stages, replicas = int(operations.stage.max()) + 1, int(operations.dp.max()) + 1
    rank_of = np.full((stages, replicas), -1, np.int64)
    rank_of[operations.stage, operations.dp] = operations.rank
    ranks = tuple(np.unique(operations.rank).tolist())
    sizes = sizes_of(meta, where) or {"pp": stages, "dp": replicas}
    if sizes.get("pp", 1) < stages or sizes.get("dp", 1) < replicas:
        raise FormatError(f"{where} has fewer stages or replicas than the trace: give the layout that belongs to it.")
    inner = {axis: size for axis, size in sizes.items() if axis not in ("pp", "dp") and size > 1}
    if not meta and len(ranks) > 1:
        gap = int(np.diff(ranks).min())
        inner = {"tp": gap} if gap > 1 else {}
    topology = _ordered(sizes, inner, rank_of)
    if topology is None:
        raise FormatError(f"The ranks of the trace fit no order of the axes in {where}: give the right --layout.")
    chunks = int(operations.chunk.max()) + 1 if len(operations) else 1
    return Places(topology, ranks, rank_of, max(chunks, 1), tuple(inner))


def _ordered(sizes: Mapping[str, int], inner: Mapping[str, int], rank_of: IntArray) -> Topology | None:
    """The mesh with pp outside dp, or dp outside pp, in which the recorded ranks have index 0 on all other axes."""
    for outer in (("pp", "dp"), ("dp", "pp")):
        mesh = Topology(tuple((axis, sizes.get(axis, 1)) for axis in outer) + tuple(inner.items()))
        fits = all(
            rank_of[stage, dp] in (-1, mesh.rank({"pp": stage, "dp": dp})) for stage, dp in np.ndindex(*rank_of.shape)
        )
        if fits:
            return mesh
    return None
