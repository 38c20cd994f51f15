"""What roots from dumps come to: an accusation, a suspicion, or nothing, by what dumps of their library can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph import build_graph
from ..mismatch import Root
from ..states import Snapshot
from ..verdict import Abstention, CulpritKind, GroupName, State, listed
from .circles import may_be_steps_apart, one_may_have_made
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
"""Confidence in a rank that others wait for, or failed for want of, and that alone left no dump; and in each of those
of which one is in the right operation."""

DID_NOT_ANSWER = "the other ranks left a dump, and it did not: it is gone, stopped, or does not let its threads run"
EITHER = (
    "ranks that wait for each other are in different operations: one of them left out a call, made another one or took "
    "it late, and dumps of gloo do not tell which"
)
STEPS_APART = (
    "ranks that wait for each other are in different operations: some of them take these in another order, or whole "
    "replicas are in another step than the others, and dumps do not tell which"
)


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
    still = [_as_told(root, folder.dumps, snapshot) for root in roots if not set(root.ranks) & moved]
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
        unlike = [root for root in still if root.is_suspicion and _differ(root, snapshot)]
        return _without_answer(firm, unlike) if _needs_a_thread(folder.dumps) else Weighed(State.HANG, tuple(firm))
    if silent:
        return Weighed(State.INCONCLUSIVE, (), _waited_for(silent))
    if not still:
        state = State.SLOW if roots else State.INCONCLUSIVE
        reason = "those that others wait for moved between the two sets of dumps" if roots else _nothing(snapshot)
        return Weighed(state, (), (Abstention("dumps", reason),))
    why = "all have joined, and nothing tells why it does not complete"
    if unlike := [root for root in still if root.is_suspicion and _differ(root, snapshot)]:
        still, why = unlike, _why_unlike(unlike, snapshot)  # who is idle beside them may wait for them
    elif any(root.is_suspicion for root in still):
        why = "more than one rank may have been the first to stop, and nothing tells which"
    elif any(root.kind in IDLE for root in still):
        idle = {rank for root in still if root.kind in IDLE for rank in root.ranks}
        told = [_told(one) for one in doubted if one.rank in idle]
        why = "; ".join([_idle(sorted(idle)), *told])
        suspects = _who_did_not_answer(snapshot, answered, [one for one in doubted if one.rank in idle])
        if suspects:
            still = [*suspects, *(replace(one, confidence=min(one.confidence, MAY_WAIT)) for one in still)]
    return Weighed(State.INCONCLUSIVE, tuple(still), (Abstention("dumps", why),))


def _as_told(root: Root, dumps: Mapping[int, Dump], snapshot: Snapshot) -> Root:
    """What a root comes to by what is recorded: less in gloo's dumps. Of NCCL's only a circle of more than two ranks is
    doubted, in which whole replicas may be in another step.

    A rank that is in what others are done with is not stuck on its device: those may have given it up. Where all that
    differ are named for want of a majority, one of them is right, and the dumps do not tell which.
    """
    if not any(_is_gloo(dumps.get(rank)) for rank in root.ranks):
        is_open = root.kind == CulpritKind.ORDER_INVERSION and len(root.ranks) > 2
        if not (is_open and may_be_steps_apart(root.ranks, snapshot)):
            return root
    if root.kind == CulpritKind.DEVICE_STUCK:
        why = f"{root.why}, or has given it up: gloo does not tell which"
        return replace(root, kind=CulpritKind.LIBRARY, confidence=MAY_WAIT, why=why)
    if _differ(root, snapshot):
        return replace(root, confidence=min(root.confidence, NO_ANSWER), is_suspicion=True)
    return root


def _differ(root: Root, snapshot: Snapshot) -> bool:
    """Whether ranks are named because they are in different operations and nothing tells who is in the right one: all
    that are seen in a group's operation, or a circle that one of them may have made, or a replica in another step."""
    if root.kind == CulpritKind.ORDER_INVERSION:
        return one_may_have_made(root.ranks, snapshot) or may_be_steps_apart(root.ranks, snapshot)
    if root.kind != CulpritKind.MISMATCH or root.group is None:
        return False
    seen = {
        state.rank
        for state in snapshot.states.values()
        if any((one.group, one.sequence) == (root.group, root.sequence) for one in state.flights)
    }
    return seen <= set(root.ranks)


def _why_unlike(roots: Sequence[Root], snapshot: Snapshot) -> str:
    """What is said of ranks that differ: who is in the wrong operation, or in the wrong step, as far as is open."""
    order = [root.ranks for root in roots if root.kind == CulpritKind.ORDER_INVERSION]
    apart = len(order) == len(roots) and not any(one_may_have_made(ranks, snapshot) for ranks in order)
    return STEPS_APART if apart else EITHER


def _needs_a_thread(dumps: Mapping[int, Dump]) -> bool:
    """Whether a thread of the rank wrote the dumps when it was asked to, as gloo's and all that are JSON: of one that
    is stopped or holds the interpreter's lock there is none either. NCCL's own do not need the interpreter."""
    return any(_is_gloo(dump) or dump.is_json for dump in dumps.values())


def _without_answer(roots: Sequence[Root], unlike: Sequence[Root]) -> Weighed:
    """Ranks that are held to be dead for want of a dump alone, and those that differ: all are suspects."""
    suspects = (replace(one, kind=CulpritKind.HOST_STUCK, confidence=NO_ANSWER, why=DID_NOT_ANSWER) for one in roots)
    ranks = listed(sorted({rank for one in roots for rank in one.ranks}))
    why = f"that rank {ranks} left no dump does not tell whether it is dead: a log, or a store, may"
    return Weighed(State.INCONCLUSIVE, (*suspects, *unlike), (Abstention("dumps", why),))


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
    return [Root((rank,), CulpritKind.HOST_STUCK, NO_ANSWER, why=DID_NOT_ANSWER) for rank in sorted(lacking)]


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
