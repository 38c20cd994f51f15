"""Two looks at a job: who moved in between, who stands still, and what that makes of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .ends import Waiters
from .graph import WaitGraph, build_graph
from .history import History, NoHistory
from .mismatch import Root, deviants, find_mismatches
from .order import out_of_order
from .pace import KnownPace, Pace
from .patience import OF_THE_PROGRAM
from .programs import Programs
from .recovered import with_recovered, without_record
from .roots import LINKS, held, lacks_number, name_roots
from .states import Snapshot
from .stillness import Stillness, watch
from .streams import Streams
from .verdict import Abstention, State, listed

SLOW_S, FIRST_SLOW_S = 7.0, 10.0
"""From so long a wait on (or a whole step, if that is longer) somebody is said to hold the others up; the second is for
a job that has not completed a step yet."""

MAX_ROUNDS = 4
"""So far from ranks without data those are passed over that may wait for them."""

MOST_LACKING = 64
"""So many ranks that others wait for are held against their own steps where a rank without data ends the chains."""

SUSPECTED = 0.5
"""Factor on the confidence in a root that is not proven to be stuck."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What two looks at a job came to, before evidence is gathered; the graph of waits is the later look's."""

    state: State
    roots: tuple[Root, ...] = ()
    waiting: frozenset[int] = frozenset()
    explained: frozenset[int] = frozenset()
    abstained: tuple[Abstention, ...] = ()
    graph: WaitGraph = field(default_factory=WaitGraph, compare=False)


def compare_looks(
    earlier: Snapshot,
    later: Snapshot,
    history: History | None = None,
    pace: Pace | None = None,
) -> Diagnosis:
    """Judge two looks at a job: hang, slow, running or inconclusive, with the roots.

    A rank counts as still only if it is in both looks, at two moments, and did nothing in between; one that was seen
    once neither moved nor stands still. How long a root must stand still for a hang is `Patience.needed_s`.
    """
    past, pace = history or NoHistory(), pace or KnownPace()
    if not later.states:
        reason = "there are no heartbeats and no snapshot of what is in flight"
        return Diagnosis(State.INCONCLUSIVE, abstained=(Abstention("heartbeats", reason),))
    streams = Streams.of(later, past)
    seen, later = later, with_recovered(later, streams.recorded)
    mismatches = find_mismatches(later, past, streams)
    graph, roots = find_roots(later, past, mismatches, streams)
    still = watch(earlier, seen, graph, pace)
    notes = _notes(later, still)
    alive = {rank for rank, state in later.states.items() if not state.has_ended}
    if not still.seen_twice:
        reason = "there is only one look at each rank: a second one, some seconds later, tells stuck from slow"
        return Diagnosis(State.INCONCLUSIVE, abstained=(Abstention("heartbeats", reason), *notes), graph=graph)
    if still.moved and still.moved >= alive & still.seen_twice:
        return Diagnosis(State.RUNNING, abstained=notes, graph=graph)
    state, kept, more = _judge(later, roots, still, pace)
    if not kept:
        return Diagnosis(state, abstained=(*more, *notes), graph=graph)
    whole = graph
    if graph.unheard:
        whole = build_graph(later, past.asynchronous(), deviants(mismatches), streams=streams)
    waiting = frozenset(whole.waiting()) | {rank for root in kept for rank in _held_up(root, later, graph)}
    accused = {rank for root in kept for rank in root.ranks}
    explained = explained_by(whole, accused, frozenset(later.missing) - accused)
    victims = waiting - accused
    return Diagnosis(state, tuple(kept), frozenset(victims), explained & victims, (*more, *notes), graph)


def explained_by(graph: WaitGraph, accused: set[int], silent: frozenset[int]) -> frozenset[int]:
    """Ranks whose chain of waits ends at the accused. A rank without data, in an operation that lacks one of them or of
    those that wait for them, waits there like its other members."""
    waiters = Waiters.of(graph)
    reached = waiters.waiting_for(accused)
    behind = accused | reached
    operations = {id(wait.operation): wait.operation for waits in graph.waits.values() for wait in waits}
    passing = {
        rank for one in operations.values() if not behind.isdisjoint(one.absent)
        for rank in silent.intersection(one.members)
    }  # fmt: skip
    return frozenset(reached | waiters.waiting_for(accused | passing))


