"""From where ranks stand to what their black boxes show: segments in flight with ages, and progress in every group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....collectors.tables.schemas import FLIGHT, GROUP_PROGRESS
from ..costs import Costs
from ..effects import BoolArray, IntArray
from ..groups import Groups
from ..job import SimulatedJob
from .closure import ends, outstanding
from .gaps import Gaps
from .hangs import HangScene, Look
from .program import EDGES, OPS, Call, Op, Programs, recv, send

NOBODY = -1
"""In arrays of groups and peers: there is none. It becomes NULL."""

NORM_BYTES = 16
"""Payload of the all-reduce over the whole job: a loss and a squared norm."""

RECEIVES = tuple(recv(edge) for edge in range(len(EDGES)))
HOLDING = (int(Op.TP), int(Op.DP), int(Op.WORLD), *RECEIVES)
"""Classes that hold a rank up: sends do not."""

_NULLABLE = ("group", "sequence", "peer", "microbatch", "size_bytes")


@dataclass(frozen=True, slots=True)
class Channels:
    """Per class of operations the group that a rank does it in, and the other end of p2p: [OPS, P, T, G] each."""

    group: IntArray
    peer: IntArray

    @classmethod
    def of(cls, job: SimulatedJob) -> Channels:
        """Groups of a job; classes that a rank has no part in have NOBODY."""
        grid, groups = job.grid, Groups(job)
        group = np.full((OPS, *grid.rank.shape), NOBODY, np.int64)
        peer = np.full_like(group, NOBODY)
        sizes = ((Op.TP, "tp", grid.width), (Op.DP, "dp", grid.dp_size), (Op.WORLD, "world", job.world_size))
        for op, kind, size in sizes:
            if size > 1:
                group[op] = np.stack([groups.identities(kind, stage) for stage in range(grid.stages)])
        for edge, kind in enumerate(EDGES):
            for giver, taker in zip(*(one.tolist() for one in ends(edge, grid.stages)), strict=True):
                own = groups.identities(kind, giver, (giver, taker))
                group[send(edge), giver] = group[recv(edge), taker] = own
                peer[send(edge), giver], peer[recv(edge), taker] = grid.rank[taker], grid.rank[giver]
        return cls(group, peer)


@dataclass(frozen=True, slots=True)
class Flights:
    """Segments in flight, a row each, by rank and then by their begin; ``first`` [world + 1] is where a rank's begin.

    ``columns`` are those of FLIGHT as arrays; ``begun_ns`` counts from the begin of the scene's step.
    """

    rank: IntArray
    columns: Mapping[str, IntArray]
    first: IntArray
    names: tuple[tuple[str, str], ...]

    def arrow(self, origin_ns: IntArray) -> dict[str, pa.Array]:
        """The columns for Arrow; ``origin_ns`` [world] is the moment of the step's begin on each rank's clock."""
        names, kinds = (pa.array([one[i] for one in self.names], pa.string()) for i in (0, 1))
        code = pa.array(self.columns["name"])
        plain = {"segment": names.take(code), "kind": kinds.take(code)}
        for key in _NULLABLE:
            values = self.columns[key]
            plain[key] = pa.array(values, FLIGHT.field(key).type, mask=values < 0)
        plain["waiting"] = pa.array(self.columns["waiting"] == 1)
        plain["begun_ns"] = pa.array(self.columns["begun_ns"] + origin_ns[self.rank], pa.int64())
        return plain

    def lists(self, origin_ns: IntArray) -> pa.ListArray:
        """One list of FLIGHT a rank, [world]."""
        columns = self.arrow(origin_ns)
        rows = pa.StructArray.from_arrays([columns[one.name] for one in FLIGHT], fields=list(FLIGHT))
        return pa.ListArray.from_arrays(pa.array(self.first, pa.int32()), rows)


def flights_of(scene: HangScene, channels: Channels, look: Look, gaps: Gaps | None = None) -> Flights:
    """What is in flight at a look: the work that a rank is in, the collectives in it, and messages under way; without
    what is lost."""
    rows = _Rows(scene, channels, look)
    parent = rows.tables.parent[look.which, look.host]
    rows.add(parent >= 0, parent[parent >= 0], int(Op.WORK))
    own = scene.programs.op[look.which, look.host]
    works = (own == Op.WORK) & ~rows.tables.is_end[look.which, look.host]
    rows.add(works, look.host[works], int(Op.WORK))
    for op in range(OPS):
        rows.add_operations(op)
    return rows.flights(gaps)


class _Rows:
    """Flights of one look, collected part by part."""

    def __init__(self, scene: HangScene, channels: Channels, look: Look) -> None:
        self.tables = _Tables.of(scene.programs, scene.job.costs)
        self.issued, self._completed = outstanding(scene.programs, look.which, look.at, look.host)
        self._before = sequences_before(scene, look)
        self._scene, self._channels, self._look = scene, channels, look
        # A host that is ahead is seen to wait for none but the operation whose result it reads.
        self._holding = HOLDING if scene.lead.in_flight <= 1 else (int(Op.WORLD),)
        self._parts: list[Mapping[str, IntArray]] = []

    def add(
        self,
        marked: BoolArray,
        call: IntArray,
        op: int,
        sequence: IntArray | None = None,
        posted: IntArray | None = None,
    ) -> None:
        """A row of each marked rank; [n] each: its ``call``, ``sequence``, and the call at which it was ``posted``."""
        program = self._look.which[marked]
        none = np.full(len(program), NOBODY)
        holds = op in self._holding and call == self._look.host[marked]
        self._parts.append(
            {
                "rank": self._scene.job.grid.rank[marked],
                "name": self.tables.name[program, call],
                "group": none if op == Op.WORK else self._channels.group[op][marked],
                "sequence": none if sequence is None else sequence,
                "peer": none if op == Op.WORK else self._channels.peer[op][marked],
                "microbatch": self.tables.microbatch[program, call],
                "begun_ns": self._look.origin_ns[marked]
                + self._scene.issue[program, call if posted is None else posted],
                "size_bytes": self.tables.size_bytes[program, call],
                "waiting": np.broadcast_to(holds, call.shape).astype(np.int64),
            }
        )

    def add_operations(self, op: int) -> None:
        """Operations of a class that are issued and not completed: of messages, those that have not met the other
        end."""
        programs, which = self._scene.programs, self._look.which
        under_way = np.where(self._channels.group[op] >= 0, self.issued[op] - self._completed[op], 0)
        edge = (op - recv(0)) // 2 if op in RECEIVES else None
        for number in range(int(under_way.max(initial=0))):
            marked = under_way > number
            index = (self._completed[op] + number)[marked]
            call = programs.place[which[marked], op, index]
            posted = call if edge is None else programs.posted_at[which[marked], edge, index]
            self.add(marked, call, op, self._before[op][marked] + index + 1, posted)

    def flights(self, gaps: Gaps | None) -> Flights:
        """All parts, by rank and begin."""
        columns = {key: np.concatenate([part[key] for part in self._parts]) for key in self._parts[0]}
        if gaps is not None:
            known_by = (columns[key] for key in ("rank", "name", "group", "sequence", "microbatch"))
            kept = ~gaps.lost("in_flight", *known_by)
            columns = {key: values[kept] for key, values in columns.items()}
        order = np.lexsort((columns["begun_ns"], columns["rank"]))
        columns = {key: values[order] for key, values in columns.items()}
        rank = columns.pop("rank")
        world = self._scene.job.world_size
        first = np.concatenate([[0], np.cumsum(np.bincount(rank, minlength=world))])
        return Flights(rank, columns, first, self.tables.names)


def progress_of(scene: HangScene, channels: Channels, look: Look, gaps: Gaps | None = None) -> pa.ListArray:
    """The last numbers issued and completed in each of a rank's groups, one list of GROUP_PROGRESS a rank, [world];
    without what is lost."""
    issued, completed = outstanding(scene.programs, look.which, look.at, look.host)
    before = sequences_before(scene, look)
    op, *place = np.nonzero(channels.group >= 0)
    at = (op, *place)
    issued, completed, group = (issued + before)[at], (completed + before)[at], channels.group[at]
    rank, used = scene.job.grid.rank[tuple(place)], issued > 0
    if gaps is not None:
        used &= ~gaps.lost("progress", rank, group)
    rank, group, issued, completed = rank[used], group[used], issued[used], completed[used]
    order = np.argsort(rank, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(rank, minlength=scene.job.world_size))])
    rows = pa.StructArray.from_arrays(
        [pa.array(values[order], pa.int64()) for values in (group, issued, completed)], fields=list(GROUP_PROGRESS)
    )
    return pa.ListArray.from_arrays(pa.array(first, pa.int32()), rows)


def sequences_before(scene: HangScene, look: Look) -> IntArray:
    """Numbers issued before the step that a rank is in, [OPS, P, T, G]: all steps are alike."""
    grid = scene.job.grid
    stage = np.arange(grid.stages)
    counts = np.array(
        [
            [sum(one.op == op and one.step == 0 for one in scene.programs.calls[row]) for row in stage]
            for op in range(OPS)
        ]
    )
    return counts[:, :, None, None] * (look.steps - scene.job.first_step)[None]


@dataclass(frozen=True, slots=True)
class _Tables:
    """Calls as arrays, [programs, N]: the index of their (name, kind), micro-batch, enclosing call (or -1)."""

    name: IntArray
    microbatch: IntArray
    parent: IntArray
    size_bytes: IntArray
    is_end: BoolArray
    step: IntArray
    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, programs: Programs, costs: Costs) -> _Tables:
        shape = programs.op.shape
        name, step = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        microbatch, parent = np.full(shape, NOBODY, np.int64), np.full(shape, NOBODY, np.int64)
        size, is_end = np.full(shape, NOBODY, np.int64), np.zeros(shape, bool)
        codes: dict[tuple[str, str], int] = {}
        for row, calls in enumerate(programs.calls):
            around: dict[str, int] = {}
            for at, call in enumerate(calls):
                if call.op == Op.WORK:
                    around[call.name] = at
                name[row, at] = codes.setdefault((call.name, str(call.kind)), len(codes))
                microbatch[row, at] = NOBODY if call.microbatch is None else call.microbatch
                parent[row, at] = NOBODY if call.parent is None else around[call.parent]
                step[row, at], size[row, at] = call.step, size_of(call, costs)
            is_end[row, len(calls) - 1 :] = True
        return cls(name, microbatch, parent, size, is_end, step, tuple(codes))


def size_of(call: Call, costs: Costs) -> int:
    """Payload of a call on its rank; NOBODY for work."""
    if call.op == Op.WORK:
        return NOBODY
    usual = {int(Op.TP): costs.tp_bytes, int(Op.WORLD): NORM_BYTES}.get(call.op, costs.p2p_bytes)
    if call.op == Op.DP:
        usual = costs.all_gather_bytes if call.name == "dp_all_gather" else costs.reduce_scatter_bytes
    return round(usual * call.share)


def steps_of(scene: HangScene, look: Look) -> IntArray:
    """The step that each rank is in, [P, T, G]: one more for those that have gone on to the next one, or count so."""
    step = _Tables.of(scene.programs, scene.job.costs).step[look.which, look.host]
    ahead = 0 if scene.plan.ahead is None else scene.plan.ahead.astype(np.int64)
    result: IntArray = look.steps + np.minimum(step, 2) + ahead
    return result
