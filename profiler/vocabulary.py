"""The words of the toolkit, as enumerations: segment kinds, clocks, statuses, schedule actions."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class SegmentKind(StrEnum):
    """What a segment spends its time on. Kinds decide which segments are compared and which only wait."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    P2P = "p2p"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    OPTIMIZER = "optimizer"
    GC = "gc"
    EVAL = "eval"
    COMPILE = "compile"
    INIT = "init"
    HOST = "host"


class Clock(StrEnum):
    """Which clock measured a span: the host's, or the device's by CUDA events."""

    HOST = "host"
    DEVICE = "device"


class Status(StrEnum):
    """How far the times of a span can be trusted."""

    OK = "ok"
    UNMEASURED = "unmeasured"
    OPAQUE = "opaque"
    ABORTED = "aborted"
    REJECTED = "rejected"


class ActionKind(StrEnum):
    """One entry of a pipeline stage's schedule."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SEND_FORWARD = "send_forward"
    RECV_FORWARD = "recv_forward"
    SEND_BACKWARD = "send_backward"
    RECV_BACKWARD = "recv_backward"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    OPTIMIZER_STEP = "optimizer_step"


PIPELINE_AXES = ("pp", "pipe", "pipeline")
REPLICA_AXES = ("dp", "data")
"""What stacks call the axis whose index is the stage, and that of the replicas; the first name is ours."""


def stage_axis(axes: Iterable[str]) -> str | None:
    """Which of the axes of a mesh has the stages; None where none has."""
    known = set(axes)
    return next((name for name in PIPELINE_AXES if name in known), None)


# Codes in the binary black box. Append only: the golden file in the tests pins them.
CLOCK_CODES = (Clock.HOST, Clock.DEVICE)
STATUS_CODES = (Status.OK, Status.UNMEASURED, Status.OPAQUE, Status.ABORTED, Status.REJECTED)

WAITING_KINDS = frozenset({SegmentKind.COLLECTIVE, SegmentKind.P2P})
"""Kinds whose duration contains waiting for other ranks; never compared as work."""
