"""The hang verdict: who is at the root, who only waits, and what the data cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ..collectors import verdicts
from ..collectors.verdicts import Abstention, Evidence
from ..profiler.exits import exit_words


class State(StrEnum):
    """What the job is doing. ``SLOW``: it moves, or has only begun to stall; ``FINISHED``: it has ended without a crash
    (interrupted, or without saying whether it was done, is told in ``abstained``)."""

    HANG = "hang"
    CRASHED = "crashed"
    SLOW = "slow"
    RUNNING = "running"
    FINISHED = "finished"
    INCONCLUSIVE = "inconclusive"


class CulpritKind(StrEnum):
    """What a root is stuck in."""

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


class _Hashed:
    """Room for a hash that is worked out once."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class GroupName(_Hashed):
    """A process group by its identity: kind and sorted global ranks."""

    kind: str
    ranks: tuple[int, ...]

    def __hash__(self) -> int:
        """Of the ends of the ranks only, and kept: the group of a fleet holds all of them, and is looked up often."""
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.kind, len(self.ranks), self.ranks[:2], self.ranks[-1:])))
            return self._hash

    def __str__(self) -> str:
        return f"{self.kind} [{listed(self.ranks)}]"


def listed(ranks: Sequence[int], most: int = 8) -> str:
    """Ranks in words, at most so many of them."""
    return ", ".join(str(rank) for rank in ranks[:most]) + (", ..." if len(ranks) > most else "")


def plain_age(seconds: float) -> str:
    """A duration in the unit that reads best."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def plain_utc(moment_ns: int) -> str:
    """A moment in words, to the millisecond."""
    return datetime.fromtimestamp(moment_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


@dataclass(frozen=True, slots=True)
class HangCulprit:
    """One root. ``segment`` is what it is in, or what it left out; ``group`` where it is missed; ``waiters`` how many
    ranks wait for it, directly or through others. ``exit_code``: of a process that ended, negative for the signal that
    killed it; None where it did not, or nobody told."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    confidence: float
    severity: str
    kind: CulpritKind
    segment: str | None
    group: GroupName | None
    waiters: int
    evidence: tuple[Evidence, ...]
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """A source of a verdict: ``kind`` is store, dumps or logs; ``count`` its ranks, dumps or files; ``damaged`` those
    of its files that could not be read."""

    kind: str
    path: str
    count: int
    damaged: int = 0

    def __str__(self) -> str:
        unit = {"store": "rank", "dumps": "dump"}.get(self.kind, "file")
        damaged = f", {self.damaged:,} not readable" if self.damaged else ""
        return f"{self.kind} {self.path} ({self.count:,} {unit}{'' if self.count == 1 else 's'}{damaged})"


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The object of `megascope hang --json`, field by field.

    ``victims`` counts the ranks that wait, ``explained`` those whose chain of waits ends at a culprit;
    ``unexplained`` are the others, ``missing`` the ranks without data. ``used`` says what it was read from.
    """

    run: str
    attempt: int
    data_age_s: float | None
    verdict: State
    victims: int = 0
    explained: int = 0
    unexplained: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    culprits: tuple[HangCulprit, ...] = ()
    abstained: tuple[Abstention, ...] = ()
    used: tuple[Used, ...] = ()

    def sentence(self) -> str:
        """The verdict in one sentence, for the top of a report or of a page."""
        if not self.culprits:
            reason = f": {self.abstained[0].reason}" if self.abstained else ""
            return _PLAIN[self.verdict] + reason + "."
        text = "; ".join(describe(one) for one in self.culprits[:3])
        if self.verdict in _SUSPICIONS:
            text = f"{_SUSPICIONS[self.verdict]}, suspected: {text}"
        if len(self.culprits) > 3:
            text += f"; and {len(self.culprits) - 3} more"
        covered = f" This explains {self.explained} of {self.victims} waiting ranks." if self.victims else ""
        return f"{text}.{covered}"


_PLAIN = {
    State.HANG: "The job hangs, and no root was found",
    State.CRASHED: "The job crashed, and no root was found",
    State.SLOW: "The job moves, or has only begun to stall",
    State.RUNNING: "The job is running",
    State.FINISHED: "The job has ended",
    State.INCONCLUSIVE: "It cannot be told what the job is doing",
}

_SUSPICIONS = {
    State.SLOW: _PLAIN[State.SLOW],
    State.INCONCLUSIVE: _PLAIN[State.INCONCLUSIVE],
}

_WORDS = {
    CulpritKind.DEAD: "is dead",
    CulpritKind.EXCEPTION: "ended with an exception",
    CulpritKind.HOST_STUCK: "is stuck",
    CulpritKind.DEVICE_STUCK: "does not complete what its peers completed",
    CulpritKind.MISMATCH: "called another operation than its peers",
    CulpritKind.MISSING_CALL: "left out a call",
    CulpritKind.ITERATION_DESYNC: "count another step than the others",
    CulpritKind.DIVERGED: "took another branch than its peers",
    CulpritKind.INIT: "does not come out of its set-up",
    CulpritKind.LIBRARY: "runs inside an operation that all have joined and none completes: suspect the library",
    CulpritKind.ORDER_INVERSION: "wait for each other in a circle of collectives",
    CulpritKind.P2P_CYCLE: "wait for each other in a circle of sends and receives",
    CulpritKind.NETWORK: "have all joined and none completes: suspect the links between them",
}


def describe(culprit: HangCulprit) -> str:
    """One root in words."""
    who = f"{'Rank' if len(culprit.ranks) == 1 else 'Ranks'} {listed(culprit.ranks)}"
    on = f" on {', '.join(culprit.hosts[:4])}" if culprit.hosts else ""
    what = _WORDS.get(culprit.kind, str(culprit.kind))
    if culprit.kind == CulpritKind.DEAD and culprit.exit_code is not None and len(culprit.ranks) == 1:
        what = exit_words(culprit.exit_code)
    of = " of" if culprit.kind == CulpritKind.MISSING_CALL else " in"
    where = f"{of} {culprit.segment}" if culprit.segment else ""
    group = f" in group {culprit.group}" if culprit.group else ""
    waits = culprit.waiters and culprit.kind not in (CulpritKind.NETWORK, CulpritKind.LIBRARY)
    waiters = f", {culprit.waiters} rank{'s wait' if culprit.waiters > 1 else ' waits'} for it" if waits else ""
    return f"{who}{on} {what}{where}{group}{waiters}"


def to_json(verdict: HangVerdict) -> dict[str, Any]:
    """The object that `megascope hang --json` prints and that the pages show.

    Beside the fields it has ``sentence``, and each culprit has ``next``: what to do, the first step first.
    """
    from .advice import next_steps  # noqa: PLC0415  (it is about culprits)

    result: dict[str, Any] = {"schema": verdicts.VERDICT_SCHEMA, **verdicts.to_json(verdict)}
    result["sentence"] = verdict.sentence()
    for culprit, one in zip(verdict.culprits, result["culprits"], strict=True):
        one["next"] = list(next_steps(culprit))
    return result


__all__ = [
    "Abstention",
    "CulpritKind",
    "Evidence",
    "GroupName",
    "HangCulprit",
    "HangVerdict",
    "State",
    "Used",
    "describe",
    "listed",
    "plain_age",
    "to_json",
]
