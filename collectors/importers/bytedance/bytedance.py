"""Imports traces of ByteDance's what-if analysis: Parquet with one row an operation of a 3D-parallel job.

Source of the format: the published traces of "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....profiler.topology import Topology
from ....profiler.vocabulary import Clock, SegmentKind, Status
from ..columns import ABSENT, GroupBook, IntArray, SegmentInfo, last_look, named, nullable, segment_rows
from ..hostile import plain_name, printable
from ..imported import Imported, Progress, Rows
from ..intervals import covered_between
from ..layout_file import read_meta
from .places import Places, check_places, find_places, layout_file_of
from .rows import Operations, one_by_one, read_operations
from .schedule import schedule_rows
from .wires import NO_GROUP, P2P, Wires, find_wires

_COMPUTE = ("forward-compute", "backward-compute")

SEGMENTS = {
    "forward-compute": SegmentInfo("forward", SegmentKind.COMPUTE, None, "compute"),
    "backward-compute": SegmentInfo("backward", SegmentKind.COMPUTE, None, "compute"),
    "forward-send": SegmentInfo("send_forward", SegmentKind.P2P, "pp", "pp_send_forward"),
    "forward-recv": SegmentInfo("recv_forward", SegmentKind.P2P, "pp", "pp_recv_forward"),
    "backward-send": SegmentInfo("send_backward", SegmentKind.P2P, "pp", "pp_send_backward"),
    "backward-recv": SegmentInfo("recv_backward", SegmentKind.P2P, "pp", "pp_recv_backward"),
    "params-all-gather": SegmentInfo("dp_all_gather", SegmentKind.COLLECTIVE, "dp", "dp"),
    "grads-reduce-scatter": SegmentInfo("dp_reduce_scatter", SegmentKind.COLLECTIVE, "dp", "dp"),
    "layernorm-grads-all-reduce": SegmentInfo("layernorm_all_reduce", SegmentKind.COLLECTIVE, "tp", "tp"),
    "embedding-grads-all-reduce": SegmentInfo("embedding_all_reduce", SegmentKind.COLLECTIVE, "embedding", "embedding"),
    # Its end is common to all ranks of a replica, and those that come early wait in it: the norm's all-reduce.
    "optimizer-clip-main-grad": SegmentInfo("clip_grad_norm", SegmentKind.COLLECTIVE, "mp", "mp"),
    "optimizer": SegmentInfo("optimizer", SegmentKind.OPTIMIZER, None, "compute"),
    "gc": SegmentInfo("gc", SegmentKind.GC, None, "host", Clock.HOST),
}
"""What each kind of operation is called here."""


class ByteDanceTrace:
    """One trace file, and the layout beside it."""

    def __init__(self, path: Path, layout: Path | None = None) -> None:
        self._path = path
        self.layout = layout or layout_file_of(path)
        self.others: list[str] = []
        self._meta = read_meta(self.layout) if self.layout is not None else {}

    @property
    def run(self) -> str:
        """The trial's name, or the file's."""
        return printable(self._meta.get("trial_name") or self._path.stem)

    def read(self, rows: Rows, progress: Progress) -> Imported:
        """Hand over all rows. Raises FormatError for a file that is no such trace, or a layout that does not fit."""
        operations = one_by_one(read_operations(self._path), _stream_of)
        check_places(operations, self._path)
        progress(1, 3)
        places = find_places(operations, self._meta, self.layout or self._path)
        book = GroupBook()
        wires = find_wires(operations, places, book)
        rows.add("ranks", _rank_rows(places))
        rows.add("segments", segment_rows([_segment(name) for name in operations.names]))
        rows.add("groups", book.rows())
        rows.add("schedule", schedule_rows(operations, wires, places))
        rows.add("steps", _step_rows(operations))
        progress(2, 3)
        rows.add("events", _event_rows(operations, wires))
        rows.add("heartbeats", _last_looks(operations, wires, places))
        progress(3, 3)
        return self._imported(operations, wires, places)

    def _imported(self, operations: Operations, wires: Wires, places: Places) -> Imported:
        recorded = _recorded(places.topology, places)
        microbatches = int(operations.microbatch[operations.of("forward-compute")].max(initial=-1)) + 1
        notes = [
            "the trace starts its clock anew in every step and tells no date: each recorded step begins where the one "
            "before it ended, and the first at 1970-01-01 00:00 UTC",
        ]
        if self.layout is None:
            notes.append("no layout lies beside the trace: the mesh was worked out from the ranks' numbers")
        stages, replicas = places.rank_of.shape
        for axis, seen in (("pp", stages), ("dp", replicas)):
            if places.topology.size(axis) > seen:
                notes.append(f"the layout has {places.topology.size(axis)} places on {axis}, the trace only {seen}")
        if "sentence" in recorded:
            notes.append(str(recorded["sentence"]))
        idle = int((~wires.launched).sum())
        if idle:
            notes.append(f"{idle:,} transfers that no compute needs were never launched and are left out")
        configuration = {
            "imported": {"format": "bytedance", "file": plain_name(self._path), "meta": self._meta},
            "microbatches": microbatches or None,
            "chunks": places.chunks,
            **({"recorded": recorded} if recorded else {}),
        }
        end = (operations.start_ns + operations.duration_ns)[operations.is_sound]
        return Imported(
            layout=dict(places.topology.axes),
            world_size=places.topology.world_size,
            configuration=configuration,
            start_ns=0,
            end_ns=int(end.max(initial=0)),
            notes=tuple(notes),
            rejected=int((~operations.is_sound).sum()),
        )


def _stream_of(name: str) -> str:
    return _segment(name).stream


def _segment(name: str) -> SegmentInfo:
    return SEGMENTS.get(name) or SegmentInfo(name, SegmentKind.HOST, None, "host")


def _recorded(topology: Topology, places: Places) -> dict[str, object]:
    """What of the job was recorded, where that is not all of it."""
    if len(places.ranks) == topology.world_size:
        return {}
    if len(places.ranks) * int(np.prod([topology.size(axis) for axis in places.left_out])) == topology.world_size:
        axes = " and ".join(places.left_out)
        sentence = f"one rank of each {axes} group was recorded, {len(places.ranks)} of {topology.world_size} ranks"
        return {"axes": list(places.left_out), "ranks": len(places.ranks), "sentence": sentence}
    return {}


def _rank_rows(places: Places) -> pa.Table:
    """Rows of ``ranks``. The trace names no host: each rank has a clock of its own until something says otherwise."""
    coordinates = [places.topology.coordinates(rank) for rank in places.ranks]
    return pa.table(
        {
            "rank": pa.array(places.ranks, pa.int32()),
            "host": pa.array([f"host-of-rank-{rank}" for rank in places.ranks], pa.string()),
            "local_rank": pa.nulls(len(places.ranks), pa.int32()),
            **{axis: pa.array([one[axis] for one in coordinates], pa.int32()) for axis in places.topology.names},
        }
    )


def _step_rows(operations: Operations) -> pa.Table:
    """Rows of ``steps``: from a rank's first operation to its last end."""
    sound = operations.is_sound
    start = operations.start_ns[sound]
    key, place = np.unique(
        operations.rank[sound] * len(operations.steps) + operations.step_index[sound], return_inverse=True
    )
    first, last = np.full(len(key), np.iinfo(np.int64).max), np.full(len(key), np.iinfo(np.int64).min)
    np.minimum.at(first, place, start)
    np.maximum.at(last, place, start + operations.duration_ns[sound])
    return pa.table(
        {
            "rank": pa.array((key // len(operations.steps)).astype(np.int32)),
            "step": pa.array(operations.steps[key % len(operations.steps)]),
            "start_ns": pa.array(first),
            "duration_ns": pa.array(last - first),
        }
    )


def _last_looks(operations: Operations, wires: Wires, places: Places) -> pa.Table:
    """Rows of ``heartbeats``: each rank where its last operation ended."""
    used = wires.group != NO_GROUP
    ends = operations.start_ns + operations.duration_ns
    looks = []
    for rank in places.ranks:
        mine = operations.rank == rank
        last = int(np.argmax(np.where(mine, ends, -1)))
        groups, place = np.unique(wires.group[mine & used], return_inverse=True)
        number = np.zeros(len(groups), np.int64)
        np.maximum.at(number, place, wires.sequence[mine & used])
        progress = dict(zip(groups.tolist(), number.tolist(), strict=True))
        looks.append(last_look(rank, int(ends[last]), int(operations.step[last]), progress))
    return pa.concat_tables(looks)


def _event_rows(operations: Operations, wires: Wires) -> pa.Table:
    """Rows of ``events``, in the order in which they are stored."""
    kept = np.flatnonzero(wires.launched)
    kept = kept[np.lexsort((operations.start_ns[kept], operations.rank[kept], operations.step_index[kept]))]
    infos = [_segment(name) for name in operations.names]
    streams = sorted({one.stream for one in infos})
    clocks, statuses = [str(one) for one in Clock], [str(Status.OK), str(Status.UNMEASURED), str(Status.REJECTED)]
    code = operations.code[kept]
    # The moment of a collection is told, but not how long it took: missing is not zero.
    untimed = operations.of("gc")[kept] & (operations.duration_ns[kept] == 0)
    status = np.where(~operations.is_sound[kept], 2, np.where(untimed, 1, 0))
    duration = np.where(status == 0, operations.duration_ns[kept], ABSENT)
    exposed = np.where(status == 0, _exposed(operations)[kept], ABSENT)

    def of_kind(values: list[int]) -> IntArray:
        return np.array(values, np.int64)[code]

    return pa.table(
        {
            "rank": pa.array(operations.rank[kept].astype(np.int32)),
            "step": pa.array(operations.step[kept]),
            "microbatch": nullable(wires.microbatch[kept], pa.int32()),
            "chunk": nullable(wires.chunk[kept], pa.int16()),
            "segment": pa.array(of_kind([one.id for one in infos])),
            "stream": named(of_kind([streams.index(one.stream) for one in infos]), streams),
            "thread": pa.array(np.zeros(len(kept), np.int16)),
            "start_ns": pa.array(operations.start_ns[kept]),
            "duration_ns": nullable(duration, pa.int64()),
            "self_ns": nullable(duration, pa.int64()),
            "exposed_ns": nullable(exposed, pa.int64()),
            "clock": named(of_kind([list(Clock).index(one.clock) for one in infos]), clocks),
            "group": nullable(wires.group[kept], pa.int64(), NO_GROUP),
            "sequence": nullable(wires.sequence[kept], pa.int64()),
            "peer": nullable(wires.peer[kept], pa.int32()),
            "status": named(status, statuses),
        }
    )


def _exposed(operations: Operations) -> IntArray:
    """Time of each communication in which the rank ran no compute, [N]; `ABSENT` for what is no communication.

    A batch of two transfers is written twice, with equal times: its receive counts, its send does not.
    """
    waits = np.array([_segment(name).kind in (SegmentKind.P2P, SegmentKind.COLLECTIVE) for name in operations.names])
    result = np.full(len(operations), ABSENT, np.int64)
    rows = np.flatnonzero(waits[operations.code] & operations.is_sound)
    rows = rows[~_is_twin(operations, rows)]
    start, end = operations.start_ns[rows], operations.start_ns[rows] + operations.duration_ns[rows]
    compute = np.flatnonzero(operations.of(*_COMPUTE) & operations.is_sound)
    for rank in np.unique(operations.rank[rows]).tolist():
        own = compute[operations.rank[compute] == rank]
        mine = operations.rank[rows] == rank
        begin = operations.start_ns[own]
        busy = covered_between(begin, begin + operations.duration_ns[own], start[mine], end[mine])
        result[rows[mine]] = np.maximum(end[mine] - start[mine] - busy, 0)
    return result


def _is_twin(operations: Operations, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Which of these rows are the send of a batch whose receive has the same rank, start and duration."""
    receives = rows[operations.of(*(name for name, (_, _, sends) in P2P.items() if not sends))[rows]]
    is_send = operations.of(*(name for name, (_, _, sends) in P2P.items() if sends))[rows]
    high = int(operations.rank.max()) + 1
    key = operations.start_ns * high + operations.rank
    return is_send & np.isin(key[rows], key[receives])
