"""Who is worse than its peers or than a limit: robust outliers, floors, and the names behind them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...collectors.verdicts import Abstention
from .measurements import Culprit, Kind, Measurement, Metric, Reason, Summary

SIGMAS = 2.0
"""MegaScale (NSDI '24) flags what lies more than two standard deviations below the cluster's mean."""

MAD_TO_SIGMA = 1.4826
"""The median absolute deviation times this estimates a normal distribution's standard deviation; unlike mean and
standard deviation it does not move with the outliers themselves (Iglewicz & Hoaglin 1993, chapter 3)."""

LEAST_PEERS = 4
"""Values that are needed before one can be called different from the others."""

Metrics = Mapping[tuple[str, str], Metric]
"""By check and name."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A measurement that is out of line, and the median and spread (sigma) of its peers, itself included."""

    measurement: Measurement
    median: float
    sigma: float


def outliers(values: Sequence[float], *, higher_is_better: bool, margin: float) -> list[int]:
    """Indices of values that are worse than the median by more than 2 sigma and by more than the margin.

    sigma = 1.4826 x median(|x - median(x)|). Two sigma alone would accuse one healthy value in 44, so a value has to
    be worse by a share ``margin`` of the median too. With fewer than four values nobody is accused.
    """
    if len(values) < LEAST_PEERS:
        return []
    array = np.asarray(values, float)
    median, sigma = centre(array)
    worse = median - array if higher_is_better else array - median
    return np.flatnonzero((worse > SIGMAS * sigma) & (worse > margin * abs(median))).tolist()


def centre(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Median and robust sigma."""
    array = np.asarray(values, float)
    median = float(np.median(array))
    return median, MAD_TO_SIGMA * float(np.median(np.abs(array - median)))


def classes(measurements: Iterable[Measurement]) -> dict[tuple[str, str, str], list[Measurement]]:
    """Measurements that are compared with each other, by check, metric and peers."""
    found: dict[tuple[str, str, str], list[Measurement]] = defaultdict(list)
    for one in measurements:
        found[one.check, one.metric, one.peers].append(one)
    return found


def suspects(measurements: Iterable[Measurement], metrics: Metrics, device: str) -> list[Suspect]:
    """Measurements that are worse than their peers."""
    found = []
    for (check, name, _), alike in classes(measurements).items():
        metric = metrics[check, name]
        if metric.is_compared:
            values = [one.value for one in alike]
            bad = outliers(values, higher_is_better=metric.higher_is_better, margin=metric.margin(device))
            found += [Suspect(alike[index], *centre(values)) for index in bad]
    return found


def find_outliers(measurements: Sequence[Measurement], metrics: Metrics, device: str) -> list[Culprit]:
    """Accusations of what is worse than its peers; many values of one host or one rank become one accusation."""
    grouped: dict[tuple[str, str, str], list[Suspect]] = defaultdict(list)
    for one in suspects(measurements, metrics, device):
        grouped[one.measurement.check, one.measurement.metric, one.measurement.peers].append(one)
    alike = classes(measurements)
    return _unexplained(
        [culprit for key, found in grouped.items() for culprit in _named(found, alike[key], metrics[key[:2]])]
    )


def _unexplained(culprits: list[Culprit]) -> list[Culprit]:
    """Without pairs of which one end is accused by itself, by the same check."""
    ends = {(one.check, rank) for one in culprits if one.kind in (Kind.RANK, Kind.HOST) for rank in one.ranks}
    return [
        one for one in culprits if one.kind is not Kind.LINK or not any((one.check, rank) in ends for rank in one.ranks)
    ]


def _named(found: list[Suspect], alike: list[Measurement], metric: Metric) -> list[Culprit]:
    """A host whose every value is bad, beside hosts with good ones, is accused as a whole; so is a rank of pairs."""
    left, culprits = list(found), []
    bad = {id(one.measurement) for one in found}
    for kind, places in ((Kind.HOST, _hosts_of), (Kind.RANK, _ranks_of_pair)):
        of: dict[str | int, list[Measurement]] = defaultdict(list)
        for one in alike:
            for place in places(one):
                of[place].append(one)
        wholly = [place for place, own in of.items() if len(own) >= 2 and all(id(one) in bad for one in own)]
        # Of two places that have all their values in common, none explains more than the other.
        for place in wholly if 2 * len(wholly) < len(of) else ():
            mine = [one for one in left if place in places(one.measurement)]
            if mine:
                left = [one for one in left if one not in mine]
                culprits.append(_culprit(kind, place, mine, metric))
    return culprits + [_culprit(_kind(one.measurement, metric), None, [one], metric) for one in left]


def _hosts_of(one: Measurement) -> Iterable[str | int]:
    return set(one.hosts)


def _ranks_of_pair(one: Measurement) -> Iterable[str | int]:
    return one.ranks if len(one.ranks) == 2 else ()


def _kind(one: Measurement, metric: Metric) -> Kind:
    if metric.is_of_host:
        return Kind.HOST
    if len(one.ranks) == 1:
        return Kind.RANK
    return Kind.LINK if len(one.ranks) == 2 else Kind.HOST if len(set(one.hosts)) == 1 else Kind.GROUP


def _culprit(kind: Kind, place: str | int | None, found: list[Suspect], metric: Metric) -> Culprit:
    pick = min if metric.higher_is_better else max
    worst = pick(found, key=lambda one: one.measurement.value)
    one = worst.measurement
    ranks, hosts = one.ranks, one.hosts
    if kind is Kind.HOST and isinstance(place, str):
        here = {rank for each in found for rank, host in _placed(each.measurement) if host == place}
        ranks = tuple(sorted(here))
        hosts = (place,)
    elif kind is Kind.RANK and isinstance(place, int):
        ranks, hosts = (place,), (dict(_placed(one))[place],)
    few = f", the worst of {len(found)}" if len(found) > 1 else ""
    ratio = f" ({one.value / worst.median:.2f} of it{few})" if worst.median else ""
    statement = (
        f"{who(kind, ranks, hosts)}: {one.check} {one.metric} {one.value:,.4g} {one.unit}, "
        f"the median of its peers is {worst.median:,.4g} {one.unit}{ratio}."
    )
    return Culprit(
        kind=kind, reason=Reason.OUTLIER, check=one.check, metric=one.metric, ranks=ranks, hosts=hosts,
        value=one.value, peers=worst.median, unit=one.unit, statement=statement,
    )  # fmt: skip


def _placed(one: Measurement) -> list[tuple[int, str]]:
    """(rank, host) of a measurement whose ``hosts`` has one entry a rank, or one for all."""
    hosts = one.hosts if len(one.hosts) == len(one.ranks) else one.hosts[:1] * len(one.ranks)
    return list(zip(one.ranks, hosts, strict=True))


def who(kind: Kind, ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """The accused in words."""
    places = " and ".join(dict.fromkeys(hosts))
    if kind is Kind.HOST:
        return f"Host {places}"
    if kind is Kind.LINK:
        return f"The pair of ranks {ranks[0]} and {ranks[1]} ({places})"
    named = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"Rank {named} on {places}" if len(ranks) == 1 else f"Ranks {named} ({places})"


def find_beyond(measurements: Iterable[Measurement], metrics: Metrics, floors: Mapping[str, float]) -> list[Culprit]:
    """Values worse than the user's floor for ``check.metric``, and values beyond the metric's own limit."""
    found = []
    for one in measurements:
        metric = metrics[one.check, one.metric]
        floor = floors.get(f"{one.check}.{one.metric}")
        bounds: list[tuple[Reason, float, bool]] = []
        if floor is not None:
            bounds.append((Reason.FLOOR, floor, not metric.higher_is_better))
        if metric.limit is not None:
            bounds.append((Reason.LIMIT, metric.limit, True))
        for reason, bound, is_upper in bounds:
            value = one.value
            surely = abs(value) - one.uncertainty if is_upper else value
            if surely > bound if is_upper else surely < bound:
                word = "more than" if is_upper else "less than"
                kind = _kind(one, metric)
                found.append(
                    Culprit(
                        kind=kind,
                        reason=reason,
                        check=one.check,
                        metric=one.metric,
                        ranks=one.ranks,
                        hosts=one.hosts,
                        value=value,
                        peers=bound,
                        unit=one.unit,
                        statement=f"{who(kind, one.ranks, one.hosts)}: {one.check} {one.metric} {value:,.4g} "
                        f"{one.unit}, {word} the {bound:,.4g} that are {'allowed' if is_upper else 'asked for'}.",
                    )
                )
    return found


def not_judged(measurements: Iterable[Measurement], metrics: Metrics, floors: Mapping[str, float]) -> list[Abstention]:
    """Metrics that nothing could be said about: too few values to compare, and no floor."""
    found = []
    for (check, name, peers), alike in classes(measurements).items():
        metric = metrics[check, name]
        has_bound = f"{check}.{name}" in floors or metric.limit is not None
        if metric.is_compared and not has_bound and len(alike) < LEAST_PEERS:
            values = "value" if len(alike) == 1 else "values"
            reason = f"{len(alike)} {values} of its kind ({peers}), {LEAST_PEERS} are needed to compare: give a floor."
            found.append(Abstention(f"{check}.{name}", reason))
    return found


def judged_ranks(measurements: Iterable[Measurement], metrics: Metrics, floors: Mapping[str, float]) -> Counter[int]:
    """How often each rank's values were held against peers or a floor."""
    counts: Counter[int] = Counter()
    for (check, name, _), alike in classes(measurements).items():
        if f"{check}.{name}" in floors or (metrics[check, name].is_compared and len(alike) >= LEAST_PEERS):
            counts.update(rank for one in alike for rank in set(one.ranks))
    return counts


def summarise(measurements: Iterable[Measurement]) -> list[Summary]:
    """Median and extremes of every class of measurements."""
    found = []
    for (check, name, peers), alike in classes(measurements).items():
        values = [one.value for one in alike]
        found.append(
            Summary(
                check=check,
                metric=name,
                unit=alike[0].unit,
                peers=peers,
                count=len(values),
                median=centre(values)[0],
                lowest=min(values),
                highest=max(values),
            )
        )
    return found
