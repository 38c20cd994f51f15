"""What was recorded of the step of a hang before it stood still: spans of the operations that were completed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....collectors.tables.schemas import RANKS_PER_BLOCK, block_name
from ....collectors.writing.writer import TableWriter
from ....profiler.vocabulary import Clock, Status
from ..effects import IntArray
from ..spans import SEGMENTS
from .closure import outstanding
from .flights import Channels, sequences_before, size_of
from .gaps import Gaps
from .hangs import HangScene
from .program import OPS, Call, Op

WAITED_FOR = frozenset({"tp_all_gather", "tp_reduce_scatter", "world_all_reduce", "recv_forward", "recv_backward"})
"""Operations that the device has nothing to do beside: all of their time is exposed."""

NONE = -1


@dataclass(frozen=True, slots=True)
class CompletedSpans:
    """The completed operations of a scene's ranks in the step of the hang, and in the one after for those that got
    there. ``origin_ns`` [world]: when the step begins, on the clock of each rank's host."""

    scene: HangScene
    channels: Channels
    gaps: Gaps
    origin_ns: IntArray

    @property
    def are_told(self) -> bool:
        """Whether there are any: of a job that has begun, that does not go on, and whose hosts run ahead. Where hosts
        wait for each operation the engine lets some of them overlap that the walk of a hang does one by one, so that
        the step would not begin as the others did."""
        return self.scene.lead.in_flight > 1 and not self.scene.is_starting and not self.scene.moves

    def write(self, writer: TableWriter, ranks: Sequence[int] | None) -> int:
        """Stage rows of ``events`` for some ranks (None: all), without what is lost; the caller commits. How many."""
        if not self.are_told:
            return 0
        rows = self._rows()
        rank = rows["rank"].to_numpy()
        heard = ~(self.gaps.unheard[rank] | np.isin(rank, list(self.scene.plan.absent)))
        heard &= ~self.gaps.lost("span", rank, rows["group"].to_numpy(), rows["sequence"].to_numpy())
        if ranks is not None:
            heard &= np.isin(rank, np.array(ranks, np.int64))
        job = self.scene.job
        for block in np.unique(rank[heard] // RANKS_PER_BLOCK).tolist():
            part = rows.filter(pa.array(heard & (rank // RANKS_PER_BLOCK == block)))
            writer.write("events", job.run, job.attempt, part, block=block_name(block * RANKS_PER_BLOCK))
        return int(heard.sum())

    def _rows(self) -> pa.Table:
        """All completed operations, in the order of class and number."""
        scene, programs = self.scene, self.scene.programs
        look = scene.final()
        _, completed = outstanding(programs, look.which, look.at, look.host)
        before = sequences_before(scene, look)
        parts: list[IntArray] = []
        for op in range(OPS):
            done = np.where(self.channels.group[op] >= 0, completed[op], 0)
            for number in range(int(done.max(initial=0))):
                marked = done > number
                program = look.which[marked]
                call = programs.place[program, op, number]
                sequence = before[op][marked] + number + 1
                rank, group = scene.job.grid.rank[marked], self.channels.group[op][marked]
                ahead = 0 if scene.plan.ahead is None else scene.plan.ahead[marked].astype(np.int64)
                peer = self.channels.peer[op][marked]
                parts.append(np.stack([rank, program, call, group, sequence, peer, look.steps[marked] + ahead]))
        rank, program, call, group, sequence, peer, step = np.concatenate([np.zeros((7, 0), np.int64), *parts], axis=1)
        calls = [programs.calls[row][at] for row, at in zip(program.tolist(), call.tolist(), strict=True)]
        origin = self.origin_ns[rank]
        start, end = (origin + scene.begin[program, at] for at in (call, call + 1))
        exposed = np.where([one.name in WAITED_FOR for one in calls], end - start, NONE)
        return pa.table(
            {
                "rank": pa.array(rank, pa.int32()),
                "step": pa.array(step + [one.step for one in calls] if calls else step),
                "microbatch": pa.array([one.microbatch for one in calls], pa.int32()),
                "chunk": pa.array([one.chunk for one in calls], pa.int16()),
                "segment": pa.array([SEGMENTS[one.name].identity(one.name) for one in calls], pa.int64()),
                "stream": pa.array([SEGMENTS[one.name].stream for one in calls], pa.string()),
                "thread": pa.array(np.zeros(len(calls), np.int16)),
                "parent": pa.array([_parent(one) for one in calls], pa.int64()),
                "start_ns": pa.array(start),
                "duration_ns": pa.array(end - start),
                "self_ns": pa.array(end - start),
                "exposed_ns": pa.array(exposed, mask=exposed == NONE),
                "enqueue_ns": pa.array(origin + scene.issue[program, call]),
                "clock": pa.array([str(Clock.DEVICE)] * len(calls), pa.string()),
                "group": pa.array(group),
                "sequence": pa.array(sequence),
                "peer": pa.array(peer.astype(np.int32), mask=peer == NONE),
                "size_bytes": pa.array([size_of(one, scene.job.costs) for one in calls], pa.int64()),
                "status": pa.array([str(Status.OK)] * len(calls), pa.string()),
            }
        )


def _parent(call: Call) -> int | None:
    """The segment of the work around a collective of a tensor-parallel group."""
    if call.op != Op.TP or call.parent not in SEGMENTS:
        return None
    return SEGMENTS[call.parent].identity(call.parent)