def find_roots(
    snapshot: Snapshot, history: History, mismatches: Sequence[Root], streams: Streams | None = None
) -> tuple[WaitGraph, list[Root]]:
    """The graph of waits and its roots; ranks without data are accused only where the others do not explain the stall.

    First all of them are excused, and who has lost its number where it is waited for, and ranks that issue in another
    order than ever are looked for; then those whose host is heard of through ranks beside them; and in any case those
    of which never anything was heard, though their host is or the job has run: they were there, and no agent was.
    """
    silent = frozenset(snapshot.missing)
    heard = {snapshot.hosts[rank] for rank in snapshot.states if rank in snapshot.hosts}
    beside = frozenset(rank for rank in silent if snapshot.hosts.get(rank) in heard)
    has_run = any(state.step is not None for state in snapshot.states.values())
    never = snapshot.never_heard if has_run else beside & snapshot.never_heard
    graph, roots = _roots(snapshot, history, mismatches, streams, silent)
    lost = _without_number(snapshot, graph, roots)
    if lost:
        graph, roots = _roots(snapshot, history, mismatches, streams, silent | lost)
    if _is_firm(roots):
        return graph, roots
    by_order = _by_their_order(snapshot, history, graph)
    if by_order is not None and _is_firm(by_order[1]):
        return by_order
    for excused in dict.fromkeys((beside | never, never)):
        graph, roots = _roots(snapshot, history, mismatches, streams, excused)
        if _is_firm(roots):
            return graph, roots
    return _without_their_waiters(snapshot, history, mismatches, streams, graph) or by_order or (graph, roots)


def _without_number(snapshot: Snapshot, graph: WaitGraph, roots: Sequence[Root]) -> frozenset[int]:
    """Of the roots, those who may be where they are waited for, so that the others may hold each other up."""
    ends = {rank for root in roots if root.is_suspicion for rank in root.ranks if rank not in graph.waits}
    own = graph.waits.values() if ends else ()
    operations = {id(wait.operation): wait.operation for waits in own for wait in waits}
    missed = [(rank, one) for one in operations.values() for rank in ends.intersection(one.absent)]
    lost = {rank for rank, one in missed if lacks_number(snapshot, rank, one)}
    return frozenset(lost - {rank for rank, one in missed if not lacks_number(snapshot, rank, one)})


def _by_their_order(snapshot: Snapshot, history: History, graph: WaitGraph) -> tuple[WaitGraph, list[Root]] | None:
    """Where chains of waits end at ranks that are not heard of: those that others wait for and whose order is not what
    it was in the steps before. None if there are none. A suspicion where something else is held up too."""
    operations = {id(wait.operation): wait.operation for own in graph.waits.values() for wait in own}
    few_first = sorted(operations.values(), key=lambda one: len(one.absent))
    lacking = dict.fromkeys(rank for one in few_first[:MOST_LACKING] for rank in one.absent[:MOST_LACKING])
    root = out_of_order(snapshot, graph, Programs(snapshot, history), list(lacking)[:MOST_LACKING])
    if root is None:
        return None
    waiters = Waiters.of(graph).waiting_for(root.ranks)
    return graph, [replace(root, waiters=len(waiters), is_suspicion=root.is_suspicion or bool(held(graph, snapshot)))]


def _roots(
    snapshot: Snapshot,
    history: History,
    mismatches: Sequence[Root],
    streams: Streams | None,
    excused: frozenset[int],
) -> tuple[WaitGraph, list[Root]]:
    graph = build_graph(snapshot, history.asynchronous(), deviants(mismatches), excused, streams)
    return graph, name_roots(snapshot, graph, history, mismatches)


def _is_firm(roots: Sequence[Root]) -> bool:
    return any(not root.is_suspicion and root.kind not in LINKS for root in roots)


def _without_their_waiters(
    snapshot: Snapshot, history: History, mismatches: Sequence[Root], streams: Streams | None, graph: WaitGraph
) -> tuple[WaitGraph, list[Root]] | None:
    """What there is without those that may wait for a rank without data: who waits for each other beside them is stuck
    whatever that rank does. None if nothing is."""
    excused = graph.unheard
    for _ in range(MAX_ROUNDS):
        unsure = {rank for one in graph.joined.values() if not excused.isdisjoint(one.members) for rank in one.members}
        more = excused | (unsure - graph.waiting())
        if more == excused:
            return None
        excused = more
        graph, roots = _roots(snapshot, history, mismatches, streams, excused)
        if _is_firm(roots):
            return graph, roots
    return None


def _held_up(root: Root, snapshot: Snapshot, graph: WaitGraph) -> set[int]:
    """Members of an operation that everyone joined and nobody completes."""
    if root.group is None or root.kind not in LINKS:
        return set()
    operation = graph.joined.get((root.group, root.sequence or 0))
    return set(operation.members) & set(snapshot.states) if operation else set()


