"""What the spans of a Kineto trace are executions of: names, kinds and axes of segments."""

from __future__ import annotations

import re

from ....profiler.vocabulary import Clock, SegmentKind
from ..columns import SegmentInfo
from .file import Collective, Where

HOST_STREAM = "host"

_SOFTWARE = ("gloo:", "mpi:", "ucc:")
"""Annotations of collectives that run on the CPU: the span is the operation itself."""

_WORD = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]+)")
_PLAIN = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
    "sendrecv": "send_recv", "reduce": "reduce", "alltoall": "all_to_all", "generic": "collective",
    "_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter", "all_to_allv": "all_to_all",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "allreduce_coalesced": "all_reduce",
}  # fmt: skip


def segment_of(name: str, where: Where, *, has_device: bool) -> SegmentInfo:
    if where in (Where.KERNEL, Where.COPY):
        return SegmentInfo(name, SegmentKind.COMPUTE, None, "", Clock.DEVICE)
    if name.startswith(_SOFTWARE):
        return SegmentInfo(name.partition(":")[2], SegmentKind.COLLECTIVE, None, HOST_STREAM, Clock.HOST)
    kind = SegmentKind.HOST if has_device else SegmentKind.COMPUTE
    if name.startswith("Optimizer."):
        kind = SegmentKind.OPTIMIZER
    elif name.startswith("enumerate(DataLoader)"):
        kind = SegmentKind.DATA
    elif name.startswith("nccl:"):  # its launch, not the operation
        kind = SegmentKind.HOST
    return SegmentInfo(name, kind, None, HOST_STREAM, Clock.HOST)


def communication_segment(kernel: str, one: Collective) -> SegmentInfo:
    word = one.name or next(iter(_WORD.findall(kernel)), "collective")
    name = _PLAIN.get(word.lower(), word.lower())
    kind = SegmentKind.P2P if one.name is not None and name in ("send", "recv") else SegmentKind.COLLECTIVE
    return SegmentInfo(name, kind, axis_of(one.description), "", Clock.DEVICE)


_AXES = (("tensor", "tp"), ("pipeline", "pp"), ("expert", "ep"), ("context", "cp"), ("data", "dp"))


def axis_of(description: str | None) -> str | None:
    """The axis that a group's description means; ``world`` for the default group, the text itself for others."""
    if description is None or description == "undefined":
        return None
    if description == "default_pg":
        return "world"
    text = description.lower()
    return next((axis for word, axis in _AXES if word in text), text)
