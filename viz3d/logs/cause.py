"""One trouble that a log tells of, as a cause: an exception, or the end of a process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..verdict import CulpritKind
from .facts import Exit, Place, Raised

MISFIT = re.compile(r"op\.preamble\.length <= op\.nbytes")
"""What gloo says in a process that got a longer message than it awaited: it, or the one that sent it, is wrong."""

FABRIC = re.compile(r"nvlink", re.IGNORECASE)
"""What drivers say of a fault on the way to another device: a link has two ends, and switches in between."""

EXIT = "exit"
"""First part of `Cause.alike` of what a launcher reports when all is over."""

_KILLED = frozenset({4, 7, 8, 9, 11})
_NODE_TOLD = re.compile(r"\bnode:? ([A-Za-z][\w.-]*)")
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Cause:
    """One trouble that is not known to follow from another. ``ranks`` is empty where no line tells whose it is;
    ``is_of_fabric``: what it met may lie at another device, or between them."""

    ranks: tuple[int, ...]
    host: str | None
    kind: CulpritKind
    confidence: float
    statement: str
    where: str | None
    moment_ns: int | None
    place: Place
    alike: tuple[str, ...] = ()
    is_of_fabric: bool = False


def cause_of(raised: Raised, rank: int | None) -> Cause:
    """An exception of a rank, of which ``rank`` is None where no line tells it."""
    who = "a rank" if rank is None else f"rank {rank}"
    message = next(iter(raised.message.splitlines()), "")[:300]
    node = _NODE_TOLD.search(raised.message)
    at = f" in {raised.frame}" if raised.frame else ""
    kind, sure = CulpritKind.EXCEPTION, 0.9
    if MISFIT.search(raised.message):
        kind, sure = CulpritKind.MISMATCH, 0.4
        message += " (it got a longer message than it awaited: it, or the one that sent it, is wrong)"
    is_of_fabric = FABRIC.search(raised.message) is not None
    if is_of_fabric:
        sure, message = 0.4, f"{message} (here it was met: the fault may be at another device, or between them)"
    told = f"{who} raised {raised.type}{at}: {message}" if message else f"{who} raised {raised.type}{at}"
    return Cause(
        () if rank is None else (rank,), node[1] if node else raised.speaker.host, kind, sure, told,
        raised.frame, raised.moment_ns, raised.place, (raised.type, _NUMBERS.sub("#", message)[:80]), is_of_fabric,
    )  # fmt: skip


def cause_of_exit(one: Exit, rank: int, signal: int | None) -> Cause:
    """The end of a rank's process; ``signal`` is the one that ended it, None for a plain exit."""
    killed = signal is not None
    kind = CulpritKind.DEAD if killed else CulpritKind.EXCEPTION
    how = f"was ended by signal {signal}" if killed else f"ended with exit code {one.code}"
    said = f" ({one.message})" if one.message else ", and its log does not say why"
    seen = ", the first that its launcher saw" if one.is_root else ""
    sure = (0.85 if signal in _KILLED else 0.7) if killed else 0.6
    return Cause(
        (rank,), one.speaker.host, kind, sure, f"the process of rank {rank} {how}{said}{seen}", None,
        one.moment_ns, one.place, (EXIT, str(one.code)),
    )  # fmt: skip
