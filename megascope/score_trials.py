"""The trials of `megascope score`: which faults are put into which simulated jobs, by seed set, kind and magnitude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from .profiler.errors import UsageError
from .trainer.simulator.costs import Costs
from .trainer.simulator.faults import HANG_KINDS, SLOW_KINDS, FaultKind, parse_fault
from .trainer.simulator.job import SimulatedJob

HEALTHY = "healthy"
"""The kind of trials without a fault."""

KINDS = (HEALTHY, *SLOW_KINDS, FaultKind.LOST_HEARTBEATS, *HANG_KINDS)

STEPS = 100
HISTORY_STEPS = 5
"""Steps of a job before it hangs; analysers read what is usual from them."""


class SeedSet(StrEnum):
    """Two sets of seeds and magnitudes that have nothing in common: thresholds are tuned on one alone."""

    TUNE = "tune"
    REPORT = "report"


FIRST_SEED = {SeedSet.TUNE: 1_000, SeedSet.REPORT: 5_000_000}

MAGNITUDES: Mapping[FaultKind, Mapping[SeedSet, tuple[str, ...]]] = {
    FaultKind.SLOW_GPU: {
        SeedSet.TUNE: ("factor=1.2", "factor=1.6", "factor=1.2:segment=backward", "factor=1.12"),
        SeedSet.REPORT: ("factor=1.15", "factor=1.3", "factor=1.3:segment=forward", "factor=2", "factor=1.1"),
    },
    FaultKind.THROTTLING: {
        SeedSet.TUNE: ("factor=1.4:period=10", "factor=1.6:period=6:duty=0.4"),
        SeedSet.REPORT: ("factor=1.3:period=12", "factor=1.5:period=8", "factor=1.8:period=15:duty=0.3"),
    },
    FaultKind.SLOW_HOST: {
        SeedSet.TUNE: ("factor=1.2", "factor=1.5"),
        SeedSet.REPORT: ("factor=1.15", "factor=1.3", "factor=1.7"),
    },
    FaultKind.DEGRADED_NIC: {
        SeedSet.TUNE: ("bandwidth=0.15", "bandwidth=0.3"),
        SeedSet.REPORT: ("bandwidth=0.1", "bandwidth=0.2"),
    },
    FaultKind.GC_DRIFT: {
        SeedSet.TUNE: ("growth_ms=150:every=4", "growth_ms=300:every=6"),
        SeedSet.REPORT: ("growth_ms=100:every=5", "growth_ms=200:every=5"),
    },
    FaultKind.DATA_STALL: {
        SeedSet.TUNE: ("delay_ms=60", "delay_ms=400:every=3"),
        SeedSet.REPORT: ("delay_ms=40", "delay_ms=100:every=2", "delay_ms=300:every=4"),
    },
    FaultKind.STORAGE_STALL: {
        SeedSet.TUNE: ("delay_ms=400:every=3", "delay_ms=1500:every=5"),
        SeedSet.REPORT: ("delay_ms=300:every=3", "delay_ms=1000:every=5"),
    },
    FaultKind.UNEVEN_SEQUENCES: {
        SeedSet.TUNE: ("spread=0.2", "spread=0.4"),
        SeedSet.REPORT: ("spread=0.15", "spread=0.3"),
    },
    FaultKind.UNEVEN_STAGES: {
        SeedSet.TUNE: ("factor=1.2", "factor=1.5"),
        SeedSet.REPORT: ("factor=1.15", "factor=1.3"),
    },
    FaultKind.HOST_STUCK: {
        SeedSet.TUNE: ("segment=forward", "segment=optimizer"),
        SeedSet.REPORT: ("segment=backward", "segment=checkpoint", "segment=forward:microbatch=0"),
    },
    FaultKind.DEAD: {SeedSet.TUNE: ("segment=forward",), SeedSet.REPORT: ("segment=backward", "segment=optimizer")},
    FaultKind.EXCEPTION: {SeedSet.TUNE: ("segment=backward",), SeedSet.REPORT: ("segment=forward",)},
    FaultKind.DEVICE_STUCK: {
        SeedSet.TUNE: ("segment=tp_all_gather",),
        SeedSet.REPORT: ("segment=tp_reduce_scatter", "segment=dp_reduce_scatter"),
    },
    FaultKind.MISMATCH: {
        SeedSet.TUNE: ("segment=tp_reduce_scatter",),
        SeedSet.REPORT: ("segment=dp_reduce_scatter", "segment=tp_all_gather"),
    },
    FaultKind.MISSING_CALL: {
        SeedSet.TUNE: ("segment=tp_all_gather",),
        SeedSet.REPORT: ("segment=dp_reduce_scatter", "segment=tp_reduce_scatter", "segment=dp_all_gather"),
    },
    FaultKind.NETWORK: {
        SeedSet.TUNE: ("segment=dp_all_gather",),
        SeedSet.REPORT: ("segment=dp_reduce_scatter", "segment=tp_all_gather"),
    },
    FaultKind.LIBRARY: {
        SeedSet.TUNE: ("segment=dp_reduce_scatter",),
        SeedSet.REPORT: ("segment=dp_all_gather", "segment=tp_all_gather"),
    },
    FaultKind.INIT: {SeedSet.TUNE: ("",), SeedSet.REPORT: ("", "segment=setup")},
}
"""What else a fault of a kind says, by seed set; kinds that are left out say nothing else."""

FLEET_MAGNITUDES: Mapping[FaultKind, Mapping[SeedSet, tuple[str, ...]]] = {
    FaultKind.SLOW_GPU: {SeedSet.TUNE: ("factor=1.09", "factor=1.12"), SeedSet.REPORT: ("factor=1.1",)},
}
"""The same of jobs of `FLEET_RANKS` or more: a fleet has several slow devices at once, each hardly slower."""

MOST_SLOW_GPUS = 60
"""Slow devices of a fleet: from one to so many, all of the same fault."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulated job: ``fault`` is what is put into it ("" for none), ``looks_at_hangs`` which analyser is asked.

    ``on_rollups``: the store holds rollups and not a single span, as that of a fleet does.
    """

    kind: str
    fault: str
    layout: tuple[tuple[str, int], ...]
    seed: int
    looks_at_hangs: bool
    chunks: int = 1
    on_rollups: bool = False

    def job(self) -> SimulatedJob:
        """The job, without effects and noise."""
        is_hang = self.looks_at_hangs
        first = parse_fault(self.fault).first_step - HISTORY_STEPS if is_hang and self.fault else 0
        steps = HISTORY_STEPS if is_hang else STEPS
        return SimulatedJob(
            layout=dict(self.layout), chunks=self.chunks, steps=steps, first_step=max(first, 0), seed=self.seed,
            costs=COSTS, skew_ms=SKEW_MS, drift_ppm=DRIFT_PPM,
        )  # fmt: skip


SKEW_MS, DRIFT_PPM = 20.0, 2.0
"""Clocks of hosts are off by up to so much, and the store does not say by how much: it has to align them by itself."""

FLEET_RANKS = 4096
"""From here on straggler trials have rollups alone: nobody reads a hundred million raw spans."""

ROLLUPS_SHARE = 1 / 3
"""Share of the straggler trials of smaller jobs that have rollups alone."""

LEAST_STEPS, LEAST_DRIFT_STEPS = 15, 50
"""Steps for which a fault acts, at least; pauses that grow need longer until they are any."""

OPEN_END_SHARE = 0.5
"""Share of the faults that act until the job ends; the others are over before."""

INTERLEAVED_SHARE = 0.25
"""Share of the jobs that run an interleaved schedule."""

COSTS = Costs(
    forward_ns=(10e6,), backward_ns=(20e6,), tp_pairs=1, tp_ns=0.5e6, tp_bytes=2**25, p2p_network_ns=0.7e6,
    p2p_host_ns=0.2e6, p2p_bytes=2**24, reduce_scatter_ns=15e6, reduce_scatter_bytes=2**29, all_gather_ns=8e6,
    all_gather_bytes=2**28, norm_ns=0.2e6, optimizer_ns=5e6, data_ns=3e6, gc_ns=2e6, gc_every_steps=5,
    checkpoint_ns=80e6, checkpoint_every_steps=3,
)  # fmt: skip
"""A step of about a third of a second, twice that if interleaved: only the fault makes the difference."""


def plan_trials(*, ranks: int, trials: int, kinds: Sequence[str] = (), seeds: SeedSet = SeedSet.REPORT) -> list[Trial]:
    """``trials`` jobs of ``ranks`` ranks: the kinds by turns (all if none are named), with other magnitudes each turn.

    Raises UsageError for a kind that there is not, and for a number of ranks that is no layout.
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"There is no kind of fault {', '.join(unknown)}: use {', '.join(KINDS)}.")
    if trials < 1:
        raise UsageError(f"{trials} trials show nothing: ask for at least 1.")
    chosen = tuple(kinds) or KINDS
    layouts = _layouts(ranks)
    return [
        _trial(str(chosen[number % len(chosen)]), number // len(chosen), FIRST_SEED[seeds] + number, seeds, layouts)
        for number in range(trials)
    ]


def _layouts(ranks: int) -> list[tuple[tuple[str, int], ...]]:
    """Layouts of so many ranks over pp 2 to 8 and tp 1 to 8, with at least four replicas and two hosts."""
    found: list[tuple[tuple[str, int], ...]] = [
        (("pp", stages), ("dp", ranks // (stages * width)), ("tp", width))
        for width in (1, 2, 4, 8)
        for stages in (2, 4, 8)
        if ranks >= 16 and ranks % (stages * width) == 0 and ranks // (stages * width) >= 4
    ]
    if not any(dict(layout)["tp"] > 1 for layout in found):
        raise UsageError(f"{ranks} ranks cannot be laid out as pp x dp x tp: use 16 or more, such as 64, 512 or 12288.")
    return found


def _layout(
    kind: str, choice: str, layouts: Sequence[tuple[tuple[str, int], ...]], random: np.random.Generator
) -> tuple[tuple[str, int], ...]:
    """One of the layouts in which the fault can be: tp is drawn first, so that each width is as likely."""
    needs_tp = "segment=tp_" in choice or kind in (FaultKind.ORDER_INVERSION, FaultKind.DIVERGED)
    widths = sorted({dict(one)["tp"] for one in layouts} - ({1} if needs_tp else set()))
    width = widths[int(random.integers(len(widths)))]
    fit = [one for one in layouts if dict(one)["tp"] == width]
    return fit[int(random.integers(len(fit)))]


def _trial(kind: str, turn: int, seed: int, seeds: SeedSet, layouts: list[tuple[tuple[str, int], ...]]) -> Trial:
    random = np.random.default_rng(seed)
    is_fleet = SimulatedJob(layout=dict(layouts[0])).world_size >= FLEET_RANKS
    choices = ("",) if kind == HEALTHY else _choices(FaultKind(kind), seeds, is_fleet)
    choice = choices[turn % len(choices)]
    layout = _layout(kind, choice, layouts, random)
    job = SimulatedJob(layout=dict(layout))
    looks_at_hangs = kind in HANG_KINDS or kind == FaultKind.LOST_HEARTBEATS or (kind == HEALTHY and turn % 2 == 1)
    is_interleaved = random.random() < INTERLEAVED_SHARE and kind != FaultKind.P2P_CYCLE
    share = 1.0 if is_fleet else ROLLUPS_SHARE
    on_rollups = bool(random.random() < share) and not looks_at_hangs
    fault = ""
    if kind != HEALTHY:
        parts = (kind, _place(FaultKind(kind), job, random), choice, _steps(FaultKind(kind), random))
        fault = ":".join(filter(None, parts))
    return Trial(kind, fault, layout, seed, looks_at_hangs, 2 if is_interleaved else 1, on_rollups)


def _choices(kind: FaultKind, seeds: SeedSet, is_fleet: bool) -> tuple[str, ...]:
    """What the faults of a kind say else, by turns."""
    every = MAGNITUDES.get(kind, {}).get(seeds, ("",))
    return FLEET_MAGNITUDES.get(kind, {}).get(seeds, every) if is_fleet else every


def _steps(kind: FaultKind, random: np.random.Generator) -> str:
    """When a fault of a kind acts: it may begin and end anywhere, and may be over before the job is."""
    if kind in HANG_KINDS:
        return f"step={0 if kind == FaultKind.INIT else int(random.integers(8, 200))}"
    if kind is FaultKind.LOST_HEARTBEATS:
        return ""
    least = LEAST_DRIFT_STEPS if kind is FaultKind.GC_DRIFT else LEAST_STEPS
    first = int(random.integers(STEPS - least + 1))
    last = int(random.integers(first + least - 1, STEPS))
    return f"steps={first}-" if random.random() < OPEN_END_SHARE else f"steps={first}-{last}"


def _place(kind: FaultKind, job: SimulatedJob, random: np.random.Generator) -> str:
    """Where a fault of a kind is put, drawn from where it can be."""
    grid = job.grid
    of_host = kind in (FaultKind.SLOW_HOST, FaultKind.STORAGE_STALL, FaultKind.LOST_HEARTBEATS)
    if of_host or (kind is FaultKind.DEGRADED_NIC and random.random() < 0.5):
        return f"host={int(random.integers(grid.hosts))}"
    if kind in (FaultKind.GC_DRIFT, FaultKind.UNEVEN_SEQUENCES):
        return ""
    if kind is FaultKind.UNEVEN_STAGES:
        return f"stage={int(random.integers(grid.stages))}"
    allowed = grid.rank.reshape(-1)
    if kind is FaultKind.DATA_STALL:
        allowed = grid.rank[[0, -1]].reshape(-1)
    if kind is FaultKind.P2P_CYCLE:
        allowed = grid.rank[:-1].reshape(-1)
    if kind is FaultKind.SLOW_GPU and job.world_size >= FLEET_RANKS:
        count = int(np.rint(np.exp(random.uniform(0.0, np.log(MOST_SLOW_GPUS)))))  # few as often as many
        return f"rank={','.join(str(rank) for rank in sorted(random.choice(allowed, count, replace=False).tolist()))}"
    return f"rank={int(random.choice(allowed))}"
