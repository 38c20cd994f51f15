"""Programs with made-up durations for tests of the replay, and a replay in plain Python to compare with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import strategies as st

from megascope.heatmap.peers import FloatArray
from megascope.heatmap.whatif.measured import Measured
from megascope.heatmap.whatif.program import Meeting, Node, Program
from megascope.heatmap.whatif.schedule import Action, match
from megascope.trainer.schedule import as_rows, training_schedule

TRANSFERS = ("send_forward", "recv_forward", "send_backward", "recv_backward", "reduce_scatter")


def actions(stages: int, chunks: int, microbatches: int, *, shards: bool) -> list[Action]:
    """The trainer's schedule, as a store would hand it out."""
    rows = as_rows(training_schedule(stages, chunks, microbatches, shards=shards))
    return [
        Action(
            row["stage"],
            row["position"],
            row["action"],
            row["chunk"],
            row["microbatch"],
            tuple((stage, position) for stage, position in row["depends_on"]),
        )
        for row in rows
        if row["action"] != "all_gather"
    ]


def program_of(stages: int, chunks: int, microbatches: int, members: int, replicas: int) -> Program:
    """The program of that schedule, with the names of the actions for nodes."""
    found = actions(stages, chunks, microbatches, shards=replicas > 1)
    nodes = [Node(one.stage, one.kind, one.chunk, one.microbatch, one.kind in TRANSFERS) for one in found]
    matched = match(found, nodes)
    return Program.of(matched.nodes, matched.after, _meetings(nodes, matched.pairs, members, replicas))


def _meetings(nodes: list[Node], pairs: list[tuple[int, int]], members: int, replicas: int) -> Iterable[Meeting]:
    yield from (Meeting(pair) for pair in pairs)
    for number, node in enumerate(nodes):
        if node.name == "reduce_scatter":
            yield Meeting((number,), replicas=(tuple(range(replicas)),))
        elif not node.is_transfer and members > 1:
            yield Meeting((number,), members=True)


def measured_of(program: Program, own: FloatArray, shared: FloatArray | None, first_step: int = 0) -> Measured:
    """Durations [N, M, D, S] of consecutively numbered ranks and steps."""
    _, members, replicas, steps = own.shape
    ranks = np.arange(program.stages * members * replicas).reshape(program.stages, members, replicas)
    return Measured(program, own, shared, ranks, first_step + np.arange(steps), np.zeros(steps))


@st.composite
def jobs(draw: st.DrawFn) -> Measured:
    """Small jobs of any shape."""
    stages, chunks = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2)]))
    microbatches = draw(st.integers(1, 2)) * (stages if chunks > 1 else 1)
    members, replicas, steps = (draw(st.integers(1, 3)) for _ in range(3))
    program = program_of(stages, chunks, microbatches, members, replicas)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 0.1, 1.0]))
    own = 100 * random.lognormal(0, spread, (len(program.nodes), members, replicas, steps))
    own *= np.array([0.1 if node.is_transfer else 1.0 for node in program.nodes])[:, np.newaxis, np.newaxis, np.newaxis]
    shared = None if members == 1 else 10 * random.lognormal(0, spread, (len(program.nodes), 1, replicas, steps))
    return measured_of(program, own, shared)


def plain_step_time(measured: Measured, step: int) -> float:
    """Length of one step, one operation after another."""
    program, (_, members, replicas, _) = measured.program, measured.own.shape
    ends: dict[tuple[int, int, int], float] = {}
    for meeting in program.meetings:
        lanes = [(member, replica) for member in range(members) for replica in range(replicas)]
        ready = {
            (node, *lane): max((ends[one, *lane] for one in program.after[node]), default=0.0)
            for node in meeting.nodes
            for lane in lanes
        }
        for node in meeting.nodes:
            for member, replica in lanes:
                met = [
                    begin
                    for (_, m, d), begin in ready.items()
                    if (meeting.members or m == member) and (bool(meeting.replicas) or d == replica)
                ]
                took = float(measured.own[node, member, replica, step])
                if meeting.members and measured.shared is not None:
                    took = float(measured.own[node, :, replica, step].max() + measured.shared[node, 0, replica, step])
                ends[node, member, replica] = max(met) + took
    return max(ends.values())
