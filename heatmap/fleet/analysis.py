"""`find_offenders`: hosts that are accused again and again, over all attempts of one or several stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...collectors.reading.store import Store
from ...collectors.verdicts import Abstention
from ...profiler.errors import MegascopeError
from ..mfu.parts import BoolArray
from ..mfu.steps import moment
from ..peers import FloatArray
from ..verdict import Outcome
from .chance import at_least, usual_rate, wilson
from .history import MS_PER_HOUR, History, load_history
from .machines import load_machines
from .result import Accusation, AttemptRecord, Fleet, HostRecord, Week

MIN_ACCUSED = 2
"""Attempts in which an offender was accused: once may be chance, whatever the rate."""

MAX_CHANCE = 0.05


def find_offenders(stores: Sequence[Store], *, progress: Callable[[int, int], None] | None = None) -> Fleet:
    """Every attempt of every store judged, and what the verdicts have in common.

    A run that lies in two of the stores counts twice. Raises MegascopeError where no attempt has a step with a time.
    """
    attempts = [(store, attempt) for store in stores for attempt in store.attempts()]
    found: list[History] = []
    machines = load_machines(stores)
    for done, (store, attempt) in enumerate(attempts):
        if progress is not None:
            progress(done, len(attempts))
        history = load_history(store, attempt, machines)
        found += [] if history is None else [history]
    if not found:
        raise MegascopeError(
            f"No attempt of {', '.join(str(store.root) for store in stores)} has a timed step: collect some first."
        )
    return fleet_of(found, empty=len(attempts) - len(found))


def fleet_of(found: Sequence[History], empty: int = 0) -> Fleet:
    """The statistics of attempts that are judged; ``empty`` were left out for having no steps."""
    judged = [one for one in found if one.is_judged]
    hosts = _hosts(judged)
    weeks = _weeks(found)
    mfu, without = _mfu(found, None), _mfu(found, _lost_of(found))
    return Fleet(
        sentence=_sentence(hosts, judged, found),
        stores=tuple(dict.fromkeys(one.store for one in found)),
        runs=len({(one.store, one.attempt.run) for one in found}),
        attempts=tuple(_record(one) for one in found),
        judged=len(judged),
        host_count=len({machine for one in found for machine in one.machines}),
        hosts=hosts,
        weeks=weeks,
        hours=sum(one.hours for one in found),
        gpu_hours=sum(one.hours * one.ranks for one in found),
        lost_hours=sum(_lost_hours(one) for one in found),
        lost_gpu_hours=sum(_lost_hours(one) * one.ranks for one in found),
        mfu=mfu,
        mfu_without=without,
        abstained=tuple(_notes(found, empty)),
    )


def _lost_of(found: Sequence[History]) -> list[FloatArray]:
    return [one.lost for one in found]


def _lost_hours(one: History, keep: BoolArray | None = None) -> float:
    lost = one.lost * one.series.ms
    return float((lost if keep is None else lost[keep]).sum()) / MS_PER_HOUR


def _mfu(found: Sequence[History], lost: Sequence[FloatArray] | None, week: str | None = None) -> float | None:
    """FLOPs over what the peak allows, weighted by ranks; ``lost`` shares of the steps' time are taken out first."""
    done = spent = 0.0
    for place, one in enumerate(found):
        keep = np.isfinite(one.series.mfu)
        if week is not None:
            keep = keep & one.weeks().get(week, np.zeros(len(one.series), bool))
        ms = one.series.ms * (1 if lost is None else 1 - lost[place])
        done += float((one.series.mfu * one.series.ms)[keep].sum()) * one.ranks
        spent += float(ms[keep].sum()) * one.ranks
    return done / spent if spent > 0 else None


def _record(one: History) -> AttemptRecord:
    steps = one.series.steps
    start = moment(one.series.start_ns[0])
    lost = _lost_hours(one) / one.hours
    mfu = _mfu([one], None)
    return AttemptRecord(
        store=one.store,
        run=one.attempt.run,
        attempt=one.attempt.attempt,
        verdict=str(one.verdict.verdict),
        ranks=one.ranks or None,
        hosts=len(one.hosts) or None,
        steps=(int(steps[0]), int(steps[-1])),
        start_ns=start,
        hours=one.hours,
        gpu_hours=one.hours * one.ranks if one.ranks else None,
        lost_share=round(lost, 6),
        lost_by=str(one.lost_by),
        slowdown=one.verdict.slowdown,
        mfu=mfu,
        mfu_without=None if mfu is None else _mfu([one], [one.lost]),
    )


def _hosts(judged: Sequence[History]) -> tuple[HostRecord, ...]:
    """Machines that were accused at all: offenders first, then by what they cost."""
    present = Counter(machine for one in judged for machine in one.machines)
    accused = Counter(machine for one in judged for machine in _blamed(one))
    usual = usual_rate([accused[machine] for machine in present], list(present.values()))
    records = [
        _host(
            machine,
            judged,
            present[machine],
            times,
            at_least(times, present[machine], usual) * len(present),
        )
        for machine, times in accused.items()
        if present[machine]
    ]
    return tuple(sorted(records, key=lambda one: (not one.offender, -one.lost_gpu_hours, one.host)))


