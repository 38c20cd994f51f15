"""S, M_W, M_S and contributions of the steps seen so far; new steps are added without reading old ones again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..peers import FloatArray, IntArray
from .measured import Ideal, Measured, appended, ideal_of
from .result import Contribution, Part, WhatIf
from .scenarios import BoolArray, Sets, all_ideal, as_measured, fixed, put_back, replicas_put_back

SLOWEST_SHARE = 0.03
"""Share of the workers that M_W fixes, rounded up (ByteDance's what-if analysis, OSDI 2025)."""

LEAST_EXCESS = 0.005
"""Excess S - 1 below which there is nothing to share out: it is the scatter of single operations."""

MAX_PARTS = 16
"""Links whose contribution is computed, and ranks and hosts of large jobs: those that took the longest beyond their
ideal."""

MAX_REPLAYED = 24_000_000
"""Operations of all steps x ranks (or hosts) up to which each of these has its contribution: half a second."""


@dataclass(slots=True)
class Accumulator:
    """Holds what was measured. Lengths of steps as measured are kept; scenarios depend on the ideal, which every step
    moves, and are replayed when `result` is asked for. Adding steps one by one gives what adding them at once gives."""

    hosts: Mapping[int, str] = field(default_factory=dict)
    _measured: Measured | None = None
    _lengths: FloatArray = field(default_factory=lambda: np.zeros(0))

    def add(self, steps: Measured) -> None:
        """Add steps that were not added before. Raises ValueError for ranks or a program other than the first ones'."""
        before = self._measured
        if before is None:
            self._measured = steps
        else:
            same = before.program == steps.program and np.array_equal(before.ranks, steps.ranks)
            if not same or np.isin(steps.steps, before.steps).any():
                raise ValueError("the steps are of another program, of other ranks, or were added before")
            self._measured = appended(before, steps)
        self._lengths = np.concatenate([self._lengths, as_measured(steps)])

    def keep(self, steps: IntArray) -> None:
        """Forget all other steps."""
        if self._measured is not None:
            kept = np.isin(self._measured.steps, steps)
            if not kept.all():
                self._measured, self._lengths = self._measured.of_steps(kept), self._lengths[kept]

    def knows(self, steps: IntArray) -> BoolArray:
        """Which of the steps were added, [S]."""
        return np.isin(steps, self.steps)

    @property
    def measured(self) -> Measured | None:
        """All that was added."""
        return self._measured

    @property
    def steps(self) -> IntArray:
        """Steps that were added."""
        return np.zeros(0, np.int64) if self._measured is None else self._measured.steps

    def result(self) -> WhatIf:
        """The ratios over all steps so far. Raises ValueError where there are none."""
        if self._measured is None:
            raise ValueError("no steps were added")
        return _Analysis(self._measured, float(self._lengths.mean()), self.hosts).result()


class _Analysis:
    def __init__(self, measured: Measured, length: float, hosts: Mapping[int, str]) -> None:
        self._measured, self._length, self._hosts = measured, length, hosts
        self._ideal: Ideal = ideal_of(measured)
        self._shortest = all_ideal(measured, self._ideal)

    @property
    def _excess(self) -> float:
        return self._length / self._shortest - 1

    def result(self) -> WhatIf:
        """Everything."""
        steps = (int(self._measured.steps.min()), int(self._measured.steps.max()))
        count, slowdown = len(self._measured.steps), self._length / self._shortest
        seconds = (self._length / 1e9, float(self._measured.recorded.mean()) / 1e9, self._shortest / 1e9)
        if self._excess < LEAST_EXCESS:
            note = f"the job is within {LEAST_EXCESS:.1%} of its ideal, so that there is no excess to share out"
            return WhatIf(slowdown, None, None, steps, count, *seconds, *self._workers(), (), (note,))
        has_stages = self._measured.program.stages > 1
        parts = self._parts()
        workers, last = self._slowest_workers(), self._stage(self._measured.program.stages - 1)
        sets = _joined([workers, last, *(one for _, _, one in parts)])
        times = fixed(self._measured, self._ideal, sets).mean(axis=1)
        recovered = (self._length - times) / (self._length - self._shortest)
        alone = put_back(self._measured, self._ideal, sets.part(slice(2, None))).mean(axis=1) / self._shortest
        found = [
            Contribution(part, name, float(share), float(share * self._excess / slowdown), float(slow))
            for (part, name, _), share, slow in zip(parts, recovered[2:], alone, strict=True)
        ]
        found.sort(key=lambda one: (list(Part).index(one.part), -one.recovered, one.name))
        m_s = float(recovered[1]) if has_stages else None
        notes = () if has_stages else ("the job has one stage, so that there is no last one to fix: no m_s",)
        slowest, unlisted = float(recovered[0]), max(self._measured.ranks.size - self._most, 0)
        return WhatIf(slowdown, slowest, m_s, steps, count, *seconds, *self._workers(), tuple(found), notes, unlisted)

    # -- sets of operations -------------------------------------------------------------------------------------

    def _set(self, ranks: BoolArray, nodes: BoolArray | None = None) -> Sets:
        every = np.ones(len(self._measured.program.nodes), bool)
        return Sets(ranks[np.newaxis], (every if nodes is None else nodes)[np.newaxis])

    def _work(self, ranks: BoolArray) -> Sets:
        """What ranks do by themselves: who waits for a slow message or a slow group is not at fault."""
        return self._set(ranks, np.array([not node.is_transfer for node in self._measured.program.nodes]))

    def _stage(self, stage: int) -> Sets:
        ranks = np.zeros(self._measured.ranks.shape, bool)
        ranks[stage] = True
        return self._set(ranks)

    def _slowest_workers(self) -> Sets:
        """The slowest workers, cells of a stage and a replica: each as slow as the less slow of its stage and replica
        are, put back alone."""
        program = self._measured.program
        stages = _joined([self._stage(stage) for stage in range(program.stages)])
        of_stage = put_back(self._measured, self._ideal, stages).mean(axis=1)
        of_replica = replicas_put_back(self._measured, self._ideal).mean(axis=1)
        scores = np.minimum(of_stage[:, np.newaxis], of_replica)
        _, count = self._workers()
        chosen = np.zeros(scores.size, bool)
        chosen[np.argsort(-scores.reshape(-1), kind="stable")[:count]] = True
        cells = chosen.reshape(scores.shape)[:, np.newaxis]
        return self._set(np.broadcast_to(cells, self._measured.ranks.shape))

    def _workers(self) -> tuple[int, int]:
        """How many workers there are, and how many of them are the slowest."""
        count = self._measured.program.stages * self._measured.ranks.shape[2]
        return count, math.ceil(SLOWEST_SHARE * count)

    @property
    def _most(self) -> int:
        """Of how many ranks, and of how many hosts, the contribution is computed."""
        return max(MAX_PARTS, MAX_REPLAYED // self._measured.own.size)

    def _parts(self) -> list[tuple[Part, str, Sets]]:
        """What contributions are computed of."""
        ranks, program = self._measured.ranks, self._measured.program
        beyond = self._beyond()
        order = np.argsort(-beyond.reshape(-1), kind="stable")[: self._most]
        found = [(Part.RANK, str(rank), self._work(ranks == rank)) for rank in ranks.reshape(-1)[order].tolist()]
        found += [(Part.HOST, host, self._work(np.isin(ranks, own))) for host, own in self._costly_hosts(beyond)]
        found += [(Part.LINK, name, one) for name, one in self._costly_links()]
        if program.stages > 1:
            found += [(Part.STAGE, str(stage), self._stage(stage)) for stage in range(program.stages)]
        everyone = np.ones(ranks.shape, bool)
        names = np.array([node.name for node in program.nodes])
        found += [(Part.SEGMENT, name, self._set(everyone, names == name)) for name in program.names if name]
        return found

    def _beyond(self) -> FloatArray:
        """What each rank worked beyond the ideal in a step, [P, M, D] in ns."""
        result = np.zeros(self._measured.ranks.shape)
        for number, node in enumerate(self._measured.program.nodes):
            if not node.is_transfer:
                result[node.stage] += self._excess_of(number)
        return result

    def _excess_of(self, node: int) -> FloatArray:
        """What an operation took beyond its ideal, mean of the steps, [M, D] in ns."""
        result: FloatArray = self._measured.own[node].mean(axis=-1) - self._ideal.own[node]
        return result

    def _costly_links(self) -> list[tuple[str, Sets]]:
        """The links whose messages took the longest beyond their ideal."""
        found: list[tuple[float, str, Sets]] = []
        for (sender, receiver), nodes in self._measured.program.messages.items():
            chosen = np.zeros(len(self._measured.program.nodes), bool)
            chosen[nodes] = True
            cost = np.sum([self._excess_of(node) for node in nodes], axis=0)
            for place in np.argsort(-cost, axis=None)[:MAX_PARTS]:
                member, replica = np.unravel_index(int(place), cost.shape)
                ranks = np.zeros(self._measured.ranks.shape, bool)
                ranks[[sender, receiver], member, replica] = True
                name = ">".join(str(self._measured.ranks[stage, member, replica]) for stage in (sender, receiver))
                found.append((float(cost[member, replica]), name, self._set(ranks, chosen)))
        found.sort(key=lambda one: -one[0])
        return [(name, sets) for _, name, sets in found[:MAX_PARTS]]

    def _costly_hosts(self, beyond: FloatArray) -> list[tuple[str, list[int]]]:
        """The hosts whose ranks took the longest beyond their ideal, where hosts are neither one nor one a rank."""
        own: dict[str, list[int]] = {}
        cost: dict[str, float] = {}
        flat = zip(self._measured.ranks.reshape(-1).tolist(), beyond.reshape(-1).tolist(), strict=True)
        for rank, took in flat:
            host = self._hosts.get(rank)
            if host is not None:
                own.setdefault(host, []).append(rank)
                cost[host] = cost.get(host, 0.0) + took
        if len(own) < 2 or len(own) == self._measured.ranks.size:
            return []
        return [(host, own[host]) for host in sorted(own, key=lambda host: -cost[host])[: self._most]]


def _joined(sets: list[Sets]) -> Sets:
    return Sets(np.concatenate([one.ranks for one in sets]), np.concatenate([one.nodes for one in sets]))
