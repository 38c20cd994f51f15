"""Builds one rank's parts: groups and channels, chunks with their buckets, the optimizer and the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ..profiler.recorder import AnyRecorder
from .comm import Channel, Funnel
from .config import Backend, TrainConfig
from .dropout import Dropout
from .faults.switches import FaultSwitches
from .flat import FlatChunk
from .hierarchy import Hierarchy, Replicas
from .hosts import Hosts
from .model import LOSS_DTYPES, ModelChunk, Surroundings
from .optim import ShardedOptimizer
from .pipeline import Pipeline
from .probe import Probe
from .ring import Ring
from .schedule import virtual_stage
from .topology import EdgeKind, Mesh, build_mesh, pods


@dataclass(frozen=True, slots=True)
class Engine:
    """What a rank trains with."""

    mesh: Mesh
    hosts: Hosts
    funnel: Funnel
    tp: Channel
    world: Channel
    optimizer: ShardedOptimizer
    pipeline: Pipeline


def build_engine(
    config: TrainConfig, recorder: AnyRecorder, switches: FaultSwitches, probe: Probe, device: torch.device
) -> Engine:
    """Make all of it; a collective call, after the process group was initialised."""
    topology, parallel, model, rank = config.topology(), config.parallel, config.model, dist.get_rank()
    is_staged = device.type == "cuda" and parallel.backend is Backend.GLOO
    mesh_device = "cpu" if is_staged else device.type
    dropout = Dropout(model.dropout, config.train.seed, model.sequence, model.width)
    with probe.span("setup_groups"):
        hosts = Hosts(config, topology)
        pod = hosts.pod()
        mesh = build_mesh(
            topology,
            parallel.chunks,
            mesh_device,
            timeout=timedelta(seconds=parallel.timeout_s),
            ties_ends=model.tied,
            has_ring=parallel.ring,
            pod=pod,
        )
        funnel = Funnel(recorder, switches, device, rank, is_staged=is_staged)
        tp = funnel.channel("tp", topology.group("tp", rank), mesh.groups["tp"])
        dp = _replicas(mesh, funnel, pod)
        world_group = dist.group.WORLD
        assert world_group is not None
        world = funnel.channel("world", range(topology.world_size), world_group)
        ends = None if mesh.ends is None else funnel.channel("pp_ends", sorted(mesh.rank_of_ends()), mesh.ends)
        recorder.group("pp", topology.group("pp", rank))
        around = Surroundings(tp, dropout, _ring(mesh, funnel), config.train.recompute)
    with probe.span("setup_weights"):
        chunks = _chunks(config, mesh, around)
        state = LOSS_DTYPES[model.precision]
        flats = [FlatChunk(chunk, dp, state, parallel) for chunk in chunks]
        optimizer = ShardedOptimizer(flats, tp, world, config.train, probe, ends)
        pipeline = Pipeline(config, mesh, funnel, chunks, flats, probe, dropout)
    return Engine(mesh, hosts, funnel, tp, world, optimizer, pipeline)


def _chunks(config: TrainConfig, mesh: Mesh, around: Surroundings) -> list[ModelChunk]:
    """This rank's parts of the model, with their first weights."""
    parallel, chunks = config.parallel, []
    for number in range(parallel.chunks):
        virtual = virtual_stage(mesh.index("pp"), number, parallel.pp)
        chunks.append(ModelChunk(config.model, virtual, parallel.pp * parallel.chunks, around, parallel.stage_layers))
        chunks[-1].initialise(config.train.seed)
        if config.train.compile:
            chunks[-1].compile(dynamic=False)
    return chunks


def _replicas(mesh: Mesh, funnel: Funnel, pod: int) -> Replicas:
    line = mesh.topology.group("dp", mesh.rank)
    if mesh.pods is None:
        return funnel.channel("dp", line, mesh.groups["dp"])
    inner, outer = (next(ranks for ranks in side if mesh.rank in ranks) for side in pods(line, pod))
    funnel.recorder.group("dp", line)
    return Hierarchy(funnel.channel("dp_pod", inner, mesh.pods[0]), funnel.channel("dp_across", outer, mesh.pods[1]))


def _ring(mesh: Mesh, funnel: Funnel) -> Ring | None:
    edges = {edge: group for edge, group in mesh.edges.items() if edge.kind is EdgeKind.RING}
    ends = {}
    for edge, group in edges.items():
        channel = funnel.channel(str(edge.kind), sorted((edge.source, edge.destination)), group)
        ends["to" if edge.source == mesh.rank else "from"] = channel
    return Ring(mesh.index("tp"), mesh.size("tp"), ends["to"], ends["from"]) if ends else None
