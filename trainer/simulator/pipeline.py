"""One block of replicas from the beginning of a step to its last backward: what each action of the schedule does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...profiler.vocabulary import ActionKind
from ..schedule import COMPUTE, Action, virtual_stage
from .conditions import Conditions
from .draws import SpanDraws
from .effects import FloatArray
from .job import SimulatedJob
from .spans import Numbering, Spans

SENDS = {ActionKind.RECV_FORWARD: ActionKind.SEND_FORWARD, ActionKind.RECV_BACKWARD: ActionKind.SEND_BACKWARD}

Key = tuple[int, ActionKind, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Begin:
    """When ranks begin a step, [P, T, S, G] of the block, and when their weights are there: by chunk, the same."""

    moment: FloatArray
    gathered: list[FloatArray]


@dataclass(slots=True)
class Finish:
    """What a step's end needs of all replicas: when compute is done, and by chunk when its gradients are, [P, T, S, G].

    ``reduce_order``: chunks in the order of their reduce-scatters.
    """

    done: FloatArray
    reduce: list[FloatArray]
    reduce_order: list[int]

    @classmethod
    def empty(cls, job: SimulatedJob, steps: int) -> Finish:
        """To be filled block by block."""
        grid = job.grid
        shape = (grid.stages, grid.width, steps, grid.replicas)
        chunks = job.chunks if grid.dp_size > 1 else 0
        order = [a.chunk for a in job.schedule[0] if a.kind is ActionKind.REDUCE_SCATTER and a.chunk is not None]
        return cls(np.zeros(shape), [np.zeros(shape) for _ in range(chunks)], order)


@dataclass(slots=True)
class _Stage:
    """Where a stage stands: ``free`` [T or 1, S, G] is when its compute is done so far."""

    free: FloatArray
    free_at: list[FloatArray]
    computed: int = 0


@dataclass(frozen=True, slots=True)
class _Message:
    """One that has been sent: when its receive was posted, when it is there, and what its span says."""

    posted: FloatArray
    there: FloatArray
    about: dict[str, Any]


class Block:
    """Runs the actions. All replicas of the block do the same one at once, each at its own time."""

    def __init__(
        self,
        job: SimulatedJob,
        conditions: Conditions,
        replicas: slice,
        number: int,
        begin: Begin,
        emit: Callable[[Spans], None],
    ) -> None:
        self._job, self._conditions, self._replicas, self._emit = job, conditions, replicas, emit
        self._width = job.grid.width
        self._shape = (self._width, len(conditions.index), replicas.stop - replicas.start)
        self._begin = begin
        self._draws = SpanDraws(job, conditions.index, number, self._shape)
        self._stages = [self._start(stage) for stage in range(job.grid.stages)]
        self._sent: dict[Key, FloatArray] = {}
        self._arrived: dict[Key, _Message] = {}
        self._links: dict[tuple[ActionKind, int], tuple[int, FloatArray]] = {}
        self._reduce: list[list[FloatArray]] = [[] for _ in range(job.grid.stages)]
        self._opened: set[tuple[int, int]] = set()
        self.gather_waits: dict[tuple[int, int], FloatArray] = {}

    # -- before the first action --------------------------------------------------------------------------------

    def _start(self, stage: int) -> _Stage:
        """Load data on the first and the last stage; collect garbage."""
        free = np.broadcast_to(self._begin.moment[stage], self._shape)
        if stage in (0, self._job.grid.stages - 1):
            work = self._part(self._conditions.work("data"), stage) * self._job.costs.data_ns
            took = np.rint(work) + self._part(self._conditions.pauses_ns("data"), stage)
            free = self._host(stage, "data", free, np.broadcast_to(took, self._shape))
        pause = self._part(self._conditions.pauses_ns("gc"), stage)
        if pause.any():
            free = self._host(stage, "gc", free, np.broadcast_to(pause, self._shape))
        return _Stage(free, [free])

    def _host(self, stage: int, segment: str, start: FloatArray, took: FloatArray) -> FloatArray:
        is_there = None if segment == "data" else took > 0
        self._spans(segment, stage, start, took, present=is_there)
        return start + took

    def _part(self, values: FloatArray, stage: int) -> FloatArray:
        """This block's part of what is broadcast to [P, T, S, G]."""
        values = values[stage if values.shape[0] > 1 else 0]
        part: FloatArray = values[..., self._replicas] if values.shape[-1] > 1 else values
        return part

    # -- actions ------------------------------------------------------------------------------------------------

    def act(self, stage: int, position: int) -> None:
        """Do one action of the schedule; those of the whole step's end are the engine's."""
        action = self._job.schedule[stage][position]
        if action.kind in COMPUTE:
            self._compute(stage, action)
        elif action.kind in SENDS:
            self._receive(stage, action)
        elif action.kind is ActionKind.REDUCE_SCATTER:
            self._reduce[stage].append(self._stages[stage].free)

    def _compute(self, stage: int, action: Action) -> None:
        state = self._stages[stage]
        start, own = self._wait(stage, action), self._own_ns(stage, action)
        where = {"microbatch": action.microbatch, "chunk": action.chunk}
        pairs = self._job.costs.tp_pairs if self._width > 1 else 0
        if pairs:
            end = self._with_collectives(stage, str(action.kind), start, own, pairs, where)
        else:
            own = np.broadcast_to(np.rint(own), self._shape)
            end = start + own
            self._spans(str(action.kind), stage, start, own, **where)
        state.free = end
        state.computed += 1
        state.free_at.append(end)
        kind = ActionKind.SEND_FORWARD if action.kind is ActionKind.FORWARD else ActionKind.SEND_BACKWARD
        self._sent[stage, kind, action.chunk, action.microbatch] = end

    def _own_ns(self, stage: int, action: Action) -> FloatArray:
        """What the compute takes by itself, broadcast to [T, S, G]."""
        assert action.chunk is not None
        assert action.microbatch is not None
        costs, segment = self._job.costs, str(action.kind)
        virtual = virtual_stage(stage, action.chunk, self._job.grid.stages)
        usual = costs.forward(virtual) if action.kind is ActionKind.FORWARD else costs.backward(virtual)
        own = self._part(self._conditions.work(segment), stage) * usual * self._draws.ratios(segment)
        uneven = self._conditions.uneven(segment, action.microbatch, self._replicas)
        return own if uneven is None else own * uneven

    def _wait(self, stage: int, action: Action) -> FloatArray:
        """When the compute may begin on each rank: after what came before, the weights, and its input."""
        state = self._stages[stage]
        start = state.free
        assert action.chunk is not None
        if action.kind is ActionKind.FORWARD and self._begin.gathered and (stage, action.chunk) not in self._opened:
            self._opened.add((stage, action.chunk))
            there = self._begin.gathered[action.chunk][stage]
            self.gather_waits[stage, action.chunk] = np.maximum(there - start, 0)
            start = np.maximum(start, there)
        kind = ActionKind.RECV_FORWARD if action.kind is ActionKind.FORWARD else ActionKind.RECV_BACKWARD
        arrival = self._arrived.pop((stage, kind, action.chunk, action.microbatch), None)
        if arrival is not None:
            waited = np.maximum(arrival.there - start, 0)
            took = arrival.there - arrival.posted
            self._spans(str(kind), stage, arrival.posted, took, exposed=waited, **arrival.about)
            start = np.maximum(start, arrival.there)
        return np.broadcast_to(start, self._shape)

    def _with_collectives(
        self, stage: int, segment: str, start: FloatArray, own: FloatArray, pairs: int, where: dict[str, Any]
    ) -> FloatArray:
        """Compute that is cut into equal parts by the collectives of its tensor-parallel group; its end, [1, S, G].

        Each collective ends for all members at once, when the slowest is there and the transfer is done. The first one
        also waits for members that began later; the others' waits are alike.
        """
        count = 2 * pairs
        part = np.floor(own / count)
        transfer = np.rint(self._conditions.tp_ns(stage, self._replicas) * self._draws.ratios("collective")[:1])
        unit = part.max(axis=0, keepdims=True) + transfer
        together = start.max(axis=0, keepdims=True)
        end = together + unit * count
        self._spans(segment, stage, start, end - start, own=part * count, **where)
        wait = np.broadcast_to(unit - part, self._shape)
        first = wait + (together - start)
        per_step = count * 2 * self._job.microbatches * self._job.chunks
        base = self._stages[stage].computed * count
        about = {**where, "parent": segment, "group": "tp", "size_bytes": self._job.costs.tp_bytes}
        numbering = Numbering(per_step, base)
        self._spans("tp_all_gather", stage, start + part, first, exposed=first, numbering=numbering, **about)
        for name, place, repeat in (("tp_reduce_scatter", 1, pairs), ("tp_all_gather", 2, pairs - 1)):
            if repeat:
                numbering, begin = Numbering(per_step, base + place, 2), together + part + place * unit
                self._spans(
                    name, stage, begin, wait,
                    exposed=wait, repeat=repeat, stride=2 * unit, numbering=numbering, **about,
                )  # fmt: skip
        return np.asarray(end)

    # -- point to point -----------------------------------------------------------------------------------------

    def _receive(self, stage: int, action: Action) -> None:
        """The transfer starts when both ends are there and the link is free."""
        assert action.chunk is not None
        kind, forward = SENDS[action.kind], action.kind is ActionKind.RECV_FORWARD
        source, chunk = self._source(stage, action.chunk, forward=forward)
        sent = self._sent.pop((source, kind, chunk, action.microbatch))
        state, link = self._stages[stage], (kind, source)
        posted = state.free_at[max(0, state.computed - self._job.recv_ahead)]
        number, link_free = self._links.get(link, (0, posted))
        usual = self._conditions.p2p_ns(str(kind), (source, stage), self._replicas)
        began = np.maximum(np.maximum(sent, posted), link_free)
        there = began + np.rint(usual * self._draws.ratios("p2p"))
        self._links[link] = number + 1, there
        wraps = source > stage if forward else source < stage
        per_step = self._job.microbatches * (self._job.chunks - 1 if wraps else self._job.chunks)
        # Edges are named as in `trainer.topology.EdgeKind`; wrap edges join the last and the first stage.
        both = {
            "microbatch": action.microbatch, "group": f"pp_{'forward' if forward else 'backward'}{'_wrap' * wraps}",
            "ends": (source, stage), "numbering": Numbering(per_step, number), "size_bytes": self._job.costs.p2p_bytes,
        }  # fmt: skip
        self._spans(str(kind), source, sent, there + self._draws.later_ns() - sent, chunk=chunk, peer=stage, **both)
        own = {"chunk": action.chunk, "peer": source, **both}
        self._arrived[stage, action.kind, action.chunk, action.microbatch] = _Message(posted, there, own)

    def _source(self, stage: int, chunk: int, *, forward: bool) -> tuple[int, int]:
        """Stage and chunk of the virtual stage that sends."""
        stages = self._job.grid.stages
        virtual = virtual_stage(stage, chunk, stages) + (-1 if forward else 1)
        return virtual % stages, virtual // stages

    # -- results ------------------------------------------------------------------------------------------------

    def close(self, finish: Finish) -> None:
        """Note when each stage was done, and when the gradients of each chunk were."""
        for stage, state in enumerate(self._stages):
            finish.done[stage][..., self._replicas] = state.free
            for chunk, moment in zip(finish.reduce_order, self._reduce[stage], strict=False):
                finish.reduce[chunk][stage][..., self._replicas] = moment

    def _spans(self, segment: str, stage: int, start: FloatArray, duration: FloatArray, **more: Any) -> None:
        self._emit(
            Spans(
                segment=segment, stage=stage, replicas=self._replicas, steps=self._conditions.steps,
                period=self._conditions.index, start=start, duration=duration, **more,
            )
        )  # fmt: skip
