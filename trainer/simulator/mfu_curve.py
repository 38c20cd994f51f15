"""MFU of published models from hundreds to a hundred thousand GPUs, with each technique on and off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...profiler.errors import UsageError
from .config import SimulatedModel
from .engine import simulate_lengths
from .job import SimulatedJob
from .published import GAINS, POINTS, PublishedPoint
from .techniques import ASSUMPTIONS, CLUSTER, MEANING, Technique, Work, work_of

Progress = Callable[[int, int], None]

ALL = frozenset(Technique)
NONE: frozenset[Technique] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model with its layout. ``sequences`` of a step at a number of replicas come from `batch`."""

    name: str
    model: SimulatedModel
    heads: int
    tp: int
    pp: int
    chunks: int
    gpus: tuple[int, ...]
    scaling: str
    batch: Callable[[int], int]

    def layout(self, gpus: int) -> dict[str, int]:
        """Axes and sizes for so many GPUs. Raises UsageError where they make no whole replicas."""
        replica = self.tp * self.pp
        if gpus < replica or gpus % replica:
            raise UsageError(
                f"{gpus} GPUs are no whole replicas of tp {self.tp} x pp {self.pp}: give a multiple of {replica}."
            )
        return {"pp": self.pp, "dp": gpus // replica, "tp": self.tp}


def _batch_175(replicas: int) -> int:
    """768 sequences up to 16 replicas, 6,144 above, and at least one micro-batch a stage."""
    wanted = 768 if replicas <= 16 else 6144
    per_replica = max(8, wanted // replicas // 8 * 8)
    return per_replica * replicas


FAMILIES = {
    "175b": Family(
        name="175b", model=SimulatedModel(layers=96, width=12288, vocabulary=51200, sequence=2048), heads=96,
        tp=8, pp=8, chunks=6, gpus=(256, 512, 1024, 3072, 6144, 12288, 49152, 99968),
        scaling="768 sequences a step up to 1,024 GPUs, 6,144 above, and at least 8 a replica (pp 8 needs as many)",
        batch=_batch_175,
    ),
    "530b": Family(
        name="530b", model=SimulatedModel(layers=105, width=20480, vocabulary=51200, sequence=2048), heads=128,
        tp=8, pp=35, chunks=3, gpus=(280, 2240, 11200, 100240),
        scaling="280 sequences a replica: as many sequences in a step as GPUs",
        batch=lambda replicas: 280 * replicas,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """MFU (0 to 1) at a number of GPUs: without any technique, with all, and what each one does.

    ``alone``: MFU with it alone, minus none. ``without``: MFU with all, minus all but it. ``difference``: by published
    system, ours minus theirs.
    """

    gpus: int
    layout: dict[str, int]
    sequences: int
    step_s_none: float
    step_s_all: float
    mfu_none: float
    mfu_all: float
    alone: dict[str, float]
    without: dict[str, float]
    published: dict[str, float]
    difference: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """What one published step of an ablation adds, ours and theirs, in points of MFU (0 to 1)."""

    techniques: tuple[str, ...]
    gain: float
    published: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The whole: assumptions, the meaning of each technique, points, and the ladder at the first point."""

    schema: int = 1
    model: str
    scaling: str
    chunks: int
    assumptions: tuple[str, ...] = ASSUMPTIONS
    techniques: dict[str, str] = field(default_factory=lambda: {str(one): MEANING[one] for one in Technique})
    points: tuple[CurvePoint, ...]
    ladder_gpus: int
    ladder: tuple[LadderStep, ...]
    source: str


SOURCE = (
    "Jiang et al., MegaScale, NSDI '24: points of MFU as retold in summaries of the paper; Korthikanti et al. 2022, "
    "abstract: Megatron-LM's of the 530B model; layouts ours."
)


class Sweep:
    """Computes points of one model; equal work is simulated once."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._known: dict[tuple[Work, int], float] = {}

    def step_ns(self, gpus: int, on: Collection[Technique]) -> float:
        """Length of a step in ns."""
        family, layout = self.family, self.family.layout(gpus)
        microbatches = family.batch(layout["dp"]) // layout["dp"]
        work = work_of(family.model, family.heads, layout, microbatches=microbatches, chunks=family.chunks, on=on)
        # Only what differs decides: the length does not depend on what a step is worth.
        work = replace(work, costs=replace(work.costs, tokens_per_step=None, flops_per_step=None))
        if (work, layout["dp"]) not in self._known:
            self._known[work, layout["dp"]] = length_ns(work, family, layout["dp"])
        return self._known[work, layout["dp"]]

    def sequences(self, gpus: int, on: Collection[Technique]) -> int:
        """Sequences in a step."""
        dp = self.family.layout(gpus)["dp"]
        factor = 4 if Technique.LARGE_BATCH in on else 1
        return self.family.batch(dp) * factor

    def mfu(self, gpus: int, on: Collection[Technique]) -> float:
        """Model FLOP/s utilization, 0 to 1."""
        model = self.family.model
        flops = model.flops_per_token() * model.sequence * self.sequences(gpus, on)
        return flops / (self.step_ns(gpus, on) / 1e9) / (gpus * CLUSTER.peak_tflops * 1e12)


def length_ns(work: Work, family: Family, replicas: int) -> float:
    """Length of a step of alike replicas, ns.

    Without noise all replicas and all tensor-parallel ranks are alike, so two of each are walked with the costs of the
    whole job. Each further round of micro-batches over the stages takes equally long (a test): the length of many is
    drawn on from those of one and two rounds.
    """
    few, more = family.pp, 2 * family.pp
    count = work.microbatches
    if count <= more:
        return walked_ns(work, family, replicas, count)
    first, second = (walked_ns(work, family, replicas, number) for number in (few, more))
    return first + (count - few) * (second - first) / (more - few)


def walked_ns(work: Work, family: Family, replicas: int, microbatches: int) -> float:
    """The same, with all micro-batches walked by the engine."""
    layout = {"pp": family.pp, "dp": 2 if work.shards and replicas > 1 else 1, "tp": min(2, family.tp)}
    job = SimulatedJob(
        layout=layout, steps=3, microbatches=microbatches, chunks=family.chunks, costs=work.costs,
        recv_ahead=work.recv_ahead,
    )  # fmt: skip
    return float(simulate_lengths(job)[-1]) + (work.serial_ns if replicas > 1 else 0.0)


def mfu_curve(name: str, gpus: Sequence[int] | None = None, progress: Progress | None = None) -> Curve:
    """The curve of a model of `FAMILIES`, at its own numbers of GPUs or at others.

    Raises UsageError for an unknown model, and numbers of GPUs that make no whole replicas.
    """
    if name not in FAMILIES:
        raise UsageError(f"There is no model {name!r} for a curve: choose one of {', '.join(FAMILIES)}.")
    family = FAMILIES[name]
    numbers = tuple(sorted(set(gpus))) if gpus else family.gpus
    for number in numbers:
        family.layout(number)
    sweep, points = Sweep(family), []
    for done, number in enumerate(numbers):
        if progress is not None:
            progress(done, len(numbers))
        points.append(_point(sweep, number))
    return Curve(
        model=name, scaling=family.scaling, chunks=family.chunks, points=tuple(points), ladder_gpus=numbers[0],
        ladder=tuple(_ladder(sweep, numbers[0])), source=SOURCE,
    )  # fmt: skip


def _point(sweep: Sweep, gpus: int) -> CurvePoint:
    none, whole = sweep.mfu(gpus, NONE), sweep.mfu(gpus, ALL)
    published = {one.system: one for one in POINTS if (one.model, one.gpus) == (sweep.family.name, gpus)}
    return CurvePoint(
        gpus=gpus,
        layout=sweep.family.layout(gpus),
        sequences=sweep.sequences(gpus, NONE),
        step_s_none=sweep.step_ns(gpus, NONE) / 1e9,
        step_s_all=sweep.step_ns(gpus, ALL) / 1e9,
        mfu_none=none,
        mfu_all=whole,
        alone={str(one): sweep.mfu(gpus, {one}) - none for one in Technique},
        without={str(one): whole - sweep.mfu(gpus, ALL - {one}) for one in Technique},
        published={system: one.mfu for system, one in published.items()},
        difference={system: _ours(one, none, whole) - one.mfu for system, one in published.items()},
    )


def _ours(point: PublishedPoint, none: float, whole: float) -> float:
    return whole if point.has_techniques else none


def _ladder(sweep: Sweep, gpus: int) -> Iterator[LadderStep]:
    """The techniques one group after the other, as the published ablation adds them."""
    on: frozenset[Technique] = NONE
    before = sweep.mfu(gpus, on)
    for group, published in GAINS:
        on |= frozenset(group)
        now = sweep.mfu(gpus, on)
        yield LadderStep(techniques=tuple(str(one) for one in group), gain=now - before, published=published)
        before = now
