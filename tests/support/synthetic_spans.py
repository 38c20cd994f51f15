"""The spans of a synthetic job, column by column.

Time is a GPipe-like grid: forward of micro-batch i on stage s starts at slot s + i, backward the other way round. A
slow rank takes longer inside its slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from megascope.profiler.topology import group_id

from .synthetic_job import IDS, MS, SEGMENTS, SyntheticJob


@dataclass(slots=True)
class _Spans:
    """Columns of spans in the making; each piece is an array over ranks x steps, flattened."""

    pieces: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, start: np.ndarray, duration: np.ndarray, **more: Any) -> None:
        """One span per rank and step; NaN starts are left out."""
        self.pieces.append({"segment": name, "start": start, "duration": duration, **more})


def span_rows(job: SyntheticJob, ranks: np.ndarray, steps: np.ndarray) -> pa.Table:
    mesh = job.topology
    rng = np.random.default_rng([job.seed, int(ranks[0]), int(steps[0])])
    grid_rank, grid_step = np.meshgrid(ranks, steps, indexing="ij")
    stage = np.array([mesh.coordinates(int(rank)).get("pp", 0) for rank in ranks])[:, None] + 0 * grid_step
    base = job.first_ns + grid_step * job.step_ns
    spans = _Spans()
    spans.add("data", base + MS, _work(job, rng, "data", 2.0, grid_rank, grid_step))
    for microbatch in range(job.microbatches):
        _add_microbatch(job, rng, spans, microbatch, base, stage, grid_rank, grid_step)
    tail = base + job.step_ns - 15 * MS
    spans.add("dp_reduce_scatter", tail, _like(tail, 3.0, rng), stream="dp", group="dp")
    spans.add("optimizer", tail + 5 * MS, _work(job, rng, "optimizer", 1.5, grid_rank, grid_step))
    spans.add("dp_all_gather", tail + 9 * MS, _like(tail, 3.0, rng), stream="dp", group="dp")
    return _to_table(job, spans, ranks, grid_rank, grid_step)


def _add_microbatch(
    job: SyntheticJob,
    rng: np.random.Generator,
    spans: _Spans,
    microbatch: int,
    base: np.ndarray,
    stage: np.ndarray,
    grid_rank: np.ndarray,
    grid_step: np.ndarray,
) -> None:
    stages = job.topology.size("pp")
    slots = job.microbatches + stages - 1
    ways = (("forward", stage, "tp_all_gather", 5.0), ("backward", stages - 1 - stage, "tp_reduce_scatter", 6.0))
    for way, (name, place, collective, length_ms) in enumerate(ways):
        start = base + 4 * MS + (way * slots + place + microbatch) * job.slot_ns
        work = _work(job, rng, name, length_ms, grid_rank, grid_step)
        inside = _like(base, 0.6, rng)
        spans.add(name, start, work + inside, own=work, microbatch=microbatch)
        spans.add(collective, start + work // 2, inside, stream="tp", parent=name, group="tp", microbatch=microbatch)
        moves = (("recv", place > 0, -MS, 0.9, -1), ("send", place < stages - 1, job.slot_ns - 2 * MS, 0.5, 1))
        for verb, there, shift, transfer_ms, offset in moves:
            spans.add(
                f"{verb}_{name}",
                np.where(there, start + shift, -1),
                _like(base, transfer_ms, rng),
                stream="p2p",
                microbatch=microbatch,
                peer=offset if way == 0 else -offset,
                group=f"pp_{name}",
            )


def _work(
    job: SyntheticJob, rng: np.random.Generator, name: str, length_ms: float, rank: np.ndarray, step: np.ndarray
) -> np.ndarray:
    duration = length_ms * MS * np.exp(rng.normal(0, job.noise, rank.shape))
    slow = job.slow
    if slow is not None and slow.segment == name:
        duration = np.where((rank == slow.rank) & (step >= slow.first_step), duration * slow.factor, duration)
    return duration.astype(np.int64)


def _like(shape: np.ndarray, length_ms: float, rng: np.random.Generator) -> np.ndarray:
    return (length_ms * MS * np.exp(rng.normal(0, 0.1, shape.shape))).astype(np.int64)


def _to_table(
    job: SyntheticJob, spans: _Spans, ranks: np.ndarray, grid_rank: np.ndarray, grid_step: np.ndarray
) -> pa.Table:
    columns: dict[str, list[np.ndarray]] = {}
    groups = _group_table(job, ranks)
    gone = np.zeros(grid_rank.shape, bool)
    for rank, step in job.missing:
        gone |= (grid_rank == rank) & (grid_step == step)
    for piece in spans.pieces:
        _add_piece(job, columns, piece, groups, grid_rank, grid_step, (piece["start"] > 0) & ~gone)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.lexsort((whole["start_ns"], whole["rank"], whole["step"]))
    arrays = {}
    for name, values in whole.items():
        mask = values[order] == _ABSENT if name in _NULLABLE else None
        arrays[name] = pa.array(values[order], mask=mask)
    for name, words in (("stream", _STREAMS), ("clock", ["device"]), ("status", ["ok"])):
        codes = whole.get(name, np.zeros(len(order), np.int32))[order]
        arrays[name] = pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(words))
    return pa.table(arrays)


_ABSENT = -1
_NULLABLE = {"microbatch", "parent", "group", "sequence", "peer", "size_bytes", "exposed_ns", "enqueue_ns"}
_STREAMS = ["compute", "tp", "p2p", "dp"]


def _add_piece(
    job: SyntheticJob,
    columns: dict[str, list[np.ndarray]],
    piece: dict[str, Any],
    groups: dict[str, np.ndarray],
    grid_rank: np.ndarray,
    grid_step: np.ndarray,
    kept: np.ndarray,
) -> None:
    count = int(kept.sum())
    rank, step = grid_rank[kept], grid_step[kept]
    row = rank - grid_rank[0, 0]
    communicates = SEGMENTS[piece["segment"]][0] in {"collective", "p2p"}
    group = piece.get("group", "")
    peer = np.full(count, _ABSENT)
    if "peer" in piece:
        peer = rank + piece["peer"] * job.topology.rank({"pp": 1})
        group = f"{group}:{'lower' if piece['peer'] < 0 else 'upper'}"
    microbatch = piece.get("microbatch", _ABSENT)
    sequence = step * job.microbatches + max(microbatch, 0) + 1 if group else np.full(count, _ABSENT)
    own = piece.get("own", piece["duration"])[kept]
    values: dict[str, Any] = {
        "rank": rank.astype(np.int32),
        "step": step.astype(np.int64),
        "microbatch": np.full(count, microbatch, np.int32),
        "segment": np.full(count, IDS[piece["segment"]], np.int64),
        "stream": np.full(count, _STREAMS.index(piece.get("stream", "compute")), np.int32),
        "thread": np.zeros(count, np.int16),
        "parent": np.full(count, IDS[piece["parent"]] if "parent" in piece else _ABSENT, np.int64),
        "start_ns": piece["start"][kept].astype(np.int64),
        "duration_ns": piece["duration"][kept],
        "self_ns": own,
        "exposed_ns": piece["duration"][kept] // 4 if communicates else np.full(count, _ABSENT, np.int64),
        "enqueue_ns": piece["start"][kept].astype(np.int64) - 20_000,
        "group": groups[group][row] if group else np.full(count, _ABSENT, np.int64),
        "sequence": np.asarray(sequence, np.int64),
        "peer": peer.astype(np.int32),
        "size_bytes": np.full(count, 2**20 if communicates else _ABSENT, np.int64),
    }
    for name, array in values.items():
        columns.setdefault(name, []).append(array)


def _group_table(job: SyntheticJob, ranks: np.ndarray) -> dict[str, np.ndarray]:
    """Group identity of each rank by axis, and of its pipeline edges (towards the lower and the upper stage)."""
    mesh = job.topology
    table = {axis: [group_id(axis, mesh.group(axis, int(rank))) for rank in ranks] for axis in ("tp", "dp")}
    stride = mesh.rank({"pp": 1})
    for kind in ("pp_forward", "pp_backward"):
        table[f"{kind}:lower"] = [group_id(kind, (int(rank) - stride, int(rank))) for rank in ranks]
        table[f"{kind}:upper"] = [group_id(kind, (int(rank), int(rank) + stride)) for rank in ranks]
    return {name: np.array(ids, np.int64) for name, ids in table.items()}
