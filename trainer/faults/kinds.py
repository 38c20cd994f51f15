"""The kinds of faults, what each of them takes, and how they are written on a command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ...profiler.errors import UsageError


class FaultKind(StrEnum):
    """What goes wrong."""

    SLOW = "slow"
    SLOW_LINK = "slow-link"
    SLOW_NIC = "slow-nic"
    STOP = "stop"
    FREEZE = "freeze"
    HOLD_GIL = "hold-gil"
    RAISE = "raise"
    OUT_OF_MEMORY = "out-of-memory"
    KILL = "kill"
    KILL_HOST = "kill-host"
    NO_RENDEZVOUS = "no-rendezvous"
    NAN = "nan"
    DIVERGE = "diverge"
    SKIP_COLLECTIVE = "skip-collective"
    WRONG_COLLECTIVE = "wrong-collective"
    WRONG_SIZE = "wrong-size"
    WRONG_DTYPE = "wrong-dtype"
    SWAP_ORDER = "swap-order"
    RECEIVE_FIRST = "receive-first"
    SKIP_SEND = "skip-send"
    REPEAT_STEP = "repeat-step"


LATE = frozenset({FaultKind.SLOW_LINK, FaultKind.SLOW_NIC})
"""Kinds that delay what goes between ranks."""

OF_ALL = frozenset({FaultKind.DIVERGE})
"""Kinds that name no ranks: all of them carry it, alike."""

ENDING = frozenset({FaultKind.KILL, FaultKind.KILL_HOST})
"""Kinds after which the rank records nothing more."""

ACTS = ENDING | {
    FaultKind.STOP, FaultKind.FREEZE, FaultKind.HOLD_GIL, FaultKind.RAISE, FaultKind.OUT_OF_MEMORY,
}  # fmt: skip
"""Kinds that befall a rank in the middle of its own work, or at the start of a step."""

ALTERING = frozenset({FaultKind.WRONG_COLLECTIVE, FaultKind.WRONG_SIZE, FaultKind.WRONG_DTYPE})
"""Kinds in which a rank calls a collective in another way than its peers."""

SKIPPING = frozenset({FaultKind.SKIP_COLLECTIVE, FaultKind.SKIP_SEND})
"""Kinds in which a rank leaves out an operation."""

_AT = {"rank", "step"}
_IN = {"rank", "segment", "step"}

REQUIRED = {
    FaultKind.SLOW: {"rank", "factor"},
    FaultKind.SLOW_LINK: {"link", "delay_ms"},
    FaultKind.SLOW_NIC: {"rank", "delay_ms"},
    FaultKind.STOP: _IN,
    FaultKind.FREEZE: _AT,
    FaultKind.HOLD_GIL: _AT,
    FaultKind.RAISE: _AT,
    FaultKind.OUT_OF_MEMORY: _AT,
    FaultKind.KILL: _AT,
    FaultKind.KILL_HOST: _AT,
    FaultKind.NO_RENDEZVOUS: {"rank"},
    FaultKind.NAN: _AT,
    FaultKind.DIVERGE: {"factor"},
    FaultKind.SKIP_COLLECTIVE: _IN,
    FaultKind.WRONG_COLLECTIVE: _IN,
    FaultKind.WRONG_SIZE: _IN,
    FaultKind.WRONG_DTYPE: _IN,
    FaultKind.SWAP_ORDER: _AT,
    FaultKind.RECEIVE_FIRST: _AT,
    FaultKind.SKIP_SEND: _IN,
    FaultKind.REPEAT_STEP: _AT,
}
OPTIONAL: dict[FaultKind, set[str]] = {
    FaultKind.SLOW: {"segment", "from", "to"},
    FaultKind.SLOW_LINK: {"from", "to"},
    FaultKind.SLOW_NIC: {"from", "to"},
    FaultKind.DIVERGE: {"from", "to"},
    **{kind: {"segment"} for kind in ACTS - {FaultKind.STOP}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. ``segments`` empty means forward and backward for slow, else the start of the step; ``ranks`` empty
    means all.

    ``last_step`` is the last step that has it, None for all that follow. ``link`` is (source, destination).
    ``attempt`` None acts in every attempt, so that a restarted job that repeats the step meets it again.
    """

    text: str
    kind: FaultKind
    ranks: tuple[int, ...]
    segments: tuple[str, ...] = ()
    factor: float | None = None
    delay_ms: float | None = None
    link: tuple[int, int] | None = None
    first_step: int = 0
    last_step: int | None = None
    attempt: int | None = None

    def covers(self, step: int) -> bool:
        """Whether the fault acts in a step."""
        return self.first_step <= step and (self.last_step is None or step <= self.last_step)


