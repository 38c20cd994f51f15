"""Simulated faults as data: what goes wrong, where, how much and when; and their rows in the table ``faults``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...profiler.errors import UsageError
from ..faults.kinds import read_pairs

MOST_RANKS = 1_000_000

MOST_SPREAD = 2.0
"""Of the logarithm: a micro-batch in forty already costs fifty times the usual one."""


class FaultKind(StrEnum):
    """What goes wrong. The first ten make a job slow (or only unseen), the last two hold it up for a while; the others
    make it hang, or crash."""

    SLOW_GPU = "slow-gpu"
    THROTTLING = "throttling"
    SLOW_HOST = "slow-host"
    DEGRADED_NIC = "degraded-nic"
    GC_DRIFT = "gc-drift"
    DATA_STALL = "data-stall"
    STORAGE_STALL = "storage-stall"
    UNEVEN_SEQUENCES = "uneven-sequences"
    UNEVEN_STAGES = "uneven-stages"
    LOST_HEARTBEATS = "lost-heartbeats"
    DEAD = "dead"
    EXCEPTION = "exception"
    HOST_STUCK = "host-stuck"
    DEVICE_STUCK = "device-stuck"
    MISMATCH = "mismatch"
    MISSING_CALL = "missing-call"
    ITERATION_DESYNC = "iteration-desync"
    DIVERGED = "diverged"
    ORDER_INVERSION = "order-inversion"
    P2P_CYCLE = "p2p-cycle"
    NETWORK = "network"
    LIBRARY = "library"
    INIT = "init"
    CRAWLING = "crawling"
    LONG_PHASE = "long-phase"


SLOW_KINDS = tuple(FaultKind)[:9]
"""Kinds that make a job slow."""

HANG_KINDS = tuple(FaultKind)[10:23]
"""Kinds after which a job does not go on."""

HELD_UP_KINDS = tuple(FaultKind)[23:]
"""Kinds that look like a hang for a while, and are none: the job goes on."""

LONG_PHASES = ("checkpoint", "evaluation", "compile")
"""Segments that may well take long while all others wait."""

STATES = ("sleeping", "running", "disk-sleep", "stopped")
"""What the process of a rank that is stuck on its host may be in: it waits, holds the GIL, reads, was stopped."""

TYPE, SIZE = "type", "size"
"""In what a rank's collective may differ from that of its peers."""

TOLD = "told"
"""Of unequal sequences: each rank says how many tokens it had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. What a kind does not use is None; steps are optimizer iterations, ``last_step`` None has no end.

    ``factor`` multiplies durations (of a degraded NIC: of transfers, 1 / bandwidth left). ``delay_ms`` is added to each
    stall, every ``every`` steps; ``growth_ms`` is what a pause of garbage collection has grown to after 100 steps.
    ``spread`` is the standard deviation of the logarithm of micro-batch costs. ``period`` and ``duty`` are the steps
    of one cycle of throttling, and the share of them that is slow. ``host`` counts from 0. ``state`` is what the
    process of a stuck rank is in, ``differs`` in what a mismatching collective does.
    """

    text: str
    kind: FaultKind
    ranks: tuple[int, ...] = ()
    host: int | None = None
    stage: int | None = None
    segment: str | None = None
    microbatch: int | None = None
    factor: float | None = None
    delay_ms: float | None = None
    growth_ms: float | None = None
    spread: float | None = None
    every: int = 1
    period: int | None = None
    duty: float = 0.5
    first_step: int = 0
    last_step: int | None = None
    state: str | None = None
    differs: str | None = None
    tokens: str | None = None

    @property
    def is_hang(self) -> bool:
        """Whether the job does not go on after it, or seems so for a while: nothing is simulated from there on."""
        return self.kind in HANG_KINDS or self.kind in HELD_UP_KINDS


def _ranks(text: str) -> tuple[int, ...]:
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen = range(int(first), int(last or first) + 1)
        if len(chosen) > MOST_RANKS:
            raise ValueError(f"more than {MOST_RANKS} ranks")
        ranks.update(chosen)
    if not ranks:
        raise ValueError("no rank")
    return tuple(sorted(ranks))


def _steps(text: str) -> tuple[int, int | None]:
    first, dash, last = text.partition("-")
    if not dash:
        return int(first), int(first)
    return int(first or 0), int(last) if last else None


