"""The truth of a simulated hang is in its evidence: the head of every rank's stream leads from the victims to it.

A device is held by the first operation that it was given and has not completed (a send holds nobody). Whoever has that
operation at its head too is there; the other members are waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from megascope.scoring.kinds import HANG_TRIALS, SeedSet
from megascope.scoring.trials import plan_trials
from megascope.trainer.simulator.faults import HELD_UP_KINDS, FaultKind, parse_fault
from megascope.trainer.simulator.groups import Groups
from megascope.trainer.simulator.hangs.ahead import Lead
from megascope.trainer.simulator.hangs.flights import Channels, flights_of, progress_of
from megascope.trainer.simulator.hangs.hangs import HangScene, hang_scene

Row = Mapping[str, Any]
KINDS = sorted(str(kind) for kind in HANG_TRIALS - {FaultKind.LOST_HEARTBEATS, *HELD_UP_KINDS})
NOT_THERE = {"gone", "stopped"}


@dataclass(frozen=True, slots=True)
class Heads:
    """The first operation in flight of every rank that is there, what all have completed, and who is in which group."""

    head: Mapping[int, Row]
    completed: Mapping[int, Mapping[int, int]]
    members: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, scene: HangScene) -> Heads:
        channels, look, world = Channels.of(scene.job), scene.final(), scene.job.world_size
        flights = flights_of(scene, channels, look).lists(np.zeros(world, np.int64)).to_pylist()
        away = {*scene.plan.dark, *scene.plan.absent}
        away |= {rank for rank, state in scene.plan.states.items() if state in NOT_THERE}
        held = {rank: [one for one in row if _holds(one)] for rank, row in enumerate(flights) if rank not in away}
        progress = progress_of(scene, channels, look).to_pylist()
        tables = (rows.to_pylist() for rows in Groups(scene.job).rows())
        return cls(
            {rank: row[0] for rank, row in held.items() if row},
            {rank: {one["group"]: one["completed"] for one in row} for rank, row in enumerate(progress)},
            {row["group"]: tuple(row["ranks"]) for rows in tables for row in rows},
        )

    def has_passed(self, rank: int, one: Row) -> bool:
        return bool(self.completed[rank].get(one["group"], 0) >= one["sequence"])

    def waits_for(self, rank: int) -> set[int]:
        one = self.head.get(rank)
        if one is None:
            return set()
        if one["kind"] == "p2p":
            return {one["peer"]}
        return {
            other for other in self.members[one["group"]]
            if other != rank and not self.has_passed(other, one) and not self.is_in(other, one)
        }  # fmt: skip

    def is_in(self, rank: int, one: Row) -> bool:
        head = self.head.get(rank)
        return head is not None and (head["group"], head["sequence"]) == (one["group"], one["sequence"])

    def left_behind(self) -> set[int]:
        """Ranks whose peers have completed the collective that they are in."""
        return {
            rank for rank, one in self.head.items()
            if one["kind"] == "collective" and any(self.has_passed(other, one) for other in self.members[one["group"]])
        }  # fmt: skip


def _holds(one: Row) -> bool:
    return one["kind"] == "collective" or bool(one["kind"] == "p2p" and one["segment"].startswith("recv"))


def reachable(edges: Mapping[int, Iterable[int]], start: int) -> set[int]:
    seen, todo = {start}, [start]
    while todo:
        for other in edges[todo.pop()]:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", SeedSet)
def test_whoever_waits_waits_for_those_to_blame(kind: str, seeds: SeedSet) -> None:
    """From every rank that is held a chain of waits ends at the truth, or in an operation that the truth is in."""
    for trial in plan_trials(ranks=16, trials=8, kinds=[kind], seeds=seeds):
        scene = hang_scene(trial.job(), parse_fault(trial.fault), lead=Lead(trial.in_flight, trial.reads_results))
        heads, truth = Heads.of(scene), set(scene.plan.truth)
        if kind == FaultKind.DEVICE_STUCK:
            assert heads.left_behind() == truth
            continue
        assert not heads.left_behind()
        edges = {rank: heads.waits_for(rank) for rank in range(scene.job.world_size)}
        ends = {rank for rank in edges if all(rank in reachable(edges, other) for other in reachable(edges, rank))}
        joined = [heads.head[rank] for rank in truth if rank in heads.head]
        allowed = truth | {rank for rank in ends if any(heads.is_in(rank, one) for one in joined)}
        for rank in heads.head:
            assert reachable(edges, rank) & ends & allowed, (trial, rank)
