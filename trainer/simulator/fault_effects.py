"""From a fault to what the engine asks for: factors on work and transfers, and pauses, by rank and step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...profiler.errors import UsageError
from ...profiler.topology import stable_id
from .effects import BoolArray, Effect, FloatArray, IntArray, Transfer
from .faults import Fault, FaultKind, as_row
from .job import SimulatedJob

NS_PER_MS = 1e6
COMPUTE_SEGMENTS = ("forward", "backward")
GROWTH_STEPS = 100
"""After so many steps a drifting pause has grown by ``growth_ms``."""

_STALLS = {FaultKind.GC_DRIFT: "gc", FaultKind.DATA_STALL: "data", FaultKind.STORAGE_STALL: "checkpoint"}
_SLOW_COMPUTE = (FaultKind.SLOW_GPU, FaultKind.THROTTLING, FaultKind.SLOW_HOST, FaultKind.UNEVEN_STAGES)


def effect_of(fault: Fault) -> Effect:
    """The effect of a fault that slows a job down, or hides heartbeats. Raises UsageError for one that hangs it."""
    if fault.kind in _SLOW_COMPUTE:
        return SlowCompute(fault)
    if fault.kind is FaultKind.DEGRADED_NIC:
        return SlowTransfers(fault)
    if fault.kind in _STALLS:
        return Pauses(fault)
    if fault.kind is FaultKind.UNEVEN_SEQUENCES:
        return UnevenInput(fault)
    if fault.kind is FaultKind.LOST_HEARTBEATS:
        return LostHeartbeats(fault)
    raise UsageError(f"The fault {fault.text!r} makes a job hang: it has no effect on the speed of a job.")


def carriers(fault: Fault, job: SimulatedJob) -> tuple[int, ...]:
    """Ranks that carry a fault: those it names, or all of its host or stage; of one that names none, all ranks."""
    if fault.ranks:
        return fault.ranks
    if fault.host is not None:
        return tuple(job.ranks_of_host(fault.host))
    if fault.stage is not None:
        return tuple(sorted(job.grid.rank[fault.stage].reshape(-1).tolist()))
    return tuple(range(job.world_size))


def check_fault(fault: Fault, job: SimulatedJob) -> None:
    """Raise UsageError for a fault that the job has no place for, or that could never act in it."""
    for problem in _problems(fault, job):
        raise UsageError(f"The fault {fault.text!r} {problem}.")


def _problems(fault: Fault, job: SimulatedJob) -> Iterator[str]:
    grid, world = job.grid, job.world_size
    if fault.ranks and max(fault.ranks) >= world:
        yield f"names rank {max(fault.ranks)}, but there are only ranks 0 to {world - 1}: name one of them"
    elif fault.host is not None and fault.host >= grid.hosts:
        yield f"names host {fault.host}, but there are only hosts 0 to {grid.hosts - 1}: name one of them"
    elif fault.stage is not None and fault.stage >= grid.stages:
        yield f"names stage {fault.stage}, but there are only stages 0 to {grid.stages - 1}: name one of them"
    elif fault.kind is FaultKind.INIT and fault.first_step != job.first_step:
        yield f"acts before the first step, which is {job.first_step}: give step={job.first_step}"
    elif fault.is_hang and not job.first_step <= fault.first_step <= job.last_step + 1:
        yield f"acts in no step of {job.first_step} to {job.last_step + 1}: give another step"
    elif not fault.is_hang:
        yield from _without_effect(fault, job)


def _without_effect(fault: Fault, job: SimulatedJob) -> Iterator[str]:
    """Why a fault that slows could not act in the job."""
    ranks = np.array(carriers(fault, job))
    if fault.kind is FaultKind.UNEVEN_STAGES and job.grid.stages == 1:
        yield "needs several stages: set pp above 1"
    if fault.kind is FaultKind.DATA_STALL and not np.isin(job.grid.stage[ranks], (0, job.grid.stages - 1)).any():
        yield "names no rank that loads data: name one of the first or the last stage"
    if fault.kind is FaultKind.DEGRADED_NIC and job.grid.hosts == 1:
        yield "needs several hosts: nothing goes over the network on one"
    if fault.segment is not None and fault.segment not in COMPUTE_SEGMENTS:
        yield f"names the segment {fault.segment}: use {' or '.join(COMPUTE_SEGMENTS)}, or leave it out for both"
    if fault.first_step > job.last_step or (fault.last_step is not None and fault.last_step < job.first_step):
        yield f"acts in no step of {job.first_step} to {job.last_step}: give other steps"


def check_beside(fault: Fault, hang: Fault) -> None:
    """Raise UsageError for a fault that never acts in a job which hangs: it would be a truth that nothing shows."""
    if fault.kind is FaultKind.LOST_HEARTBEATS:
        if fault.first_step <= hang.first_step and (fault.last_step is None or fault.last_step >= hang.first_step):
            return
        why = f"acts beside none of the heartbeats, which are those after the hang in step {hang.first_step}"
        raise UsageError(f"The fault {fault.text!r} {why}: let its steps contain that one.")
    if fault.first_step >= hang.first_step:
        why = f"begins in step {fault.first_step}, but the job hangs in step {hang.first_step}: let it begin before"
        raise UsageError(f"The fault {fault.text!r} {why}.")


def fault_rows(faults: Sequence[Fault], job: SimulatedJob) -> list[dict[str, Any]]:
    """Rows of the table ``faults`` for what was put into a job that only gets slow."""
    return [
        as_row(
            fault,
            ranks=carriers(fault, job),
            host=_host_of(fault, job),
            link=_link_of(fault, job),
            segment=_STALLS.get(fault.kind),
        )
        for fault in faults
    ]


def _host_of(fault: Fault, job: SimulatedJob) -> str | None:
    """The host that carries a fault; that of a NIC is the host that it is in."""
    if fault.host is None and fault.kind is FaultKind.DEGRADED_NIC:
        hosts = {int(job.grid.host[rank]) for rank in fault.ranks}
        return job.host_name(hosts.pop()) if len(hosts) == 1 else None
    return None if fault.host is None else job.host_name(fault.host)


def _link_of(fault: Fault, job: SimulatedJob) -> str | None:
    """The link of a degraded NIC: the one from its host to the network."""
    host = _host_of(fault, job) if fault.kind is FaultKind.DEGRADED_NIC else None
    return None if host is None else f"{host}>network"


def _covered(fault: Fault, steps: IntArray) -> BoolArray:
    """In which steps a fault acts: within its first and last, in its rhythm."""
    since = steps - fault.first_step
    inside = (since >= 0) & (steps <= (np.iinfo(np.int64).max if fault.last_step is None else fault.last_step))
    if fault.period is not None:
        inside &= since % fault.period < max(round(fault.duty * fault.period), 1)
    covered: BoolArray = inside & (since % fault.every == 0)
    return covered


@dataclass(frozen=True, slots=True)
class SlowCompute(Effect):
    """A slow or throttled GPU, a slow host, or a stage with more work: factors on forward and backward."""

    fault: Fault

    def compute_factor(self, job: SimulatedJob, steps: IntArray, segment: str) -> FloatArray | None:
        """See `Effect`."""
        fault, covered = self.fault, _covered(self.fault, steps)
        chosen = COMPUTE_SEGMENTS if fault.segment is None else (fault.segment,)
        if segment not in chosen or not covered.any():
            return None
        factor = np.ones((job.world_size, len(steps)))
        factor[np.ix_(np.array(carriers(fault, job)), covered)] = fault.factor
        return factor


@dataclass(frozen=True, slots=True)
class SlowTransfers(Effect):
    """A NIC (of one rank, or all of a host's) that gives a part of its bandwidth: what leaves the host is slow.

    Its bytes take longer, and its latency is as it was.
    """

    fault: Fault

    def transfer_factor(self, job: SimulatedJob, steps: IntArray, transfer: Transfer) -> FloatArray | None:
        """See `Effect`."""
        covered = _covered(self.fault, steps)
        ranks = np.array(carriers(self.fault, job))
        touched = np.isin(transfer.sources, ranks)
        if transfer.destinations is not None:
            touched |= np.isin(transfer.destinations, ranks)
        touched &= transfer.crosses_hosts
        if not (touched.any() and covered.any()):
            return None
        slower = 1.0 + ((self.fault.factor or 1.0) - 1.0) * job.costs.bytes_share(transfer.segment)
        factor: FloatArray = np.where(touched[:, None] & covered[None, :], slower, 1.0)
        return factor


@dataclass(frozen=True, slots=True)
class Pauses(Effect):
    """Pauses of the host: a data loader or a storage that stalls, or garbage collections that take longer and longer.

    Garbage is collected by each rank in steps of its own (one in ``every``), so that ranks pause at different times.
    """

    fault: Fault

    def stall_ns(self, job: SimulatedJob, steps: IntArray, segment: str) -> FloatArray | None:
        """See `Effect`."""
        fault = self.fault
        if segment != _STALLS[fault.kind]:
            return None
        result = np.zeros((job.world_size, len(steps)))
        ranks = np.array(carriers(fault, job))
        if fault.kind is FaultKind.GC_DRIFT:
            inside = _covered(
                Fault(text="", kind=fault.kind, first_step=fault.first_step, last_step=fault.last_step), steps
            )
            own = ranks * 2_654_435_761 % 2**32  # spreads the ranks' own steps (Knuth's multiplicative hash)
            due = (steps[None, :] + own[:, None]) % fault.every == 0
            grown = (fault.growth_ms or 0.0) * NS_PER_MS * (steps - fault.first_step) / GROWTH_STEPS
            result[ranks] = np.where(due & inside[None, :], grown[None, :], 0.0)
        else:
            result[np.ix_(ranks, _covered(fault, steps))] = (fault.delay_ms or 0.0) * NS_PER_MS
        return result if result.any() else None


@dataclass(frozen=True, slots=True)
class UnevenInput(Effect):
    """Micro-batches of different cost: each replica's are log-normal around the mean, drawn anew in every step."""

    fault: Fault

    def microbatch_factor(self, job: SimulatedJob, steps: IntArray, segment: str) -> FloatArray | None:
        """See `Effect`; forward and backward of a micro-batch have the same factor."""
        if segment not in COMPUTE_SEGMENTS or not _covered(self.fault, steps).any():
            return None
        return self._factors(job, steps)

    def tokens_factor(self, job: SimulatedJob, steps: IntArray) -> FloatArray | None:
        """See `Effect`; what a micro-batch costs goes with its tokens."""
        return None if self.fault.tokens is None else self._factors(job, steps).mean(axis=0)

    def _factors(self, job: SimulatedJob, steps: IntArray) -> FloatArray:
        """Cost of every micro-batch, [M, G, S]."""
        covered = _covered(self.fault, steps)
        spread, shape = self.fault.spread or 0.0, (job.microbatches, job.grid.replicas)
        factor = np.ones((*shape, len(steps)))
        for place in np.flatnonzero(covered):
            seed = stable_id("uneven-sequences", str(job.seed), str(steps[place]))
            factor[:, :, place] = np.random.default_rng(seed).lognormal(-(spread**2) / 2, spread, shape)
        return factor


@dataclass(frozen=True, slots=True)
class LostHeartbeats(Effect):
    """An agent that reports nothing for a while, of ranks that go on as ever."""

    fault: Fault

    def loses_heartbeat(self, job: SimulatedJob, steps: IntArray) -> BoolArray | None:
        """See `Effect`."""
        covered = _covered(self.fault, steps)
        lost = np.zeros((job.world_size, len(steps)), bool)
        lost[np.ix_(np.array(carriers(self.fault, job)), covered)] = True
        return lost if lost.any() else None
