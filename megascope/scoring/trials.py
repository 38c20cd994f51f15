"""The trials of `megascope score`: which faults are put into which simulated jobs, by seed set, kind and magnitude."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..heatmap.windows import FINEST
from ..profiler.errors import UsageError
from ..trainer.simulator.costs import Costs
from ..trainer.simulator.faults import Fault, FaultKind, parse_fault
from ..trainer.simulator.job import SimulatedJob
from .kinds import (
    DEAD_HOST,
    FIRST_SEED,
    FLEET_MAGNITUDES,
    FROM_SPANS,
    GC_UNRECORDED,
    HANG_TRIALS,
    HEALTHY,
    JOB_DATA,
    KINDS,
    MAGNITUDES,
    VARIANTS,
    SeedSet,
)

STEPS = 100
HISTORY_STEPS = 5
"""Steps of a job before it hangs; analysers read what is usual from them."""


MOST_SLOW_GPUS = 60
"""Slow devices of a fleet: one in the first trial, so many in the second, then from one to so many; all alike."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulated job: ``fault`` is what is put into it ("" for none), ``looks_at_hangs`` which analyser is asked.

    ``on_rollups``: the store holds rollups and not a single span, as that of a fleet does; ``leaves_out`` are segments
    that nobody recorded. Of trials of hangs:
    ``in_flight`` operations of a rank may be under way at a time, and the share ``missing`` of the evidence is lost;
    ``reads_results`` as in `Lead`.
    """

    kind: str
    fault: str
    layout: tuple[tuple[str, int], ...]
    seed: int
    looks_at_hangs: bool
    chunks: int = 1
    on_rollups: bool = False
    leaves_out: frozenset[str] = frozenset()
    in_flight: int = 1
    missing: float = 0.0
    reads_results: bool = True

    def job(self) -> SimulatedJob:
        """The job, without effects and noise."""
        is_hang = self.looks_at_hangs
        first = parse_fault(self.fault).first_step - HISTORY_STEPS if is_hang and self.fault else 0
        steps = HISTORY_STEPS if is_hang else STEPS
        return SimulatedJob(
            layout=dict(self.layout), chunks=self.chunks, steps=steps, first_step=max(first, 0), seed=self.seed,
            costs=COSTS, skew_ms=SKEW_MS, drift_ppm=DRIFT_PPM, recv_ahead=RECV_AHEAD if self.in_flight == 1 else 0,
        )  # fmt: skip


IN_FLIGHT, MISSING = 20, 0.01
"""How hard the evidence of a hang is to read, if nothing else is asked for."""

RECV_AHEAD = 2
"""Receives are posted so many compute actions ahead by ranks that wait for each operation; others run far ahead, and
issue each receive when they get to it."""

READS_SHARE = 0.5
"""Share of the jobs whose hosts read the gradient norm of every step, and are not ahead of it."""

SKEW_MS, DRIFT_PPM = 20.0, 2.0
"""Clocks of hosts are off by up to so much, and the store does not say by how much: it has to align them by itself."""

FLEET_RANKS = 4096
"""From here on straggler trials have rollups alone: nobody reads a hundred million raw spans."""

ROLLUPS_SHARE = 1 / 3
"""Share of the straggler trials of smaller jobs that have rollups alone."""

LEAST_STEPS, LEAST_DRIFT_STEPS = 15, 50
"""Steps for which a fault acts, at least; pauses that grow need longer until they are any."""

OPEN_END_SHARE = 0.5
"""Share of the faults that act until the job ends; the others are over before. Pauses that nobody recorded all do:
what they are told by is a spread of launches that has grown in the last third of the steps."""

INTERLEAVED_SHARE = 0.25
"""Share of the jobs that run an interleaved schedule."""

COSTS = Costs(
    forward_ns=(10e6,), backward_ns=(20e6,), tp_pairs=1, tp_ns=0.5e6, tp_bytes=2**25, p2p_network_ns=0.7e6,
    p2p_host_ns=0.2e6, p2p_bytes=2**24, reduce_scatter_ns=15e6, reduce_scatter_bytes=2**29, all_gather_ns=8e6,
    all_gather_bytes=2**28, norm_ns=0.2e6, optimizer_ns=5e6, data_ns=3e6, gc_ns=2e6, gc_every_steps=5,
    checkpoint_ns=80e6, checkpoint_every_steps=3,
)  # fmt: skip
"""A step of about a third of a second, twice that if interleaved: only the fault makes the difference."""


def plan_trials(
    *,
    ranks: int,
    trials: int,
    kinds: Sequence[str] = (),
    seeds: SeedSet = SeedSet.REPORT,
    in_flight: int = IN_FLIGHT,
    missing: float = MISSING,
) -> list[Trial]:
    """``trials`` jobs of ``ranks`` ranks: the kinds by turns (all if none are named), with other magnitudes each turn.

    ``in_flight`` and ``missing``: how hard the evidence of hangs is to read, see `Hardness`.

    Raises UsageError for a kind that there is not, for a number of ranks that is no layout, and for a kind that takes
    spans in jobs of `FLEET_RANKS` or more, among whose kinds it is not.
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"There is no kind of fault {', '.join(unknown)}: use {', '.join(KINDS)}.")
    if trials < 1:
        raise UsageError(f"{trials} trials show nothing: ask for at least 1.")
    unseen = FROM_SPANS if ranks >= FLEET_RANKS else frozenset[str]()
    if refused := unseen.intersection(kinds):
        raise UsageError(
            f"Trials of {', '.join(sorted(refused))} take spans, and jobs of {FLEET_RANKS:,} ranks or more have "
            "rollups alone: ask for fewer ranks."
        )
    chosen = tuple(kinds) or tuple(kind for kind in KINDS if kind not in unseen)
    layouts = _layouts(ranks)
    planned = (
        _trial(str(chosen[number % len(chosen)]), number // len(chosen), FIRST_SEED[seeds] + number, seeds, layouts)
        for number in range(trials)
    )
    return [_as_hard(one, in_flight, missing) if one.looks_at_hangs else one for one in planned]


def looks_like(fault: Fault, steps: int, *, on_rollups: bool = False) -> frozenset[str]:
    """Kinds under which a fault is as well described, in a job of so many steps.

    Throttling that comes back not once, for as long as before, is a device that was slow for a while. So is, on
    rollups, throttling within two neighbouring windows: one stretch over their border has the same steps slow in each.
    """
    if fault.kind is not FaultKind.THROTTLING or fault.period is None:
        return frozenset()
    last = steps - 1 if fault.last_step is None else min(fault.last_step, steps - 1)
    burst = max(round(fault.duty * fault.period), 1)
    is_alone = fault.first_step + fault.period + burst - 1 > last
    slow = [step for step in range(fault.first_step, last + 1) if (step - fault.first_step) % fault.period < burst]
    is_one_stretch = on_rollups and bool(slow) and slow[-1] // FINEST - slow[0] // FINEST <= 1
    return frozenset({FaultKind.SLOW_GPU}) if is_alone or is_one_stretch else frozenset()


def _as_hard(trial: Trial, in_flight: int, missing: float) -> Trial:
    """A trial with evidence so hard to read. In every other job hosts do not wait for the gradient norm."""
    reads_results = in_flight == 1 or bool(np.random.default_rng([trial.seed, 1]).random() < READS_SHARE)
    return replace(trial, in_flight=in_flight, missing=missing, reads_results=reads_results)


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
    if kind == GC_UNRECORDED:  # of as many tensor-parallel ranks one pauses in each step: no launch is late by itself
        widths = [width for width in widths if width < parse_fault(f"{FaultKind.GC_DRIFT}:{choice}").every]
    width = widths[int(random.integers(len(widths)))]
    fit = [one for one in layouts if dict(one)["tp"] == width]
    return fit[int(random.integers(len(fit)))]


def _trial(kind: str, turn: int, seed: int, seeds: SeedSet, layouts: list[tuple[tuple[str, int], ...]]) -> Trial:
    random = np.random.default_rng(seed)
    is_fleet = SimulatedJob(layout=dict(layouts[0])).world_size >= FLEET_RANKS
    choices = ("",) if kind == HEALTHY else _choices(kind, seeds, is_fleet)
    choice = choices[turn % len(choices)]
    layout = _layout(kind, choice, layouts, random)
    job = SimulatedJob(layout=dict(layout))
    looks_at_hangs = kind in HANG_TRIALS or (kind == HEALTHY and turn % 2 == 1)
    is_interleaved = random.random() < INTERLEAVED_SHARE and kind != FaultKind.P2P_CYCLE
    share = 1.0 if is_fleet else ROLLUPS_SHARE
    on_rollups = bool(random.random() < share) and not looks_at_hangs and kind not in FROM_SPANS
    leaves_out = frozenset({"gc"}) if kind == GC_UNRECORDED else frozenset[str]()
    fault = ""
    if kind != HEALTHY:
        place = _place(kind, turn, choice, job, random)
        parts = (VARIANTS.get(kind, kind), place, choice, _steps(kind, choice, random))
        fault = ":".join(filter(None, parts))
    return Trial(kind, fault, layout, seed, looks_at_hangs, 2 if is_interleaved else 1, on_rollups, leaves_out)


def _choices(kind: str, seeds: SeedSet, is_fleet: bool) -> tuple[str, ...]:
    """What the faults of a kind say else, by turns."""
    every = MAGNITUDES.get(kind, {}).get(seeds, ("",))
    return FLEET_MAGNITUDES.get(kind, {}).get(seeds, every) if is_fleet else every


def _steps(kind: str, choice: str, random: np.random.Generator) -> str:
    """When a fault of a kind acts: it may begin and end anywhere, and may be over before the job is."""
    if kind == FaultKind.LOST_HEARTBEATS:
        return ""
    if kind in HANG_TRIALS:
        is_first = kind == FaultKind.INIT or "segment=compile" in choice
        return f"step={0 if is_first else int(random.integers(8, 200))}"
    least = LEAST_DRIFT_STEPS if kind in (FaultKind.GC_DRIFT, GC_UNRECORDED) else LEAST_STEPS
    first = int(random.integers(STEPS - least + 1))
    if kind == GC_UNRECORDED:
        return f"steps={first}-"
    last = int(random.integers(first + least - 1, STEPS))
    return f"steps={first}-" if random.random() < OPEN_END_SHARE else f"steps={first}-{last}"


def _place(kind: str, turn: int, choice: str, job: SimulatedJob, random: np.random.Generator) -> str:
    """Where a fault of a kind is put, drawn from where it can be."""
    grid = job.grid
    of_host = kind in (FaultKind.SLOW_HOST, FaultKind.STORAGE_STALL, FaultKind.LOST_HEARTBEATS, DEAD_HOST)
    if of_host or (kind == FaultKind.DEGRADED_NIC and random.random() < 0.5):
        return f"host={int(random.integers(grid.hosts))}"
    if kind in (FaultKind.GC_DRIFT, GC_UNRECORDED, FaultKind.UNEVEN_SEQUENCES, JOB_DATA):
        return ""
    if kind == FaultKind.UNEVEN_STAGES:
        return f"stage={int(random.integers(grid.stages))}"
    allowed = grid.rank.reshape(-1)
    if kind == FaultKind.DATA_STALL or "segment=data" in choice:
        allowed = grid.rank[[0, -1]].reshape(-1)
    if kind == FaultKind.P2P_CYCLE or "segment=send_forward" in choice:
        allowed = grid.rank[:-1].reshape(-1)
    if "segment=send_backward" in choice:
        allowed = grid.rank[1:].reshape(-1)
    if kind == FaultKind.SLOW_GPU and job.world_size >= FLEET_RANKS:
        drawn = int(np.rint(np.exp(random.uniform(0.0, np.log(MOST_SLOW_GPUS)))))  # few as often as many
        count = {0: 1, 1: MOST_SLOW_GPUS}.get(turn, drawn)
        return f"rank={','.join(str(rank) for rank in sorted(random.choice(allowed, count, replace=False).tolist()))}"
    return f"rank={int(random.choice(allowed))}"
