"""The object of `megascope stragglers --fleet --json`: attempts, hosts and weeks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...collectors import verdicts
from ...collectors.verdicts import Abstention

__all__ = ["Accusation", "AttemptRecord", "Fleet", "HostRecord", "Week", "to_json"]


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt: its verdict and what slow machines cost it.

    ``hours`` are those of its steps, ``gpu_hours`` times its ranks; ``ranks``, ``hosts`` and ``gpu_hours`` are None
    where their number is not known. ``lost_share`` is what accused machines cost: in every step the largest loss
    counts, since two slow ranks are waited for at once. ``lost_by`` what-if: what the replay of the schedule saves with
    the accused ranks repaired; step-time: the excess of the accused over their peers, but no more than the steps are
    longer than those outside the accused stretches; lost-share: that excess alone, which also counts what pipeline
    bubbles would have hidden.
    """

    store: str
    run: str
    attempt: int
    verdict: str
    ranks: int | None
    hosts: int | None
    steps: tuple[int, int] | None
    start_ns: int | None
    hours: float
    gpu_hours: float | None
    lost_share: float
    lost_by: str
    slowdown: float | None
    mfu: float | None
    mfu_without: float | None


@dataclass(frozen=True, slots=True)
class Accusation:
    """A host was accused in an attempt."""

    store: str
    run: str
    attempt: int
    kind: str
    cause: str
    segment: str
    ranks: tuple[int, ...]
    steps: tuple[int, int]
    ratio: float
    lost_share: float


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A machine over all attempts that were judged and that it took part in, under its latest name, ``host``.

    ``also`` are other names that its hosts had, the latest first; ``machine`` is its identity (table ``machines``),
    None where none is known: then hosts of one name are one machine.
    ``rate`` is accused over present, ``low`` to ``high`` its interval of 95 % (Wilson). ``chance`` is the probability
    of so many accusations at the rate of most hosts (`chance.usual_rate`), times the hosts tried; an ``offender`` was
    accused at least twice and has a chance below 5 %.
    """

    host: str
    present: int
    accused: int
    runs_present: int
    runs_accused: int
    rate: float
    low: float
    high: float
    chance: float
    offender: bool
    causes: dict[str, int]
    lost_hours: float
    lost_gpu_hours: float
    accusations: tuple[Accusation, ...]
    also: tuple[str, ...] = ()
    machine: str | None = None


@dataclass(frozen=True, slots=True)
class Week:
    """An ISO week in UTC, such as 2026-W40: what ran, and what accused machines cost."""

    week: str
    attempts: int
    hours: float
    gpu_hours: float
    lost_hours: float
    lost_gpu_hours: float
    lost_share: float
    mfu: float | None
    mfu_without: float | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The whole answer; hosts that were never accused are counted, not listed."""

    sentence: str
    stores: tuple[str, ...]
    runs: int
    attempts: tuple[AttemptRecord, ...]
    judged: int
    host_count: int
    hosts: tuple[HostRecord, ...]
    weeks: tuple[Week, ...]
    hours: float
    gpu_hours: float
    lost_hours: float
    lost_gpu_hours: float
    mfu: float | None
    mfu_without: float | None
    abstained: tuple[Abstention, ...]


def to_json(fleet: Fleet) -> dict[str, Any]:
    """The object that `megascope stragglers --fleet --json` prints."""
    return {"schema": verdicts.VERDICT_SCHEMA, **verdicts.to_json(fleet)}