_READ: Mapping[str, Callable[[str], Any]] = {
    "rank": _ranks, "host": int, "stage": int, "segment": str, "microbatch": int, "factor": float, "delay_ms": float,
    "growth_ms": float, "spread": float, "every": int, "period": int, "duty": float, "bandwidth": float,
    "steps": _steps, "step": int, "state": str, "differs": str, "tokens": str,
}  # fmt: skip

_RANK_OR_HOST = frozenset({"rank", "host"})
_SLOW_KEYS: Mapping[FaultKind, tuple[set[str], set[str]]] = {
    FaultKind.SLOW_GPU: ({"rank", "factor"}, {"segment", "steps"}),
    FaultKind.THROTTLING: ({"rank", "factor", "period"}, {"duty", "steps"}),
    FaultKind.SLOW_HOST: ({"host", "factor"}, {"segment", "steps"}),
    FaultKind.DEGRADED_NIC: (set(), {"rank", "host", "bandwidth", "steps"}),
    FaultKind.GC_DRIFT: ({"growth_ms"}, {"rank", "every", "steps"}),
    FaultKind.DATA_STALL: ({"delay_ms"}, {"rank", "host", "every", "steps"}),
    FaultKind.STORAGE_STALL: ({"delay_ms"}, {"rank", "host", "every", "steps"}),
    FaultKind.UNEVEN_SEQUENCES: ({"spread"}, {"steps", "tokens"}),
    FaultKind.UNEVEN_STAGES: ({"stage", "factor"}, {"steps"}),
    FaultKind.LOST_HEARTBEATS: (set(), {"rank", "host", "steps"}),
}
_HANG_KEYS: tuple[set[str], set[str]] = ({"rank", "step"}, {"segment", "microbatch"})
_OTHER_HANG_KEYS: Mapping[FaultKind, tuple[set[str], set[str]]] = {
    FaultKind.DEAD: ({"step"}, {"rank", "host", "segment", "microbatch"}),
    FaultKind.HOST_STUCK: (_HANG_KEYS[0], _HANG_KEYS[1] | {"state"}),
    FaultKind.MISMATCH: (_HANG_KEYS[0], _HANG_KEYS[1] | {"differs"}),
    FaultKind.CRAWLING: ({"rank", "step", "factor"}, set()),
    FaultKind.LONG_PHASE: ({"rank", "step", "segment", "delay_ms"}, set()),
}
_NEEDS_A_PLACE = frozenset({FaultKind.DEGRADED_NIC, FaultKind.STORAGE_STALL, FaultKind.LOST_HEARTBEATS, FaultKind.DEAD})
_ONE_PLACE = _NEEDS_A_PLACE | {FaultKind.DATA_STALL}
_WORDS: Mapping[str, tuple[str, ...]] = {"state": STATES, "differs": (TYPE, SIZE), "tokens": (TOLD,)}


def parse_fault(text: str) -> Fault:
    """Parse ``KIND:key=value:key=value``; ``rank`` may be 3 or 3,7 or 8-15, ``steps`` 20-40 or 20- (without an end).

    slow-gpu:rank=5:factor=1.3[:segment=backward][:steps=20-]; throttling:rank=5:factor=1.4:period=10[:duty=0.5];
    slow-host:host=2:factor=1.2; degraded-nic:rank=5 (or host=2) [:bandwidth=0.1]; gc-drift:growth_ms=40[:rank=..]
    [:every=5]; data-stall:delay_ms=300[:rank=5][:every=4] (of all ranks that load, if none is named);
    storage-stall:host=2:delay_ms=2000[:every=10]; uneven-sequences:spread=0.3[:tokens=told];
    uneven-stages:stage=3:factor=1.2; lost-heartbeats:host=2[:steps=20-40]; and of hangs
    host-stuck:rank=5:step=12[:segment=data][:microbatch=3][:state=stopped], mismatch:rank=5:step=12[:differs=size],
    dead:host=2:step=12, and each other kind of HANG_KINDS with rank and step; and of what only looks like a hang
    crawling:rank=5:step=12:factor=30 and long-phase:rank=5:step=12:segment=checkpoint:delay_ms=20000.
    Raises UsageError for anything else.
    """
    name, *pairs = text.split(":")
    if name not in set(FaultKind):
        raise UsageError(f"The fault {text!r} has no known kind: begin it with one of {', '.join(FaultKind)}.")
    kind = FaultKind(name)
    required, optional = {**_SLOW_KEYS, **_OTHER_HANG_KEYS}.get(kind, _HANG_KEYS)
    values = _read_pairs(text, kind, pairs, required | optional)
    if missing := sorted(required - values.keys()):
        raise UsageError(f"The fault {text!r} lacks {', '.join(missing)}: add it as key=value.")
    places = len(_RANK_OR_HOST & values.keys())
    if (kind in _NEEDS_A_PLACE and places != 1) or (kind in _ONE_PLACE and places > 1):
        raise UsageError(f"The fault {text!r} must say where it is: add either rank=NUMBER or host=NUMBER.")
    fault = _from_values(text, kind, values)
    if problem := _senseless(fault):
        raise UsageError(f"The fault {text!r} {problem}.")
    return fault


