"""Micro-batches of unequal cost: the replicas differ from step to step, and all stages of a replica agree on it.

A rank that works on longer sequences looks slow for a step. What tells it from a slow machine is that the other stages
of its replica, on other machines, take longer at the same micro-batches, and that in the next step it is another one.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ..observations import Observations
from ..peers import FloatArray, column_median
from ..per_token import is_per_token, per_token
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Findings, Pattern, severity
from .alone import alone_evidence, is_without_stages, microbatch_contrasts, step_work
from .evidence import replica_evidence
from .microbatches import MIN_REPLICAS, comparable_work
from .replicas import ReplicaWork
from .skew import skew_culprit, skewed_replicas
from .stretch import steps_of
from .told_lengths import find_told_lengths
from .work import compute_cells, spans_per_step, work_ms

SIGNAL = "uneven-input"

MIN_Z = 6.0
"""Surety of the variance ratio, in standard errors."""

MIN_VARIANCE_RATIO = 2.0
"""Variance between replicas over what the stages' noise alone would make of it, in the search for the steps."""

MIN_AGREEMENT = 0.7
"""Correlation of two stages of one replica: what a busy machine does to its ranks is less alike."""

MIN_SPREAD = 0.05
"""Standard deviation of the logarithm of a micro-batch's cost."""

MAX_PERSISTENCE = 0.6
"""Correlation of a replica's cost between neighbouring columns: sequences are drawn anew, a slow machine stays."""

MIN_TOUCHED = 0.3
"""Share of the replicas that differ by the spread: one or few are slow machines."""

CLIP_SIGMAS = 4.0

LEAST_ALONE, SURE_ALONE = 0.4, 0.8
"""The same of a micro-batch's forward and backward, where no stages can agree: one that follows on the other meets the
same load, and on cores that ranks share reaches 0.45. Below the second of these it is not called sequences."""

MIN_BLOCKING_SHARE = 0.02
"""Share of the job's time from which on replicas that take turns, for whatever reason, forbid the word healthy."""


@dataclass(frozen=True, slots=True)
class UnevenInput:
    """Columns ``first`` to ``last`` in which micro-batches cost unequally much.

    ``spread`` is the standard deviation of the logarithm of their cost, ``agreement`` the correlation of two stages of
    one replica, ``ratio`` the mean over the columns of the costliest replica's work over the mean one's.
    """

    first: int
    last: int
    spread: float
    agreement: float
    z: float
    ratio: float
    lost_share: float
    replica: int
    column: int


