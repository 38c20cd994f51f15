"""Why a job ended, by its logs: the exceptions and deaths that came first, apart from those that only followed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..deaths import Death
from .cause import Cause, cause_of, cause_of_exit
from .clocks import UNSURE, is_alone
from .device_faults import device_faults, is_timely, ranks_behind
from .facts import DumpSignal, Exit, LogEvidence, Raised, Timeout, Watermark
from .order import TOGETHER_NS, first_of, not_later

LAUNCHERS = frozenset({"CalledProcessError", "ChildFailedError", "RendezvousConnectionError", "SignalException"})
"""Exceptions of launchers: a rank ended before they were raised."""

INTERRUPTS = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit", "BdbQuit"})
"""Ends that somebody asked for."""

FOLLOWING = (
    "watchdog caught", "collective operation timeout", "ncclremoteerror", "remote process exited",
    "nccl communicator was aborted", "recvvalue failed", "failed to recv, got 0 bytes",
    "application timeout caused pair closure", "heartbeat monitor timed out",
    "monitoredbarrier", "socket closed",
    "ncclsystemerror", "connection was likely closed", "store->get", "wait timeout after", "tcpstore",
    "default process group has not been initialized", "sendbytes failed", "process group has been aborted",
)  # fmt: skip
"""What exceptions say that follow from the trouble of another rank, beside what `deaths` knows."""

OWN = ("unhandled cuda error", "ncclunhandledcudaerror", "cuda error", "cuda failure", "out of memory", "invalid usage")
"""What exceptions of communication say where the trouble is the rank's own device or call."""

_ASKED = frozenset({2, 15})
_ABORT = 6
_RANK_TOLD = re.compile(r"\b[Rr]ank:? (\d{1,7})\b")


@dataclass(frozen=True, slots=True)
class Causes:
    """The first troubles, the ranks whose exceptions only speak of others, and what else is to be said."""

    first: tuple[Cause, ...] = ()
    following: frozenset[int] = frozenset()
    notes: tuple[str, ...] = field(default=())


def find_causes(evidence: LogEvidence) -> Causes:
    """The first troubles: exceptions of the ranks' own, deaths that launchers told, faults of devices."""
    own, following = _exceptions(evidence)
    own = [_with_rank(cause, evidence.exits) for cause in own]
    exits = _exits(evidence, {rank for cause in own for rank in cause.ranks}, following)
    faults, notes = device_faults(evidence)
    found = not_later(evidence, [*own, *exits])
    first = [_less_sure(cause, evidence) for cause in first_of(evidence, found)] if found else []
    accused = {rank for one in first for rank in one.ranks}
    timely = [fault for fault in not_later(evidence, faults) if is_timely(fault, evidence)]
    behind = ranks_behind(evidence)
    counted = [
        _less_sure(fault, evidence)
        for fault in timely
        if not first and not accused & set(fault.ranks) and (not behind or behind & set(fault.ranks))
    ]
    used = {fault.place for fault in counted}
    notes += [f"{fault.statement} ({fault.place})" for fault in faults if fault.place not in used]
    notes += _unordered(evidence, faults)
    first += counted
    return Causes(tuple(_merged(first)), frozenset(following), tuple(notes))


def _unordered(evidence: LogEvidence, faults: Sequence[Cause]) -> list[str]:
    """What is to be said of kernel logs whose times cannot be put in order with the job's."""
    files = dict.fromkeys(
        one.place.file for one in faults if one.moment_ns is not None and is_alone(evidence, one.place)
    )
    return [
        f"{name} and the job's logs tell the time by clocks that are not known to agree (without a zone it is shown as "
        "if in UTC): they are not ordered against each other"
        for name in files
    ]


def _less_sure(cause: Cause, evidence: LogEvidence) -> Cause:
    """A trouble that may have come after another one, for all that their clocks tell."""
    if cause.moment_ns is None or not is_alone(evidence, cause.place):
        return cause
    return replace(cause, confidence=min(cause.confidence, UNSURE))


