"""How long standing still is none: one patience for the agents, who notice a stall, and for the judge of a hang.

An agent's times are for its usual `STALL_S`; one that is set otherwise makes all of them longer or shorter with it.
"""

from __future__ import annotations

from ..profiler.vocabulary import SegmentKind

STALL_S = 6.0
"""From so long on an agent takes a rest in work that usually takes far less for a stall, and begins to look: its two
looks and the verdict take some seconds more."""

STUCK_S = 7.0
"""In a job that has run, no segment that usually takes far less is this long without being stuck."""

DATA_S = 15.0
"""Loading data gets this time at least: a shard that changes, a retry or a cold cache takes seconds where a batch takes
milliseconds."""

PATIENCE_S = 30.0
"""What is slow by nature, or was never completed before, or is not in any segment, gets this time at least (or three
steps, if that is more)."""

PROGRAM_S = 300.0
"""What most ranks of the job are in is the program, and no fault of theirs, for half as long as NCCL's collectives wait
by default before they end the job: a verdict after that would find nobody left."""

PROGRAM_TIMES = 20
"""Where it is known what such a phase usually takes it gets so many times that, if that is less."""

USUAL_TIMES = 10
"""Loading data gets so many times what it usually takes; a checkpoint or an evaluation may well be another one."""

PHASES = frozenset({SegmentKind.INIT, SegmentKind.COMPILE, SegmentKind.CHECKPOINT, SegmentKind.EVAL})
"""Work that a program enters once in a while, and that may take long."""


def is_program(inside: int, all_ranks: int) -> bool:
    """Whether so many of a job's ranks, that are in a phase themselves, make it what the program does."""
    return inside > 1 and 2 * inside >= all_ranks
