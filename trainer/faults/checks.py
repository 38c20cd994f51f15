"""Checks of a fault against the layout that it is put into: one that could never act is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...profiler.topology import Topology
from .kinds import ALTERING, Fault, FaultKind, parse_fault
from .segments import KINDS

if TYPE_CHECKING:
    from ..config import TrainConfig

BEFORE_STEPS = frozenset(
    {"setup", "setup_groups", "setup_weights", "setup_text", "setup_tokenizer", "setup_tokens"}
    | {"checkpoint_load", "checkpoint_find", "checkpoint_read", "checkpoint_share", "checkpoint_gather"}
)
"""Segments that end before the first step; faults act in steps."""

BESIDE_TRAINING = frozenset(
    {"checkpoint_save", "checkpoint_write", "checkpoint_sync", "checkpoint_rename", "checkpoint_commit"}
)
"""Segments on a thread of their own: a rank can stop or die there, but it is not slowed."""

COLLECTIVES = {
    "tp": ("tp_all_gather", "tp_reduce_scatter", "tp_all_reduce", "tp_broadcast"),
    "dp": ("dp_all_gather", "dp_reduce_scatter"),
}
IN_PODS = tuple(f"dp_{level}_{verb}" for level in ("pod", "across") for verb in ("all_gather", "reduce_scatter"))
"""What takes the place of the collectives over dp where replicas are in pods."""

WORLD_COLLECTIVES = ("world_all_reduce",)
SENDS = ("send_forward", "send_backward")


_NOTHING = {FaultKind.SKIP_SEND: "one pipeline stage sends nothing"}


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
        known = f"use {', '.join(allowed)}" if allowed else _NOTHING.get(fault.kind, "one process has no collectives")
        yield f"names the segment {', '.join(unknown)}, where {fault.kind} does not act: {known}."
    if fault.link is not None:
        source, destination = fault.link
        peers = receivers(config.topology(), config.parallel.chunks, source)
        if destination not in peers:
            known = f"use one of {', '.join(map(str, peers))}" if peers else "it sends to no rank"
            yield f"names a link from {source} to {destination}, over which nothing is sent: from {source} {known}."
    if fault.kind is FaultKind.SLOW_NIC:
        peers = [peer for rank in fault.ranks for peer in receivers(config.topology(), config.parallel.chunks, rank)]
        if set(peers) <= set(fault.ranks):
            yield "names ranks that send to no others: name the ranks of one host of several."
    if problem := _of_layout(fault, config):
        yield problem


def _of_layout(fault: Fault, config: TrainConfig) -> str | None:
    """What the kind of a fault needs of the layout and the ranks, and does not find."""
    topology, parallel = config.topology(), config.parallel
    stage = {rank: topology.coordinates(rank).get("pp", 0) for rank in fault.ranks}
    last = parallel.pp - 1
    if fault.kind is FaultKind.RECEIVE_FIRST and last in stage.values():
        return f"names a rank of the last pipeline stage ({last}), which gets no gradient: name ranks before it."
    if fault.kind is FaultKind.SKIP_SEND:
        bad = last if "send_forward" in fault.segments else 0 if "send_backward" in fault.segments else None
        if bad is not None and parallel.chunks == 1 and bad in stage.values():
            return f"names a rank of pipeline stage {bad}, which sends nothing that way: name ranks of another stage."
    if fault.kind is FaultKind.NAN and any(number != last for number in stage.values()):
        return f"names a rank that computes no loss: name ranks of the last pipeline stage ({last})."
    if fault.kind is FaultKind.SWAP_ORDER and parallel.dp == 1:
        return "has no gradients to reduce over dp, which is 1: raise parallel.dp."
    if fault.kind is FaultKind.REPEAT_STEP:
        replicas = {topology.coordinates(rank).get("dp", 0) for rank in fault.ranks}
        whole = {rank for rank in range(topology.world_size) if topology.coordinates(rank).get("dp", 0) in replicas}
        if parallel.dp == 1 or whole != set(fault.ranks):
            named = ",".join(map(str, sorted(whole)))
            return f"needs all ranks of a data-parallel replica of several: set parallel.dp above 1 and rank={named}."
    return None


def known_segments(kind: FaultKind, config: TrainConfig) -> list[str]:
    """Segments in which a fault of a kind can act: collectives or sends of the layout where it is about those, else
    work."""
    if kind is FaultKind.SKIP_SEND:
        return list(SENDS) if config.topology().size("pp") > 1 else []
    if kind in ALTERING | {FaultKind.SKIP_COLLECTIVE}:
        topology = config.topology()
        collectives = {**COLLECTIVES, "dp": _of_replicas(config)}
        names = [name for axis, names in collectives.items() if topology.size(axis) > 1 for name in names]
        return names + list(WORLD_COLLECTIVES if topology.world_size > 1 else ())
    hidden = BEFORE_STEPS | (BESIDE_TRAINING if kind is FaultKind.SLOW else frozenset())
    return [name for name in KINDS if name not in hidden]


def _of_replicas(config: TrainConfig) -> tuple[str, ...]:
    """Collectives over dp; where hosts or racks decide on pods, those of both."""
    pod = config.parallel.pod
    if isinstance(pod, str):
        return COLLECTIVES["dp"] + IN_PODS
    return IN_PODS if 1 < pod < config.parallel.dp else COLLECTIVES["dp"]


def receivers(topology: Topology, chunks: int, rank: int) -> list[int]:
    """Ranks that a rank sends to: its tensor- and data-parallel groups, and its neighbours in the pipeline."""
    peers = {peer for axis in COLLECTIVES for peer in topology.group(axis, rank)}
    line = topology.group("pp", rank)
    stage = line.index(rank)
    peers |= {line[other] for other in (stage - 1, stage + 1) if 0 <= other < len(line)}
    if chunks > 1 and stage in (0, len(line) - 1):
        peers |= {line[0], line[-1]}
    return sorted(peers - {rank})