def _exceptions(evidence: LogEvidence) -> tuple[list[Cause], set[int]]:
    own, following = [], set()
    for raised in evidence.raised:
        name = raised.type.rpartition(".")[2]
        if name in LAUNCHERS or name in INTERRUPTS:
            continue
        rank = _rank_of(raised)
        if follows(raised):
            following |= set() if rank is None else {rank}
            continue
        if not _speaks_later(raised, rank, evidence):
            own.append(cause_of(raised, rank))
    return own, following


def _speaks_later(raised: Raised, rank: int | None, evidence: LogEvidence) -> bool:
    """Whether the rank's watchdog writes clearly later: the exception was caught, the process went on."""
    signs: list[Timeout | Watermark | DumpSignal] = [*evidence.timeouts, *evidence.watermarks, *evidence.signals]
    for one in signs:
        if rank is None or one.rank != rank:
            continue
        if raised.moment_ns is not None and one.moment_ns is not None:
            if not evidence.same_clock(one.place, raised.place):
                continue
            if one.moment_ns > raised.moment_ns + TOGETHER_NS:
                return True
        elif one.place.file == raised.place.file and one.place.line > raised.place.line:
            return True
    return False


def follows(raised: Raised) -> bool:
    """Whether an exception speaks of another rank's trouble: a connection that broke, a wait that took too long."""
    message = raised.message.lower()
    if any(phrase in message for phrase in OWN):
        return False
    death = Death(0, "exception", 0, raised.type, raised.message)
    return death.is_aftermath or any(phrase in message for phrase in FOLLOWING)


def _rank_of(raised: Raised) -> int | None:
    """The rank that raised: by the line's prefix or its file, else by the message itself."""
    if raised.speaker.rank is not None:
        return raised.speaker.rank
    found = _RANK_TOLD.search(raised.message)
    return None if found is None else int(found[1])


def _exits(evidence: LogEvidence, raising: set[int], following: set[int]) -> list[Cause]:
    """Ends of processes that no exception of the rank explains and that nobody asked for."""
    ranked = [one for one in evidence.exits if one.speaker.rank is not None]
    roots = [one for one in ranked if one.is_root] or [one for one in ranked if one.place == ranked[0].place]
    alarmed = {one.rank for one in evidence.timeouts}
    causes = []
    for one in roots:
        rank = one.speaker.rank
        signal = one.signal if one.code is None or one.code <= 128 else one.code - 128
        if rank is None or signal in _ASKED or one.code == 0 or rank in raising | following:
            continue
        if signal == _ABORT and (alarmed or following):
            continue  # a watchdog that gave up aborts its process
        if signal is None and rank in alarmed:
            continue
        causes.append(cause_of_exit(one, rank, signal))
    return causes


def _with_rank(cause: Cause, exits: Sequence[Exit]) -> Cause:
    """An exception that names no rank is the one of the rank that the launcher saw end first, if it saw one only."""
    roots = {one.speaker for one in exits if one.is_root and one.speaker.rank is not None and (one.code or 0) > 0}
    if cause.ranks or len(roots) != 1:
        return cause
    speaker = next(iter(roots))
    told = cause.statement.replace("a rank", f"rank {speaker.rank}", 1)
    return replace(cause, ranks=(speaker.rank or 0,), host=cause.host or speaker.host, statement=told, confidence=0.8)


def _merged(causes: Sequence[Cause]) -> list[Cause]:
    """One cause for all ranks that met the same; those of which no line tells the rank stay by themselves."""
    together: dict[tuple[object, ...], list[Cause]] = defaultdict(list)
    for number, one in enumerate(causes):
        together[(one.kind, one.alike) if one.ranks else (number,)].append(one)
    merged = []
    for same in together.values():
        ranks = tuple(sorted({rank for one in same for rank in one.ranks}))
        merged.append(replace(same[0], ranks=ranks, confidence=min(one.confidence for one in same)))
    return merged


__all__ = ["Cause", "Causes", "find_causes", "follows"]
