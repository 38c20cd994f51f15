"""Which files of a job tell the time by one clock: their zones are told, or they begin or end together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from .facts import DumpSignal, Exit, LogEvidence, Place, Raised, Timeout

AGREE_NS = 450 * 10**9
"""Half of the least step between time zones: files of one job that begin (or end) closer than this to each other,
each by its own local time, are not of different zones."""

UNSURE = 0.5
"""The most confidence in a trouble that cannot be ordered against others, for their clocks are not known to agree."""


@dataclass(frozen=True, slots=True)
class Times:
    """A file's first and last moment, UTC ns as if a time without a zone were UTC; None: it tells none.

    ``has_zone``: every one of its times names its zone. ``is_kernel``: it is the kernel's own log, which begins and
    ends when it likes, so that without a zone nothing tells its clock.
    """

    name: str
    first_ns: int | None
    last_ns: int | None
    has_zone: bool
    is_kernel: bool = False


def clocks_of(files: Sequence[Times]) -> dict[str, int]:
    """A number for each file that tells times: those with the same number tell them by clocks that agree."""
    timed = [one for one in files if one.first_ns is not None and one.last_ns is not None]
    leader = {one.name: one.name for one in timed}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    zoned = [one.name for one in timed if one.has_zone]
    pairs = list(itertools.pairwise(zoned))
    of_job = [one for one in timed if not one.is_kernel]
    for ends in ([(one.first_ns or 0, one.name) for one in of_job], [(one.last_ns or 0, one.name) for one in of_job]):
        near = itertools.pairwise(sorted(ends))
        pairs += [(one, other) for (moment, one), (later, other) in near if later - moment < AGREE_NS]
    for first, second in pairs:
        leader[find(second)] = find(first)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(find(one.name) for one in timed))}
    return {one.name: numbers[find(one.name)] for one in timed}


def not_compared(evidence: LogEvidence) -> str | None:
    """What is to be said of alarms, exceptions and exits whose times are told by clocks that may differ."""
    places: dict[int, Place] = {}
    for place in _timed(evidence):
        places.setdefault(evidence.clocks.get(place.file, 0), place)
    if len(places) < 2:
        return None
    names = ", ".join(place.file for place in list(places.values())[:4])
    return (
        f"{names} name no time zone, and neither begin nor end together: what is in one is not ordered against what is "
        "in another"
    )


def is_alone(evidence: LogEvidence, place: Place) -> bool:
    """Whether there is an alarm, exception or exit with a time that cannot be ordered against one at ``place``."""
    return any(not evidence.same_clock(one, place) for one in _timed(evidence))


def _timed(evidence: LogEvidence) -> list[Place]:
    """Where alarms, exceptions and exits with a time stand."""
    told: list[Timeout | DumpSignal | Raised | Exit] = [
        *evidence.timeouts, *evidence.signals, *evidence.raised, *evidence.exits,
    ]  # fmt: skip
    return [one.place for one in told if one.moment_ns is not None]