def _blamed(one: History) -> set[str]:
    return {machine for culprit in one.culprits_of_hosts() for machine in one.machines_in(culprit)}


def _host(machine: str, judged: Sequence[History], present: int, accused: int, chance: float) -> HostRecord:
    accusations, causes, lost_hours, lost_gpu_hours = [], Counter[str](), 0.0, 0.0
    for one in judged:
        mine = [culprit for culprit in one.culprits_of_hosts() if machine in one.machines_in(culprit)]
        causes.update({str(culprit.cause) for culprit in mine})
        worst = max((one.lost_hours_to(culprit) for culprit in mine), default=0.0)
        lost_hours += worst
        lost_gpu_hours += worst * one.ranks
        accusations += [
            Accusation(
                one.store, one.attempt.run, one.attempt.attempt, str(culprit.kind), str(culprit.cause),
                culprit.segment, culprit.ranks, culprit.steps, culprit.ratio, culprit.lost_share,
            )
            for culprit in mine
        ]  # fmt: skip
    names = _names(machine, judged)
    low, high = wilson(accused, present)
    return HostRecord(
        host=names[0],
        present=present,
        accused=accused,
        runs_present=len({(one.store, one.attempt.run) for one in judged if machine in one.machines}),
        runs_accused=len({(one.store, one.run) for one in accusations}),
        rate=accused / present,
        low=low,
        high=high,
        chance=min(chance, 1.0),
        offender=accused >= MIN_ACCUSED and chance < MAX_CHANCE,
        causes=dict(causes),
        lost_hours=lost_hours,
        lost_gpu_hours=lost_gpu_hours,
        accusations=tuple(accusations),
        also=tuple(names[1:]),
        machine=None if machine == names[0] else machine,
    )


def _names(machine: str, judged: Sequence[History]) -> list[str]:
    """The names of a machine's hosts, the latest first: that is where it is to be found."""
    newest = sorted(judged, key=lambda one: int(one.series.start_ns[-1]), reverse=True)
    return list(dict.fromkeys(host for one in newest for host in one.hosts if one.machine_of(host) == machine))


def _weeks(found: Sequence[History]) -> tuple[Week, ...]:
    names = sorted({name for one in found for name in one.weeks()})
    return tuple(_week(name, found) for name in names)


def _week(name: str, found: Sequence[History]) -> Week:
    inside = [(one, keep) for one in found if (keep := one.weeks().get(name)) is not None]
    hours = [float(one.series.ms[keep].sum()) / MS_PER_HOUR for one, keep in inside]
    lost = [_lost_hours(one, keep) for one, keep in inside]
    ranks = [one.ranks for one, _ in inside]
    return Week(
        week=name,
        attempts=len(inside),
        hours=sum(hours),
        gpu_hours=float(np.dot(hours, ranks)),
        lost_hours=sum(lost),
        lost_gpu_hours=float(np.dot(lost, ranks)),
        lost_share=round(float(np.dot(lost, ranks)) / max(float(np.dot(hours, ranks)), 1e-12), 6),
        mfu=_mfu(found, None, name),
        mfu_without=_mfu(found, _lost_of(found), name),
    )


def _sentence(hosts: Sequence[HostRecord], judged: Sequence[History], found: Sequence[History]) -> str:
    of = f"{len(judged)} of {len(found)} attempts that could be judged"
    if not judged:
        return f"None of {len(found)} attempts could be judged: no host can be called an offender, or cleared."
    offenders = [one for one in hosts if one.offender]
    if not offenders:
        once = f"; {len(hosts)} accused, none more often than chance allows" if hosts else ""
        return f"No host was accused again and again in {of}{once}."
    first = offenders[0]
    more = f" {len(offenders) - 1} more offenders below." if len(offenders) > 1 else ""
    also = f", the same machine as {', '.join(first.also)}," if first.also else ""
    return (
        f"Host {first.host}{also} was accused in {first.accused} of {first.present} attempts "
        f"({', '.join(first.causes)}) and cost {first.lost_gpu_hours:,.2f} GPU-hours.{more}"
    )


def _notes(found: Sequence[History], empty: int) -> list[Abstention]:
    notes = []
    if empty:
        notes.append(Abstention("attempts", f"{empty} attempts have no step with a time and are left out"))
    for one in found:
        if one.verdict.verdict == Outcome.INSUFFICIENT:
            why = one.verdict.abstained[0].reason if one.verdict.abstained else "no rank could be compared"
            name = f"{one.attempt.run}/{one.attempt.attempt}"
            name = name if len({each.store for each in found}) == 1 else f"{Path(one.store).name}:{name}"
            notes.append(Abstention(name, f"could not be judged, and counts for no host: {why}"))
    if any(not one.ranks for one in found):
        notes.append(Abstention("ranks", "attempts whose number of ranks is not known count in no GPU-hours"))
    if any((~one.dated()).any() for one in found):
        notes.append(Abstention("weeks", "steps without a date are in no week"))
    if any(not one.hosts for one in found):
        notes.append(Abstention("hosts", "some attempts do not say which hosts they ran on"))
    if any(not np.isfinite(one.series.mfu).any() for one in found):
        notes.append(Abstention("mfu", "attempts without a recorded MFU are in none of the MFU figures"))
    return notes
