"""A rank that left out the job's all-reduce and went on is told from ranks an iteration apart, by what all recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from megascope.profiler.topology import Topology, segment_id
from megascope.viz3d.hang import diagnose
from megascope.viz3d.states import Flight
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import MOMENT_NS, SECOND, STEP, Scene
from support.hang_store import write_scene

PAST = 6
MICROBATCHES = 2
STEP_NS = SECOND
REPLICAS, STAGES = Topology.of(pp=2, dp=2), Topology.of(pp=2)

Key = tuple[str, str, int]
"""Name, kind and group of an operation."""


@dataclass
class Record:
    """What ranks have recorded of their operations; those of a step without timings are counted and not recorded."""

    scene: Scene
    untimed: int | None = None
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def number(self, rank: int, group: int) -> int:
        """The next number of a rank in a group."""
        self.numbers[rank, group] = self.numbers.get((rank, group), 0) + 1
        return self.numbers[rank, group]

    def done(self, rank: int, step: int, operations: Sequence[Key], from_ms: int = 0) -> None:
        """The rank has run operations one after the other."""
        for place, (name, kind, group) in enumerate(operations):
            number = self.number(rank, group)
            if step == self.untimed:
                continue
            start = MOMENT_NS - 30 * SECOND - (STEP - step) * STEP_NS + (from_ms + place) * 10**6
            self.rows.append(
                {
                    "rank": rank, "step": step, "segment": segment_id(name, kind, None), "start_ns": start,
                    "duration_ns": 500_000, "self_ns": 500_000, "exposed_ns": 500_000, "group": group,
                    "sequence": number, "size_bytes": 64, "clock": "host", "status": "ok",
                }
            )  # fmt: skip

    def forget_last(self, rank: int, groups: AbstractSet[int]) -> None:
        """The last operation of some groups has ended, and has no record before somebody waits for it."""
        own = [row for row in self.rows if (row["rank"], row["step"]) == (rank, STEP) and row["group"] in groups]
        for row in own[-1:]:
            self.rows.remove(row)

    def stands(self, rank: int, step: int, operations: Sequence[Key]) -> None:
        """The rank has begun operations, and waits for the first of them."""
        flights = []
        for place, (name, kind, group) in enumerate(operations):
            begun = MOMENT_NS - 29 * SECOND + place * 10**6
            peer = next(one for one in self.scene.groups[group].ranks if one != rank) if kind == "p2p" else None
            number = self.number(rank, group)
            flights.append(Flight(name, kind, group, number, peer, begun_ns=begun, size_bytes=64, waiting=not place))
        state = self.scene.states[rank]
        self.scene.states[rank] = replace(state, step=step, flights=tuple(flights))
        for (other, group), number in self.numbers.items():
            if other == rank:
                begun_here = sum(one.group == group for one in flights)
                self.scene.progress(rank, group, number, number - begun_here)

    def tables(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        """Rows of `events`, `segments` and `steps`."""
        names = {
            ("world_all_reduce", "collective"), ("dp_reduce_scatter", "collective"), ("dp_all_gather", "collective"),
            ("send_forward", "p2p"), ("recv_forward", "p2p"), ("send_backward", "p2p"), ("recv_backward", "p2p"),
        }  # fmt: skip
        known = sorted(names)
        past = [(rank, step) for step in range(STEP - PAST, STEP) for rank in self.scene.states]
        return {
            "events": {key: [row[key] for row in self.rows] for key in self.rows[0]},
            "segments": {
                "segment": [segment_id(name, kind, None) for name, kind in known],
                "name": [name for name, _ in known],
                "kind": [kind for _, kind in known],
            },
            "steps": {
                "rank": [rank for rank, _ in past],
                "step": [step for _, step in past],
                "start_ns": [MOMENT_NS - 30 * SECOND - (STEP - step) * STEP_NS for _, step in past],
                "duration_ns": [STEP_NS] * len(past),
            },
        }


def program(scene: Scene, rank: int) -> dict[str, list[Key]]:
    """The parts of a rank's step: its micro-batches, the reduction, the norm, the all-gathers."""
    mesh = scene.mesh
    line, replicas = mesh.group("pp", rank), len(mesh.group("dp", rank)) if "dp" in mesh.names else 1
    forward, backward = (scene.group(kind, line) for kind in ("pp_forward", "pp_backward"))
    if rank == line[0]:
        messages: list[Key] = [("send_forward", "p2p", forward), ("recv_backward", "p2p", backward)]
    else:
        messages = [("recv_forward", "p2p", forward), ("send_backward", "p2p", backward)]
    own = scene.of("dp", rank) if replicas > 1 else 0
    return {
        "compute": messages * MICROBATCHES,
        "reduce": [("dp_reduce_scatter", "collective", own)] * 2 if replicas > 1 else [],
        "norm": [("world_all_reduce", "collective", scene.group("world", range(mesh.world_size)))],
        "gather": [("dp_all_gather", "collective", own)] * 2 if replicas > 1 else [],
    }


def judged(
    root: Path, mesh: Topology, untimed: int | None, evaluated: int | None, skipping: Callable[[Record, int], None]
) -> tuple[State, list[tuple[CulpritKind, tuple[int, ...], str | None]]]:
    """All run to the norm of this step; ``skipping`` takes the record of rank 1, which has not come to it."""
    scene = Scene(mesh)
    record = Record(scene, untimed)
    for rank in scene.states:
        parts = program(scene, rank)
        whole = [*parts["compute"], *parts["reduce"], *parts["norm"], *parts["gather"]]
        sends = {group for name, _, group in parts["compute"] if name.startswith("send")}
        for step in range(STEP - PAST, STEP):
            record.done(rank, step, [*whole, *(parts["norm"] if step == evaluated else [])])
        record.done(rank, STEP, [*parts["compute"], *parts["reduce"]])
        if rank != 1:
            record.stands(rank, STEP, parts["norm"])
            record.forget_last(rank, sends)
    skipping(record, 1)
    store = write_scene(root, scene.looks(), more=record.tables())
    verdict = diagnose(store, store.attempt(), now_ns=MOMENT_NS)
    return verdict.verdict, [(one.kind, one.ranks, one.segment) for one in verdict.culprits]


LEFT_OUT = [(CulpritKind.MISSING_CALL, (1,), "world_all_reduce")]


@pytest.mark.parametrize(("untimed", "evaluated"), [(None, None), (STEP, None), (STEP - 1, STEP - 2)])
def test_a_rank_that_waits_for_its_weights_in_the_next_step(
    tmp_path: Path, untimed: int | None, evaluated: int | None
) -> None:
    """Its partner in the all-gather stands in the norm: both wait for each other, in different steps."""

    def goes_on(record: Record, rank: int) -> None:
        record.stands(rank, STEP + 1, program(record.scene, rank)["gather"])

    assert judged(tmp_path, REPLICAS, untimed, evaluated, goes_on) == (State.HANG, LEFT_OUT)


@pytest.mark.parametrize("untimed", [None, STEP])
def test_a_rank_that_waits_for_a_message_of_the_next_step(tmp_path: Path, untimed: int | None) -> None:
    """Stages alone: nobody holds the last one up before it waits for what the first one sends in the next step."""

    def goes_on(record: Record, rank: int) -> None:
        record.stands(rank, STEP + 1, program(record.scene, rank)["compute"][:1])

    assert judged(tmp_path, STAGES, untimed, None, goes_on) == (State.HANG, LEFT_OUT)