def _read_pairs(text: str, kind: FaultKind, pairs: list[str], known: set[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in read_pairs(text, kind, pairs, known).items():
        try:
            values[key] = _READ[key](value)
        except ValueError as error:
            raise UsageError(f"The fault {text!r} has a {key} that cannot be read ({error}): give numbers.") from error
    return values


def _from_values(text: str, kind: FaultKind, values: dict[str, Any]) -> Fault:
    first, last = values.pop("steps", (0, None))
    if "step" in values:
        first = last = values.pop("step")
    factor = values.pop("factor", None)
    if kind is FaultKind.DEGRADED_NIC:
        left = values.pop("bandwidth", 0.1)
        factor = 1 / left if left > 0 else math.nan
    ranks = values.pop("rank", ())
    return Fault(text=text, kind=kind, ranks=ranks, factor=factor, first_step=first, last_step=last, **values)


def _senseless(fault: Fault) -> str | None:
    """What makes a fault one that could not act."""
    whole = [fault.first_step, *fault.ranks, *(n for n in (fault.host, fault.stage, fault.microbatch) if n is not None)]
    if min(whole) < 0 or (fault.last_step is not None and fault.last_step < fault.first_step):
        return "has a number below zero, or steps that end before they begin: count from 0"
    if fault.factor is not None and not 1 < fault.factor < 1e6:
        return "slows nothing down: give a factor above 1 (or a bandwidth between 0 and 1)"
    for name in ("delay_ms", "growth_ms", "spread"):
        value = getattr(fault, name)
        if value is not None and not 0 < value < 1e9:
            return f"would do nothing: give a {name} above 0"
    if fault.spread is not None and fault.spread > MOST_SPREAD:
        return f"spreads sequences beyond any batch: give a spread up to {MOST_SPREAD:g}"
    if fault.every < 1 or (fault.period is not None and fault.period < 2) or not 0 < fault.duty < 1:
        return "has no such rhythm: give every from 1, a period from 2, and a duty between 0 and 1"
    return _unknown_word(fault)


def _unknown_word(fault: Fault) -> str | None:
    """What makes a fault one in words that mean nothing."""
    for name, words in _WORDS.items():
        if getattr(fault, name) not in (None, *words):
            return f"has no such {name}: use {', '.join(words)}"
    if fault.kind is FaultKind.LONG_PHASE and fault.segment not in LONG_PHASES:
        return f"names no segment that takes long by nature: use {', '.join(LONG_PHASES)}"
    return None


def as_row(
    fault: Fault,
    *,
    ranks: tuple[int, ...],
    host: str | None = None,
    link: str | None = None,
    segment: str | None = None,
    first_ns: int | None = None,
    last_ns: int | None = None,
) -> dict[str, Any]:
    """A row of the table ``faults``. ``ranks`` are those that carry the fault, which for a host or a stage are many."""
    return {
        "fault": fault.text,
        "kind": str(fault.kind),
        "ranks": list(ranks),
        "host": host,
        "link": link,
        "segment": segment or fault.segment,
        "factor": fault.factor,
        "first_step": fault.first_step,
        "last_step": fault.last_step,
        "first_ns": first_ns,
        "last_ns": last_ns,
    }
