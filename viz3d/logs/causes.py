"""Why a job ended, by its logs: the exceptions and deaths that came first, apart from those that only followed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..deaths import Death
from ..verdict import CulpritKind
from .facts import DumpSignal, Ending, Exit, GpuFault, LogEvidence, Place, Raised, Timeout, Watermark
from .groups import key_of, process_ranks
from .nccl import same_bus

TOGETHER_NS = 2 * 10**9
"""Troubles within this time are taken for one: logs of several hosts are no finer."""

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

MISFIT = re.compile(r"op\.preamble\.length <= op\.nbytes")
"""What gloo says in a process that got a longer message than it awaited: it, or the one that sent it, is wrong."""

OF_DEVICES = frozenset({48, 62, 74, 79, 94, 95, 119, 120})
"""Xids after which a device does not go on: memory errors, halts, a lost link or bus, a GSP that does not answer."""

FAULT_BEFORE_NS = 10 * 60 * 10**9
"""A fault of a device longer than this before the first alarm was got over."""

_KILLED = frozenset({4, 7, 8, 9, 11})
_ASKED = frozenset({2, 15})
_ABORT = 6
_RANK_TOLD = re.compile(r"\b[Rr]ank:? (\d{1,7})\b")
_NODE_TOLD = re.compile(r"\bnode:? ([A-Za-z][\w.-]*)")
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Cause:
    """One trouble that is not known to follow from another. ``ranks`` is empty where no line tells whose it is."""

    ranks: tuple[int, ...]
    host: str | None
    kind: CulpritKind
    confidence: float
    statement: str
    where: str | None
    moment_ns: int | None
    place: Place
    alike: tuple[str, ...] = ()


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
    faults, notes = _faults(evidence)
    found = _not_later(evidence, [*own, *exits])
    first = _first(found) if found else []
    accused = {rank for one in first for rank in one.ranks}
    timely = [fault for fault in _not_later(evidence, faults) if _is_timely(fault, evidence)]
    behind = _behind(evidence)
    counted = [
        fault
        for fault in timely
        if not first and not accused & set(fault.ranks) and (not behind or behind & set(fault.ranks))
    ]
    notes += [f"{fault.statement} ({fault.place})" for fault in faults if fault not in counted]
    first += counted
    return Causes(tuple(_merged(first)), frozenset(following), tuple(notes))


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
            own.append(_cause_of(raised, rank))
    return own, following


def _speaks_later(raised: Raised, rank: int | None, evidence: LogEvidence) -> bool:
    """Whether the rank's watchdog writes clearly later: the exception was caught, the process went on."""
    signs: list[Timeout | Watermark | DumpSignal] = [*evidence.timeouts, *evidence.watermarks, *evidence.signals]
    for one in signs:
        if rank is None or one.rank != rank:
            continue
        if raised.moment_ns is not None and one.moment_ns is not None:
            if one.moment_ns > raised.moment_ns + TOGETHER_NS:
                return True
        elif one.place.file == raised.place.file and one.place.line > raised.place.line:
            return True
    return False


def _behind(evidence: LogEvidence) -> set[int]:
    """Ranks whose last enqueued operation lies before one that others of the same group wait in."""
    waited: dict[str, int] = {}
    marked = [(one, key_of(one.label)) for one in evidence.watermarks if one.label is not None]
    for one, group in marked:
        if group is not None and one.failed is not None:
            waited[group] = min(one.failed, waited.get(group, one.failed))
    return {
        one.rank
        for one, group in marked
        if group is not None and one.rank is not None and one.enqueued < waited.get(group, 0)
    }


def _is_timely(fault: Cause, evidence: LogEvidence) -> bool:
    """Whether a device's fault is not so long before the first alarm, or the log's end, that the job went on after."""
    alarms: list[Timeout | DumpSignal] = [*evidence.timeouts, *evidence.signals]
    moments = [one.moment_ns for one in alarms if one.moment_ns is not None]
    limits = [one.limit_ms for one in evidence.timeouts if one.limit_ms is not None]
    if any(one.reason == "finished" for one in evidence.endings):
        return False
    if fault.moment_ns is None or not moments:
        return True
    return fault.moment_ns >= min(moments) - FAULT_BEFORE_NS - max(limits, default=0) * 10**6


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


def _cause_of(raised: Raised, rank: int | None) -> Cause:
    who = "a rank" if rank is None else f"rank {rank}"
    message = next(iter(raised.message.splitlines()), "")[:300]
    node = _NODE_TOLD.search(raised.message)
    at = f" in {raised.frame}" if raised.frame else ""
    kind, sure = CulpritKind.EXCEPTION, 0.9
    if MISFIT.search(raised.message):
        kind, sure = CulpritKind.MISMATCH, 0.4
        message += " (it got a longer message than it awaited: it, or the one that sent it, is wrong)"
    told = f"{who} raised {raised.type}{at}: {message}" if message else f"{who} raised {raised.type}{at}"
    return Cause(
        () if rank is None else (rank,), node[1] if node else raised.speaker.host, kind, sure, told,
        raised.frame, raised.moment_ns, raised.place, (raised.type, _NUMBERS.sub("#", message)[:80]),
    )  # fmt: skip


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
        causes.append(_cause_of_exit(one, rank, signal))
    return causes