def parse_fault(text: str) -> Fault:
    """Parse ``KIND key=value ...``; several ranks or segments are joined by commas.

    slow rank=5 factor=1.5 [segment=forward,backward] [from=20] [to=100]; slow-link link=1>5 delay_ms=20 [from=] [to=];
    slow-nic rank=2,3 delay_ms=20 [from=] [to=] (the ranks of its host: what goes between them is not delayed);
    stop, freeze, hold-gil, raise, out-of-memory, kill, kill-host rank=3 step=12 segment=forward (only stop must have a
    segment);
    skip-collective, wrong-collective, wrong-size, wrong-dtype rank=3 step=12 segment=dp_all_gather;
    skip-send rank=3 step=12 segment=send_forward; receive-first, swap-order, repeat-step, nan rank=3 step=12;
    diverge factor=1000 [from=20] [to=100] (all ranks); no-rendezvous rank=3. Each takes attempt=0 too, to act in that
    attempt alone. Raises UsageError for anything else.
    """
    name, *pairs = text.split() or [""]
    if name not in set(FaultKind):
        raise UsageError(f"The fault {text!r} has no known kind: begin it with one of {', '.join(FaultKind)}.")
    kind = FaultKind(name)
    values = read_pairs(text, kind, pairs, REQUIRED[kind] | OPTIONAL.get(kind, set()) | {"attempt"})
    if missing := sorted(REQUIRED[kind] - values.keys()):
        raise UsageError(f"The fault {text!r} lacks {', '.join(missing)}: add it as key=value.")
    try:
        fault = _from_values(text, kind, values)
    except ValueError as error:
        raise UsageError(f"The fault {text!r} has a value that cannot be read ({error}): use numbers.") from error
    is_empty = fault.last_step is not None and fault.last_step < fault.first_step
    is_fast = fault.factor is not None and not 1 < fault.factor < 1e6
    is_short = fault.delay_ms is not None and not 0 < fault.delay_ms < 1e9
    if is_empty or is_fast or is_short or min(*fault.ranks, fault.first_step, fault.attempt or 0) < 0:
        raise UsageError(
            f"The fault {text!r} would do nothing: give ranks, steps and attempts from 0, a factor above 1, a delay_ms "
            "above 0, and a to that is not before from."
        )
    return fault


def read_pairs(text: str, kind: StrEnum, pairs: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """The ``key=value`` parts of a fault; ``known`` are the keys that its kind takes. UsageError for anything else."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not value or key not in known or key in values:
            raise UsageError(
                f"The fault {text!r} has {pair!r}, which {kind} does not take: "
                f"use {', '.join(sorted(known))}, as key=value."
            )
        values[key] = value
    return values


def _from_values(text: str, kind: FaultKind, values: dict[str, str]) -> Fault:
    link = None
    if "link" in values:
        source, destination = (int(rank) for rank in values["link"].split(">"))
        link = source, destination
    ranks = tuple(int(rank) for rank in values["rank"].split(",")) if "rank" in values else ()
    first = int(values.get("step", values.get("from", "0")))
    last = values.get("step", values.get("to"))
    return Fault(
        text=text,
        kind=kind,
        ranks=link or ranks,
        segments=tuple(values["segment"].split(",")) if "segment" in values else (),
        factor=float(values["factor"]) if "factor" in values else None,
        delay_ms=float(values["delay_ms"]) if "delay_ms" in values else None,
        link=link,
        first_step=first,
        last_step=None if last is None else int(last),
        attempt=int(values["attempt"]) if "attempt" in values else None,
    )
