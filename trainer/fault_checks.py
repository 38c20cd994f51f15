"""Checks of a fault against the layout that it is put into: one that could never act is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..profiler.topology import Topology
from .faults import Fault, FaultKind, parse_fault
from .probe import KINDS

if TYPE_CHECKING:
    from .config import TrainConfig

BEFORE_STEPS = frozenset({"setup", "checkpoint_load"})
"""Segments that end before the first step; faults act in steps."""

BESIDE_TRAINING = frozenset({"checkpoint_save", "checkpoint_write", "checkpoint_sync", "checkpoint_rename"})
"""Segments on a thread of their own: a rank can stop or die there, but it is not slowed."""

COLLECTIVES = {
    "tp": ("tp_all_gather", "tp_reduce_scatter", "tp_all_reduce", "tp_broadcast"),
    "dp": ("dp_all_gather", "dp_reduce_scatter"),
}
WORLD_COLLECTIVES = ("world_all_reduce",)


def check_faults(config: TrainConfig) -> Iterator[str]:
    """A sentence for each fault of the configuration that names what its layout does not have."""
    for text in config.fault:
        fault = parse_fault(text)
        for problem in _problems(fault, config):
            yield f"The fault {text!r} {problem}"


def _problems(fault: Fault, config: TrainConfig) -> Iterator[str]:
    world_size = config.topology().world_size
    if outside := [rank for rank in fault.ranks if rank >= world_size]:
        yield f"names rank {outside}, but there are only ranks 0 to {world_size - 1}: name one of them."
        return
    allowed = known_segments(fault.kind, config)
    if unknown := [name for name in fault.segments if name not in allowed]:
        known = f"use {', '.join(allowed)}" if allowed else "one process has no collectives"
        yield f"names the segment {', '.join(unknown)}, where {fault.kind} does not act: {known}."
    if fault.link is not None:
        source, destination = fault.link
        peers = receivers(config.topology(), config.parallel.chunks, source)
        if destination not in peers:
            known = f"use one of {', '.join(map(str, peers))}" if peers else "it sends to no rank"
            yield f"names a link from {source} to {destination}, over which nothing is sent: from {source} {known}."


def known_segments(kind: FaultKind, config: TrainConfig) -> list[str]:
    """Segments in which a fault of a kind can act: collectives of the layout for one that skips, else work."""
    if kind is FaultKind.SKIP_COLLECTIVE:
        topology = config.topology()
        names = [name for axis, names in COLLECTIVES.items() if topology.size(axis) > 1 for name in names]
        return names + list(WORLD_COLLECTIVES if topology.world_size > 1 else ())
    hidden = BEFORE_STEPS | (BESIDE_TRAINING if kind is FaultKind.SLOW else frozenset())
    return [name for name in KINDS if name not in hidden]


def receivers(topology: Topology, chunks: int, rank: int) -> list[int]:
    """Ranks that a rank sends to: its tensor- and data-parallel groups, and its neighbours in the pipeline."""
    peers = {peer for axis in COLLECTIVES for peer in topology.group(axis, rank)}
    line = topology.group("pp", rank)
    stage = line.index(rank)
    peers |= {line[other] for other in (stage - 1, stage + 1) if 0 <= other < len(line)}
    if chunks > 1 and stage in (0, len(line) - 1):
        peers |= {line[0], line[-1]}
    return sorted(peers - {rank})