def _cause_of_exit(one: Exit, rank: int, signal: int | None) -> Cause:
    killed = signal is not None
    kind = CulpritKind.DEAD if killed else CulpritKind.EXCEPTION
    how = f"was ended by signal {signal}" if killed else f"ended with exit code {one.code}"
    said = f" ({one.message})" if one.message else ", and its log does not say why"
    seen = ", the first that its launcher saw" if one.is_root else ""
    sure = (0.85 if signal in _KILLED else 0.7) if killed else 0.6
    return Cause(
        (rank,), one.speaker.host, kind, sure, f"the process of rank {rank} {how}{said}{seen}", None,
        one.moment_ns, one.place, ("exit", str(one.code)),
    )  # fmt: skip


def _with_rank(cause: Cause, exits: Sequence[Exit]) -> Cause:
    """An exception that names no rank is the one of the rank that the launcher saw end first, if it saw one only."""
    roots = {one.speaker for one in exits if one.is_root and one.speaker.rank is not None and (one.code or 0) > 0}
    if cause.ranks or len(roots) != 1:
        return cause
    speaker = next(iter(roots))
    told = cause.statement.replace("a rank", f"rank {speaker.rank}", 1)
    return replace(cause, ranks=(speaker.rank or 0,), host=cause.host or speaker.host, statement=told, confidence=0.8)


def _not_later(evidence: LogEvidence, causes: Iterable[Cause]) -> list[Cause]:
    """Without what came after the first alarm of a watchdog, or after the job was asked to end: that is what ends look
    like. Nor does what came before a finish count: it was got over."""
    asked = [one for one in evidence.endings if one.reason == "interrupted"]
    alarms: list[Timeout | DumpSignal | Ending] = [*evidence.timeouts, *evidence.signals, *asked]
    finished = {one.place.file: one.place.line for one in evidence.endings if one.reason == "finished"}
    moments = [one.moment_ns for one in alarms if one.moment_ns is not None]
    lines: dict[str, int] = {}
    for one in alarms:
        lines[one.place.file] = min(one.place.line, lines.get(one.place.file, one.place.line))
    kept = []
    for cause in causes:
        if cause.place.line < finished.get(cause.place.file, 0):
            continue
        is_report = cause.alike[:1] == ("exit",)  # launchers report when all is over, dead processes died before
        if cause.moment_ns is not None and moments:
            late = cause.moment_ns > min(moments) + TOGETHER_NS and not (is_report and cause.kind == CulpritKind.DEAD)
        else:
            late = cause.place.line > lines.get(cause.place.file, cause.place.line) and not is_report
        if not late:
            kept.append(cause)
    return kept


def _first(causes: Sequence[Cause]) -> list[Cause]:
    """The troubles that no other surely came before, and all of the same kind as those: they have one reason."""
    first = [one for one in causes if not any(_is_before(other, one) for other in causes)]
    alike = {one.alike for one in first}
    return [one for one in causes if one in first or one.alike in alike]


def _is_before(one: Cause, other: Cause) -> bool:
    if one.moment_ns is not None and other.moment_ns is not None:
        return one.moment_ns + TOGETHER_NS < other.moment_ns
    is_report = "exit" in (one.alike[:1] + other.alike[:1])
    return one.place.file == other.place.file and one.place.line < other.place.line and not is_report


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


def _faults(evidence: LogEvidence) -> tuple[list[Cause], list[str]]:
    """Faults of devices that the driver logged, by the rank whose device it is; else as notes."""
    ranks = process_ranks(evidence.members)
    owner = [(one, ranks[one.host, one.pid]) for one in evidence.members if (one.host, one.pid) in ranks]
    causes, notes = [], []
    for fault in evidence.gpu_faults:
        where = f"device {fault.bus_id}" + (f" of {fault.host}" if fault.host else "")
        told = f"Xid {fault.xid} on {where}: {fault.text}"
        mine = {rank for one, rank in owner if _is_on(fault, one.host, one.bus_id)}
        if fault.xid not in OF_DEVICES or len(mine) != 1:
            notes.append(f"{told} ({fault.place})")
            continue
        causes.append(
            Cause(tuple(mine), fault.host, CulpritKind.DEVICE_STUCK, 0.7, told, None, fault.moment_ns, fault.place,
                  ("xid", str(fault.xid)))
        )  # fmt: skip
    return causes, notes


def _is_on(fault: GpuFault, host: str, bus_id: str | None) -> bool:
    named = fault.host is None or fault.host.split(".")[0] == host.split(".", maxsplit=1)[0]
    return named and bus_id is not None and same_bus(fault.bus_id, bus_id)


__all__ = ["Cause", "Causes", "find_causes", "follows"]