def _judge(
    later: Snapshot, roots: Sequence[Root], still: Stillness, pace: Pace
) -> tuple[State, list[Root], list[Abstention]]:
    """What the job is doing, the roots that are named for it, and what is to be said of that."""
    firm = [root for root in roots if _is_firm([root]) and not _is_undone(root, still)]
    if not firm:
        return (State.RUNNING, [], []) if still.moved else (State.INCONCLUSIVE, list(roots), _why_nobody(still, roots))
    stuck = [root for root in firm if still.is_stuck(root)]
    sure = {id(root) for root in stuck}
    open_still = [root for root in firm if id(root) not in sure]
    doubtful = [root for root in open_still if not still.patience.is_program(root)]
    if stuck:
        return State.HANG, [*stuck, *(_suspected(root) for root in doubtful if not still.has_moved(root))], []
    suspects = [_suspected(root) for root in doubtful]
    if _all_lag(later, firm):
        reason = (
            f"the ranks that are waited for are on {', '.join(later.lagging[:4])}, whose newest data is old: its clock "
            f"is behind, or it fell silent"
        )
        return State.INCONCLUSIVE, suspects, [Abstention("clocks", reason)]
    step_s = pace.step_s()
    if still.longest_wait_s() >= (FIRST_SLOW_S if step_s is None else max(SLOW_S, step_s)):
        return State.SLOW, suspects, [_why_not_stuck((doubtful or open_still)[0], still)]
    if not still.moved and step_s is None:
        return State.INCONCLUSIVE, [], [Abstention("steps", "it is still starting: no step has been completed yet")]
    return State.RUNNING, [], []


def _why_nobody(still: Stillness, roots: Sequence[Root]) -> list[Abstention]:
    """Why nobody is suspected although ranks stand still: what would tell it is lost, or was never heard."""
    if roots:
        return []
    notes = []
    stands, graph = held(still.graph, still.later), still.graph
    short = {rank for one in stands for rank in without_record(still.later, one.members, (one.group, one.sequence))}
    if short:
        told = f"the records of rank {listed(sorted(short))} in an operation that all have joined are lost: it may have"
        notes.append(Abstention("records", f"{told} called something else there"))
    unplaced = _unplaced(still.later, graph)
    if unplaced:
        told = f"nothing tells how far rank {listed(unplaced)} is where others wait for it, and it waits too: it may"
        notes.append(Abstention("records", f"{told} have joined them, and its record is lost"))
    silent = {rank for one in graph.joined.values() for rank in graph.unheard.intersection(one.members)}
    if silent:
        told = f"nothing is heard of rank {listed(sorted(silent))}, and others may wait for it: it may be the reason"
        notes.append(Abstention("coverage", told))
    return notes


def _unplaced(snapshot: Snapshot, graph: WaitGraph) -> list[int]:
    """Ranks that wait, and are waited for in a group of which nothing tells how far they are in it."""
    operations = {id(wait.operation): wait.operation for own in graph.waits.values() for wait in own}
    found = {
        rank for one in operations.values() for rank in one.absent
        if rank in graph.waits and (state := snapshot.states[rank]).progress and not state.knows(one.group)
    }  # fmt: skip
    return sorted(found)


def _is_undone(root: Root, still: Stillness) -> bool:
    """Whether a root is of the program itself, and yet one of its ranks moved, or was not behind at the earlier look:
    only looks of other moments made it."""
    return root.kind in OF_THE_PROGRAM and (still.has_moved(root) or not still.was_so(root))


def _suspected(root: Root) -> Root:
    return replace(root, confidence=round(root.confidence * SUSPECTED, 3))


def _all_lag(later: Snapshot, roots: Sequence[Root]) -> bool:
    lagging = frozenset(later.lagging)
    return bool(lagging) and all(later.hosts.get(rank) in lagging for root in roots for rank in root.ranks)


def _why_not_stuck(root: Root, still: Stillness) -> Abstention:
    if still.patience.is_program(root):
        phases = ", ".join(sorted(still.patience.program))
        return Abstention(
            "hang", f"half of the ranks or more are in {phases}: that is the program, and no fault of theirs"
        )
    who = f"rank {listed(root.ranks)}" if len(root.ranks) == 1 else f"ranks {listed(root.ranks)}"
    if still.has_moved(root):
        return Abstention("hang", f"{who} did something between the two looks, so it is slow rather than stuck")
    stood_s, needed_s = still.stood_s(root), still.patience.needed_s(root)
    reason = f"{who} has stood still for {stood_s:.0f} s at least, and is called stuck from {needed_s:.0f} s on"
    return Abstention("hang", reason)


def _notes(later: Snapshot, still: Stillness) -> tuple[Abstention, ...]:
    notes = []
    if later.missing:
        reason = f"{len(later.missing)} ranks have no fresh heartbeat: {listed(later.missing)}"
        notes.append(Abstention("coverage", reason))
    if later.lagging:
        reason = (
            f"the newest data of {', '.join(later.lagging[:8])} is older than that of other hosts, and their clocks "
            f"are not aligned: their ranks are taken as last seen"
        )
        notes.append(Abstention("clocks", reason))
    once = sorted(set(later.states) - still.seen_twice)
    if once and still.seen_twice:
        notes.append(Abstention("heartbeats", f"{len(once)} ranks were seen only once: {listed(once)}"))
    return tuple(notes)