def find_uneven_input(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """Findings of the job where micro-batches cost unequally much, by chance or for some replicas always; no rank."""
    if seen.waits_ms is None or not compute_cells(seen):
        return Findings()
    if is_without_stages(seen):
        return _without_stages(store, attempt, seen)
    work = comparable_work(store, attempt, seen)
    if work is None:
        return Findings(abstained=(Abstention(SIGNAL, _NOT_COMPARABLE),))
    found, skewed = uneven_input(work, seen), skewed_replicas(work, seen)
    culprits = [] if found is None else [_culprit(store, attempt, seen, work, found)]
    if skewed:
        culprits.append(skew_culprit(store, attempt, seen, work, skewed))
    return Findings(culprits=tuple(culprits))


def _without_stages(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """The same where no stages can agree: by tokens that are told, else by the forward and backward of single
    micro-batches, else not judged."""
    if is_per_token(per_token(store, attempt, seen)):
        told = find_told_lengths(store, attempt, seen)
        return Findings(culprits=() if told is None else (told,))
    alone = microbatch_contrasts(store, attempt, seen)
    if alone is not None:
        found = uneven_input(alone.contrast, seen, whole=alone.whole, agreement=LEAST_ALONE)
        if found is None:
            return Findings()
        if found.agreement < SURE_ALONE:
            return _take_turns(found, seen)
        inside = slice(found.first, found.last + 1)
        evidence = alone_evidence(store, attempt, seen, alone, inside, _remark(found))
        return Findings(culprits=(_culprit_of(found, seen, evidence),))
    work = step_work(seen)
    found = None if work is None else uneven_input(work, seen, whole=work)
    if found is None:
        return Findings(abstained=(Abstention(SIGNAL, _NOT_COMPARABLE),))
    return _take_turns(found, seen)


def _take_turns(found: UnevenInput, seen: Observations) -> Findings:
    """What may be sequences or busy machines: worth a word against healthy where it costs enough."""
    if found.lost_share < MIN_BLOCKING_SHARE:
        return Findings(abstained=(Abstention(SIGNAL, _NOT_COMPARABLE),))
    first, last = steps_of(found.first, found.last, seen)
    reason = _TAKE_TURNS.format(found.ratio, first, last, found.lost_share)
    return Findings(blocking=(Abstention(SIGNAL, reason),))


_TAKE_TURNS = (
    "the replicas take turns at working longer, the longest x{:.2f} of the mean in steps {} to {} ({:.1%} of the job's "
    "time): sequences of unequal length, or busy machines; whether a micro-batch is long forward and backward alike "
    "does not tell"
)

_NOT_COMPARABLE = (
    f"whether sequences are of unequal length cannot be told: that takes several stages, and at least {MIN_REPLICAS} "
    f"replicas or spans that say their micro-batch"
)


def uneven_input(
    work: ReplicaWork, seen: Observations, whole: ReplicaWork | None = None, agreement: float = MIN_AGREEMENT
) -> UnevenInput | None:
    """The stretch in which the replicas differ, and all their stages agree.

    In a job without stages, ``work`` has segments in their place; ``whole`` is then what the cost is taken from, and
    ``agreement`` the least of it.
    """
    between, within, left = _variances(work.logs)
    stretch = _stretch(between, within, left)
    if stretch is None:
        return None
    first, last = stretch
    inside = slice(first, last + 1)
    free = left[inside].sum(axis=0)
    ratio = float(between[inside].sum() / max(within[inside].sum(), 1e-12)) * float(free[1] / max(free[0], 1))
    z = _surety(ratio, float(free[0]), float(free[1]))
    stages, noise = work.logs.shape[0], float(within[inside].sum() / max(free[1], 1))
    common = max((ratio - 1) * noise / stages, 0.0)
    spread = math.sqrt(common * work.spans / work.chunks)
    agreed = common / max(common + noise, 1e-12)
    if z < MIN_Z or agreed < agreement or spread < MIN_SPREAD:
        return None
    means = _means(work.logs[:, :, inside])
    if _persistence(means) > MAX_PERSISTENCE or _touched(means, math.sqrt(common)) < MIN_TOUCHED:
        return None
    depth = len(work.logs) if whole is None else 1
    lost, costliest, at = _costs(whole or work, seen, inside, math.sqrt(common * seen.source.step_width), depth)
    return UnevenInput(first, last, spread, agreed, z, costliest, lost, int(at[0]), first + int(at[1]))


def _variances(logs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """By column, of log-ratios [P, G, C]: sums of squares between replicas [C] and of stages within [C], and their
    degrees of freedom [C, 2]. What is far out is clipped, so that no single machine makes the variance."""
    centred = logs - _over(np.nanmedian, logs, axis=1)[:, None]
    usual = 1.4826 * _over(np.nanmedian, np.abs(centred), axis=(0, 1))
    bound = CLIP_SIGMAS * np.maximum(usual, 1e-6)
    centred = np.clip(centred, -bound, bound)
    known = np.asarray(np.isfinite(centred).all(axis=0), np.bool_)
    replicas = known.sum(axis=0)
    means = np.where(known, centred.mean(axis=0), 0.0)
    middle = np.divide(means.sum(axis=0), replicas, out=np.zeros(len(replicas)), where=replicas > 0)
    between = len(logs) * np.where(known, (means - middle) ** 2, 0.0).sum(axis=0)
    within = np.where(known[np.newaxis], (np.nan_to_num(centred) - means[np.newaxis]) ** 2, 0.0).sum(axis=(0, 1))
    free = np.stack([np.maximum(replicas - 1, 0), replicas * (len(logs) - 1)], axis=1).astype(float)
    return between, within, free


def _over(function: object, values: FloatArray, axis: int | tuple[int, ...]) -> FloatArray:
    """A function of NumPy that takes no warning from what is all NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result: FloatArray = function(values, axis=axis)  # type: ignore[operator]
    return result


def _stretch(between: FloatArray, within: FloatArray, free: FloatArray) -> tuple[int, int] | None:
    """First and last column of the most likely stretch of raised variance.

    The gain of a column is its log-likelihood under a raised variance ratio against one of 1; the ratio is first the
    least that counts, then the one that the stretch shows.
    """
    noise = within.sum() / max(float(free[:, 1].sum()), 1.0)
    if not noise > 0:
        return None
    raised, stretch = MIN_VARIANCE_RATIO, None
    for _ in range(3):
        gains = 0.5 * between / noise * (1 - 1 / raised) - 0.5 * free[:, 0] * math.log(raised)
        sums = np.concatenate([[0.0], np.cumsum(gains)])
        last = int(np.argmax(sums[1:] - np.minimum.accumulate(sums[:-1])))
        first = int(np.argmin(sums[: last + 1]))
        if not sums[last + 1] > sums[first]:
            return None
        stretch = first, last
        inside = slice(first, last + 1)
        raised = max(float(between[inside].sum() / noise / max(free[inside, 0].sum(), 1.0)), MIN_VARIANCE_RATIO)
    return stretch


def _surety(ratio: float, between: float, within: float) -> float:
    """Standard normal equivalent of a variance ratio with so many degrees of freedom (Paulson's approximation)."""
    above, below, root = 2 / (9 * max(between, 1.0)), 2 / (9 * max(within, 1.0)), max(ratio, 0.0) ** (1 / 3)
    return float(((1 - below) * root - (1 - above)) / math.sqrt(below * root**2 + above))


def _means(logs: FloatArray) -> FloatArray:
    """Mean over the stages, less the column's median replica, [G, C]."""
    means: FloatArray = logs.mean(axis=0)
    less: FloatArray = means - column_median(means)
    return less


def _persistence(means: FloatArray) -> float:
    """Correlation of neighbouring columns, [G, C]; 0 where there are too few."""
    if means.shape[1] < 4:
        return 0.0
    before, after = means[:, :-1].ravel(), means[:, 1:].ravel()
    known = np.isfinite(before) & np.isfinite(after)
    if known.sum() < 8 or not before[known].std() > 0 or not after[known].std() > 0:
        return 0.0
    return float(np.corrcoef(before[known], after[known])[0, 1])


def _touched(means: FloatArray, sigma: float) -> float:
    """Share of the replicas that are away from the median by half of sigma at least, in some column in three."""
    away = np.abs(means) > 0.5 * sigma
    return float(np.mean(away.mean(axis=1) >= 1 / 3))


def _costs(
    work: ReplicaWork, seen: Observations, inside: slice, sigma: float, depth: int
) -> tuple[float, float, tuple[int, int]]:
    """Share of the job's time lost, the costliest replica over the mean, and its place (replica, column) where most so.

    All replicas meet at the end of a step, so it lasts as long as the costliest: (largest - mean work) x
    (1 + (p - 1) / n) is lost, for p = ``depth`` stages that pass on n spans a step. Within windows much evens out:
    there the largest of G replicas is taken to be sigma of a step times the expected largest of G normal values (Blom).
    """
    factors = work.by_replica(np.exp(np.nan_to_num(work.logs[:, :, inside].mean(axis=0))))
    usual = np.nan_to_num(column_median(work_ms(seen))[inside])
    above = factors.max(axis=0) / factors.mean(axis=0) - 1
    if seen.source.step_width > 1:
        expected = NormalDist().inv_cdf((len(factors) - 0.375) / (len(factors) + 0.25))
        above = np.full(len(above), sigma * expected)
    lost_ms = usual * above * (1 + (depth - 1) / max(spans_per_step(seen), 1.0))
    total = float(np.nansum(seen.step_ms))
    lost = float(np.minimum(lost_ms, np.nan_to_num(seen.step_ms[inside])).sum()) / total if total > 0 else 0.0
    at = np.unravel_index(int(np.argmax(factors / factors.mean(axis=0))), factors.shape)
    return round(min(lost, 1.0), 6), 1 + float(np.mean(above)), (int(at[0]), int(at[1]))


def _culprit(store: Store, attempt: Attempt, seen: Observations, work: ReplicaWork, found: UnevenInput) -> Culprit:
    evidence = replica_evidence(store, attempt, seen, work, (found.replica, found.column), _remark(found))
    return _culprit_of(found, seen, evidence)


def _remark(found: UnevenInput) -> str:
    return f"micro-batches differ by {found.spread:.0%} (standard deviation)"


def _culprit_of(found: UnevenInput, seen: Observations, evidence: tuple[Evidence, ...]) -> Culprit:
    steps = steps_of(found.first, found.last, seen)
    to_the_end = found.last >= len(seen.steps) - 1 - len(seen.steps) // 10
    sure = 1 - 0.5 * math.exp(-(found.z - MIN_Z) / 6)
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=round(min(sure, 0.99), 3),
        severity=severity(found.lost_share),
        kind=CulpritKind.JOB,
        cause=Cause.UNEVEN_INPUT,
        segment=max(compute_cells(seen), key=lambda one: float(np.nansum(one.total_ms))).name,
        ratio=round(found.ratio, 4),
        steps=steps,
        pattern=Pattern.CHRONIC if to_the_end else Pattern.ONE_OFF,
        lost_share=found.lost_share,
        evidence=evidence,
    )
