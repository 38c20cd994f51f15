"""What roots from dumps come to: an accusation, a suspicion, or nothing, by what dumps of their library can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph import build_graph
from ..mismatch import Root
from ..states import Snapshot
from ..verdict import Abstention, CulpritKind, GroupName, State, listed
from .facts import Dump, DumpFolder
from .given_up import GLOO, Doubt, doubts
from .scene import mixed_groups

UNCERTAIN = frozenset({CulpritKind.NETWORK, CulpritKind.LIBRARY})
IDLE = frozenset({CulpritKind.HOST_STUCK, CulpritKind.DEAD})
FEW = 8
"""Up to one rank in so many may be without a dump and be accused for it: of more, it is the dumps that are lost."""

MAY_WAIT = 0.3
"""Confidence in an idle rank beside one that did not answer."""

NO_ANSWER = 0.45
"""Confidence in a rank that others wait for, or failed for want of, and that alone left no dump."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """The state of the job, the roots that are named for it, and what is to be said of them."""

    state: State
    roots: tuple[Root, ...]
    notes: tuple[Abstention, ...] = ()


def weigh(
    folder: DumpFolder, snapshot: Snapshot, roots: Sequence[Root], moved: frozenset[int], *, compared: bool
) -> Weighed:
    """What the roots come to: firm ones make a hang, the others a suspicion.

    ``moved`` are the ranks that differ between two sets of dumps, if there are two (``compared``).
    """
    alive = frozenset(snapshot.states)
    if compared and alive and moved >= alive:
        return Weighed(State.RUNNING, ())
    still = [_as_told(root, folder.dumps) for root in roots if not set(root.ranks) & moved]
    doubted = doubts(folder.dumps)
    unsure = _who_may_wait(folder.dumps) | {one.rank for one in doubted}
    firm = [
        root for root in still
        if root.kind not in UNCERTAIN and not root.is_suspicion and not (root.kind in IDLE and set(root.ranks) & unsure)
    ]  # fmt: skip
    seen = [root for root in firm if alive & set(root.ranks)]
    silent = tuple(sorted({rank for root in firm if root not in seen for rank in root.ranks}))
    answered = {one.rank for one in folder.damaged if one.has_answered and one.rank is not None}
    firm = [root for root in firm if not set(root.ranks) <= answered]
    if seen:
        return Weighed(State.HANG, tuple(seen), _waited_for(silent))
    if firm and len(snapshot.missing) * FEW <= len(alive) + len(snapshot.missing):
        return Weighed(State.HANG, tuple(firm))
    if silent:
        return Weighed(State.INCONCLUSIVE, (), _waited_for(silent))
    if not still:
        state = State.SLOW if roots else State.INCONCLUSIVE
        reason = "those that others wait for moved between the two sets of dumps" if roots else _nothing(snapshot)
        return Weighed(state, (), (Abstention("dumps", reason),))
    why = "all have joined, and nothing tells why it does not complete"
    if any(root.is_suspicion for root in still):
        why = "more than one rank may have been the first to stop, and nothing tells which"
    elif any(root.kind in IDLE for root in still):
        idle = {rank for root in still if root.kind in IDLE for rank in root.ranks}
        told = [_told(one) for one in doubted if one.rank in idle]
        why = "; ".join([_idle(sorted(idle)), *told])
        suspects = _who_did_not_answer(snapshot, answered, [one for one in doubted if one.rank in idle])
        if suspects:
            still = [*suspects, *(replace(one, confidence=min(one.confidence, MAY_WAIT)) for one in still)]
    return Weighed(State.INCONCLUSIVE, tuple(still), (Abstention("dumps", why),))


def _as_told(root: Root, dumps: Mapping[int, Dump]) -> Root:
    """A rank of gloo that is in what others are done with is not stuck on its device: those may have given it up."""
    if root.kind != CulpritKind.DEVICE_STUCK or not any(_is_gloo(dumps.get(rank)) for rank in root.ranks):
        return root
    why = f"{root.why}, or has given it up: gloo does not tell which"
    return replace(root, kind=CulpritKind.LIBRARY, confidence=MAY_WAIT, why=why)


def _who_may_wait(dumps: Mapping[int, Dump]) -> set[int]:
    """Ranks that may wait in a message that their dump does not show, since gloo records none.

    Not where a rank shows collectives of all its groups, and their numbers show that no message came between.
    """
    own = {rank: dump for rank, dump in dumps.items() if _is_gloo(dump)}
    mixed = mixed_groups(own.values())
    return {rank for rank, dump in own.items() if _hides_messages(dump, mixed)}


def _hides_messages(dump: Dump, mixed: frozenset[GroupName]) -> bool:
    shown = {one.group for one in dump.operations} | set(dump.seen_completed)
    return any(len(group.ranks) > 1 and (group not in shown or group in mixed) for group in dump.groups)


def _is_gloo(dump: Dump | None) -> bool:
    return dump is not None and dump.library == GLOO


def _who_did_not_answer(snapshot: Snapshot, answered: set[int], doubted: Sequence[Doubt]) -> list[Root]:
    """Ranks without a dump that others wait for, where hardly any other dump is missing, or of which nothing shows that
    they came to what an idle rank did last: the first suspects.

    A thread of a rank writes its dump when it is asked to: not of one that is stopped or holds the interpreter's lock.
    """
    silent = set(snapshot.missing) - answered
    lacking = {rank for one in doubted for rank in silent.intersection(one.members)}
    if len(snapshot.missing) * FEW <= len(snapshot.states) + len(snapshot.missing):
        waits = (wait for own in build_graph(snapshot).waits.values() for wait in own)
        lacking |= {rank for wait in waits for rank in silent.intersection(wait.operation.absent)}
    why = "the other ranks left a dump, and it did not: it is gone, stopped, or does not let its threads run"
    return [Root((rank,), CulpritKind.HOST_STUCK, NO_ANSWER, why=why) for rank in sorted(lacking)]


def _idle(ranks: Sequence[int]) -> str:
    who = f"rank {listed(ranks)} has" if len(ranks) == 1 else f"ranks {listed(ranks)} have"
    may = "it may wait" if len(ranks) == 1 else "they may wait"
    return f"{who} no collective in flight, but gloo does not record sends and receives: {may}"


def _told(doubt: Doubt) -> str:
    last = f"{doubt.operation.name} #{doubt.operation.sequence} of {doubt.operation.group}"
    unseen = f"nothing shows that rank {listed(doubt.members)} came to it"
    return f"the last of rank {doubt.rank}, {last}, may have failed: {unseen}, and gloo does not tell the two apart"


def _waited_for(silent: Sequence[int]) -> tuple[Abstention, ...]:
    if not silent:
        return ()
    told = f"others wait for rank {listed(silent)}, of which there is no readable dump: nothing tells why"
    return (Abstention("dumps", told),)


def _nothing(snapshot: Snapshot) -> str:
    if any(state.flights for state in snapshot.states.values()):
        return "operations are in flight, and none lacks anybody"
    return "no dump has an operation in flight: no rank waits for another in a collective"
