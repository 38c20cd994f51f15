"""Detectors of trouble in a running job: pure functions over its steps, heartbeats and devices, with one table.

Step time, gradient norm and not-finite values follow MegaScale (NSDI '24, section 4): 1.5 times the median for three
steps, three times the running mean. A detector says that something is odd, never who is to blame: that is for the
verdicts of `megascope hang` and `megascope stragglers`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from ...collectors.hardware.metrics import ECC_ERRORS
from ...collectors.hardware.xids import Blame, explain, tell
from .signs import Beat, Detector, DeviceReading, Sign, StepRecord
from .thresholds import THRESHOLDS, Thresholds

ECC_METRIC, XID_METRIC = ECC_ERRORS.name, "xid"
"""Names in table ``health``: a counter, and the number of an Xid event of the NVIDIA driver."""


def missed_heartbeats(beats: Sequence[Beat], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """Ranks of which nothing was heard while others were, by one clock."""
    if not beats:
        return []
    newest = max(beat.aligned_ns for beat in beats)
    silent = [beat for beat in beats if newest - beat.aligned_ns > limits.heartbeat_s * 1e9]
    if not silent:
        return []
    age_s = max(newest - beat.aligned_ns for beat in silent) / 1e9
    hosts = tuple(sorted({beat.host for beat in silent}))
    sentence = f"{_ranks(silent)} on {', '.join(hosts[:4])} gave no heartbeat for {age_s:.0f} s, while others did"
    ranks = tuple(sorted(beat.rank for beat in silent))
    return [Sign(Detector.MISSED_HEARTBEAT, sentence, age_s, limits.heartbeat_s, ranks=ranks, hosts=hosts)]


def slow_ranks(steps: Sequence[StepRecord], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """Ranks whose step time was over the median of all ranks by the factor, for the last few steps in a row."""
    recent = [(step, step.duration_ns) for step in steps[-limits.slow_steps :] if step.by_rank_ns]
    if len(recent) < limits.slow_steps:
        return []
    ratios: dict[int, list[float]] = {}
    for step, median in recent:
        for rank, duration_ns in step.by_rank_ns.items():
            if median is not None and median > 0:
                ratios.setdefault(rank, []).append(duration_ns / median)
    slow = {
        rank: min(found)
        for rank, found in ratios.items()
        if len(found) == limits.slow_steps and min(found) > limits.slow_factor
    }
    return [
        Sign(
            Detector.SLOW_RANK,
            f"rank {rank} took {ratio:.2f} times the median of all ranks or more for {limits.slow_steps} steps",
            ratio,
            limits.slow_factor,
            steps[-1].step,
            (rank,),
        )
        for rank, ratio in sorted(slow.items())
    ]


def off_baseline(steps: Sequence[StepRecord], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """Whether the last steps in a row took far longer than those before them."""
    timed = [(step.step, step.duration_ns) for step in steps if step.duration_ns is not None]
    recent, before = timed[-limits.slow_steps :], timed[: -limits.slow_steps][-limits.baseline_steps :]
    if len(recent) < limits.slow_steps or len(before) < limits.baseline_steps // 2:
        return []
    values = [duration_ns for _, duration_ns in before]
    median = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - median) for value in values)
    bound = max(limits.baseline_factor * median, median + limits.baseline_sigmas * spread)
    least = min(duration_ns for _, duration_ns in recent)
    if median <= 0 or least <= bound:
        return []
    sentence = (
        f"the last {limits.slow_steps} steps took {least / 1e6:.0f} ms or more, those before {median / 1e6:.0f} ms "
        f"({least / median:.2f} times)"
    )
    return [Sign(Detector.OFF_BASELINE, sentence, least / median, bound / median, recent[-1][0])]


def throughput_decline(steps: Sequence[StepRecord], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """Whether the last stretch of steps made far fewer tokens a second than the best stretch before it."""
    timed = [step for step in steps if step.duration_ns and step.tokens]
    size = limits.throughput_steps
    if len(timed) < 2 * size:
        return []
    rates = [_rate(timed[end - size : end]) for end in range(size, len(timed) + 1)]
    best, last = max(rates[:-size] or rates[:1]), rates[-1]
    if last >= limits.throughput_share * best:
        return []
    sentence = f"{last:,.0f} tokens/s over the last {size} steps, {best:,.0f} at best before ({last / best:.0%})"
    return [Sign(Detector.THROUGHPUT, sentence, last / best, limits.throughput_share, timed[-1].step)]


def grad_spikes(steps: Sequence[StepRecord], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """Every step whose gradient norm was far over the mean of those before it."""
    found: list[Sign] = []
    before: list[float] = []
    for step in steps:
        norm = step.grad_norm
        if norm is None or not math.isfinite(norm):
            continue
        mean = math.fsum(one / len(before) for one in before)  # whose sum may be too large for a number
        ratio = norm / mean if mean > 0 and len(before) >= limits.grad_steps // 2 else 0.0
        if ratio > limits.grad_factor:
            sentence = f"the gradient norm of step {step.step} is {norm:.3g}, {ratio:.1f} times its running mean"
            found.append(Sign(Detector.GRAD_NORM, sentence, ratio, limits.grad_factor, step.step))
        before = [*before, norm][-limits.grad_steps :]
    return found


def not_finite(steps: Sequence[StepRecord], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """The first step whose loss or gradient norm is no finite number, and the first rank that had it."""
    for step in steps:
        for name, value in (("loss", step.loss), ("gradient norm", step.grad_norm)):
            if value is not None and not math.isfinite(value):
                rank = step.first_bad_rank
                where = "" if rank is None else f", first on rank {rank}"
                ranks = () if rank is None else (rank,)
                sentence = f"the {name} of step {step.step} is {value}{where}"
                return [Sign(Detector.NOT_FINITE, sentence, value, math.inf, step.step, ranks)]
    return []


def loss_divergence(steps: Sequence[StepRecord], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """Whether the loss has risen far above where it was, for many steps and not only once."""
    losses = [step.loss for step in steps if step.loss is not None and math.isfinite(step.loss)]
    size = limits.loss_steps
    if len(losses) < 2 * size:
        return []
    lowest = min(statistics.median(losses[end - size : end]) for end in range(size, len(losses) - size + 1))
    last = statistics.median(losses[-size:])
    if last - lowest <= limits.loss_rise:
        return []
    sentence = f"the median loss of the last {size} steps is {last:.3f}; it was {lowest:.3f}"
    return [Sign(Detector.DIVERGENCE, sentence, last - lowest, limits.loss_rise, steps[-1].step)]


def device_errors(readings: Sequence[DeviceReading], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """Uncorrectable memory errors that have become more, and Xids of the driver that no program causes by itself.

    An Xid that a device reports again and again is one sign.
    """
    xids: dict[tuple[str, str | None, float], Sign] = {}
    counted: dict[tuple[str, str | None], list[float]] = {}
    for reading in sorted(readings, key=lambda one: one.moment_ns):
        place = reading.host, reading.device
        if reading.metric == ECC_METRIC:
            counted.setdefault(place, []).append(reading.value)
        elif reading.metric == XID_METRIC and explain(int(reading.value)).blame is not Blame.PROGRAM:
            what = f"{tell(int(reading.value))} of {reading.device or 'a device'} on {reading.host}"
            sign = Sign(Detector.XID, what, reading.value, 0, hosts=(reading.host,))
            xids.setdefault((*place, reading.value), sign)
    found = list(xids.values())
    for (host, device), values in counted.items():
        more = values[-1] - values[0]
        if more > 0:
            what = f"{more:g} uncorrectable memory errors more of {device or 'a device'} on {host}"
            found.append(Sign(Detector.ECC, what, more, 0, hosts=(host,)))
    return found


def accuses(reading: DeviceReading) -> bool:
    """Whether a sign of it speaks against its host: an Xid only if the GPU or a link failed, and work ended."""
    if reading.metric != XID_METRIC:
        return True
    xid = explain(int(reading.value))
    return xid.accuses_hardware and not xid.goes_on


def storage_stalls(beats: Sequence[Beat], limits: Thresholds = THRESHOLDS) -> list[Sign]:
    """Reads of data and writes of checkpoints that have been in flight for too long."""
    stuck = [beat for beat in beats if beat.storage is not None and beat.storage_age_s > limits.storage_s]
    if not stuck:
        return []
    worst = max(stuck, key=lambda beat: beat.storage_age_s)
    hosts = tuple(sorted({beat.host for beat in stuck}))
    sentence = f"{worst.storage} has been in flight for {worst.storage_age_s:.0f} s on {_ranks(stuck)}"
    ranks = tuple(sorted(beat.rank for beat in stuck))
    return [Sign(Detector.STORAGE, sentence, worst.storage_age_s, limits.storage_s, ranks=ranks, hosts=hosts)]


def signs_of(
    steps: Sequence[StepRecord],
    beats: Sequence[Beat] = (),
    readings: Sequence[DeviceReading] = (),
    limits: Thresholds = THRESHOLDS,
) -> Iterator[Sign]:
    """What all detectors say of the job as it is now."""
    for detect in (not_finite, slow_ranks, off_baseline, throughput_decline, grad_spikes, loss_divergence):
        yield from detect(steps, limits)
    yield from missed_heartbeats(beats, limits)
    yield from storage_stalls(beats, limits)
    yield from device_errors(readings, limits)


def _rate(steps: Sequence[StepRecord]) -> float:
    """Tokens a second."""
    duration_ns = math.fsum(step.duration_ns or 0.0 for step in steps)
    return sum(step.tokens or 0 for step in steps) * 1e9 / duration_ns


def _ranks(beats: Sequence[Beat]) -> str:
    numbers = sorted(beat.rank for beat in beats)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:8]))}" + (
        f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    )
