"""Logs without an alarm of a watchdog: a set-up that does not end, a peer that was lost, an end, or nothing at all."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..verdict import Abstention, CulpritKind, Evidence, HangCulprit, State, listed
from .causes import Causes
from .facts import LogEvidence, Place, Raised

SILENCE = 0.3
"""Confidence in a rank of which all that is known is that it did not complain as the others did."""

LOST = 0.5
"""Confidence in the only rank that raised nothing while all others say that a peer is gone."""

NOT_COME = 0.6
"""Confidence in the ranks that wrote nothing, where as many did not come to the rendezvous."""

_JOINED = re.compile(r"(\d{1,7})/(\d{1,7}) clients joined")
_TIMED_OUT = ("timed out", "timeout")


@dataclass(frozen=True, slots=True)
class Found:
    """What logs come to, before it is put into words."""

    state: State
    culprits: tuple[HangCulprit, ...]
    waiting: frozenset[int]
    explained: frozenset[int]
    notes: tuple[Abstention, ...]


def line_evidence(statement: str, place: Place) -> Evidence:
    """Evidence that stands on a line of a log, named ``file:line`` as its table: no SQL asks for it."""
    return Evidence(statement, None, None, f"log {place}", "")


def without_alarm(evidence: LogEvidence, causes: Causes) -> Found:
    """No alarm and no first trouble: an end that was asked for, a peer that was lost, or nothing at all."""
    for raised in evidence.raised:
        if joined := _JOINED.search(raised.message):
            return _set_up(evidence, raised, int(joined[1]), int(joined[2]))
    if causes.following:
        return _lost_peer(evidence, causes.following)
    asked = next((one for one in evidence.endings if one.reason == "interrupted"), None)
    if asked is not None:
        reason = f"it was interrupted: {asked.text} ({asked.place})"
        return Found(State.FINISHED, (), frozenset(), frozenset(), (Abstention("exit", reason),))
    if any(one.reason == "finished" for one in evidence.endings):
        return Found(State.FINISHED, (), frozenset(), frozenset(), ())
    reason = "the logs tell of no timeout, no exception and no end"
    if evidence.signals:
        reason = "ranks were told to dump, and the line of the timeout itself is not in the logs"
    if evidence.last_step is not None:
        reason += f"; the last iteration that they print is {evidence.last_step}"
    return Found(State.INCONCLUSIVE, (), frozenset(), frozenset(), (Abstention("logs", reason),))


def _set_up(evidence: LogEvidence, raised: Raised, joined: int, expected: int) -> Found:
    """A rendezvous that did not end: as many ranks wrote nothing at all as did not come to it, or nobody can tell."""
    quiet = tuple(rank for rank in range(expected) if rank not in evidence.heard)
    told = f"{joined} of {expected} ranks came to the rendezvous ({raised.place})"
    waiting = evidence.heard & frozenset(range(expected))
    if len(quiet) != expected - joined:
        return Found(State.HANG, (), waiting, frozenset(), (Abstention("rendezvous", f"{told}; which is not told"),))
    told += f"; of rank {listed(quiet)} there is no line"
    hosts = dict.fromkeys(evidence.hosts[rank] for rank in quiet if rank in evidence.hosts)
    culprit = HangCulprit(
        quiet, tuple(hosts), NOT_COME, "high", CulpritKind.INIT, "rendezvous", None, len(waiting),
        (line_evidence(told, raised.place),),
    )  # fmt: skip
    return Found(State.HANG, (culprit,), waiting, waiting, ())


def _lost_peer(evidence: LogEvidence, following: frozenset[int]) -> Found:
    """All that was raised speaks of others. If one rank only raised nothing, it is what the others lost; of several,
    all but one may be what their launcher ended before they could say anything."""
    quiet = tuple(sorted(set(range(evidence.world_size or 0)) - following))
    first = next(one for one in evidence.raised if one.speaker.rank in following or one.speaker.rank is None)
    if len(quiet) != 1:
        among = f"; of ranks {listed(quiet)} there is no last word" if quiet else ""
        reason = f"ranks {listed(sorted(following))} lost a peer, and no log says who went first{among} ({first.place})"
        return Found(State.CRASHED, (), following, frozenset(), (Abstention("exceptions", reason),))
    stuck = any(phrase in one.message.lower() for one in evidence.raised for phrase in _TIMED_OUT)
    what = "waited in vain for a peer" if stuck else "say that a peer is gone"
    told = f"{len(following)} ranks {what}, and of rank {listed(quiet)} there is no last word"
    kind, sure = (CulpritKind.HOST_STUCK, SILENCE) if stuck else (CulpritKind.DEAD, LOST)
    state = State.INCONCLUSIVE if stuck else State.CRASHED
    hosts = dict.fromkeys(evidence.hosts[rank] for rank in quiet if rank in evidence.hosts)
    culprit = HangCulprit(
        quiet, tuple(hosts), sure, "medium" if stuck else "high", kind, None, None, len(following),
        (line_evidence(f"{told} ({first.place})", first.place),),
    )  # fmt: skip
    return Found(state, (culprit,), following, following, ())
