"""Two looks at a job: who moved in between, who is stuck, and what that makes of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .graph import WaitGraph, build_graph, waiters_of
from .history import History, NoHistory
from .mismatch import Root, deviants, find_mismatches
from .roots import name_roots
from .snapshot import RankState, Snapshot
from .verdict import Abstention, CulpritKind, State

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What two looks at a job came to, before evidence is gathered."""

    state: State
    roots: tuple[Root, ...] = ()
    waiting: frozenset[int] = frozenset()
    explained: frozenset[int] = frozenset()
    abstained: tuple[Abstention, ...] = ()


def compare_looks(
    earlier: Snapshot,
    later: Snapshot,
    history: History | None = None,
    longest_s: Mapping[str, float] | None = None,
) -> Diagnosis:
    """Judge two snapshots of a job: hang, slow, running or inconclusive, with the roots.

    ``longest_s`` gives the longest that each segment has taken before, seconds: who is in one for less than twice
    that (or less than ten seconds) is not called stuck.
    """
    past = history or NoHistory()
    if not later.states:
        reason = "there are no heartbeats and no snapshot of what is in flight"
        return Diagnosis(State.INCONCLUSIVE, abstained=(Abstention("heartbeats", reason),))
    mismatches = find_mismatches(later, past)
    graph = build_graph(later, past.asynchronous(), deviants(mismatches))
    moved = ranks_that_moved(earlier, later)
    alive = {rank for rank, state in later.states.items() if not state.has_ended}
    notes = _notes(earlier, later)
    if moved and moved >= alive:
        return Diagnosis(State.RUNNING, abstained=notes)
    if not earlier.states or all(state.moment_ns == later.moment_ns for state in earlier.states.values()):
        reason = "there is only one look at each rank: a second one, some seconds later, tells stuck from slow"
        return Diagnosis(State.INCONCLUSIVE, abstained=(Abstention("heartbeats", reason), *notes))
    roots = name_roots(later, graph, past, mismatches)
    waiting = frozenset(graph.waiting()) | {rank for root in roots for rank in _held_up(root, later, graph)}
    accused = {rank for root in roots for rank in root.ranks}
    explained = frozenset(waiters_of(graph, accused)) - accused
    state = _state(later, roots, moved, longest_s or {})
    if state == State.RUNNING:
        return Diagnosis(state, abstained=notes)
    if state == State.SLOW:
        roots = [root for root in roots if set(root.ranks) & moved]
    victims = waiting - accused
    return Diagnosis(state, tuple(roots), frozenset(victims), explained & victims, notes)


def ranks_that_moved(earlier: Snapshot, later: Snapshot) -> set[int]:
    """Ranks that did anything between the two looks: a step, a span, an operation, or another thing in flight."""
    return {
        rank
        for rank, state in later.states.items()
        if (before := earlier.states.get(rank)) is not None and _what_is_done(before) != _what_is_done(state)
    }


def _what_is_done(state: RankState) -> tuple[object, ...]:
    flights = frozenset((one.segment, one.group, one.sequence, one.begun_ns) for one in state.flights)
    return (state.step, state.spans, tuple(sorted(state.progress.items())), flights)


def _held_up(root: Root, snapshot: Snapshot, graph: WaitGraph) -> set[int]:
    """Members of an operation that everyone joined and nobody completes, except the accused."""
    if root.group is None or root.kind not in (CulpritKind.NETWORK, CulpritKind.DEVICE_STUCK):
        return set()
    operation = graph.joined.get((root.group, root.sequence or 0))
    return set(operation.members) & set(snapshot.states) if operation else set()


def _state(later: Snapshot, roots: Sequence[Root], moved: set[int], longest_s: Mapping[str, float]) -> State:
    """What the job is doing, given its roots and who moved between the looks."""
    if not roots:
        return State.RUNNING if moved else State.INCONCLUSIVE
    firm = [root for root in roots if root.kind != CulpritKind.NETWORK]
    still = [root for root in firm if not set(root.ranks) & moved]
    if not firm:
        return State.INCONCLUSIVE if not moved else State.RUNNING
    if still and not all(_is_usual(root, later, longest_s) for root in still):
        return State.HANG
    if still:
        return State.RUNNING
    oldest = max((_waits_since_s(later, rank) for rank in later.states), default=0.0)
    return State.SLOW if oldest >= 10.0 else State.RUNNING


def _is_usual(root: Root, later: Snapshot, longest_s: Mapping[str, float]) -> bool:
    """Whether a rank at work is in its segment no longer than it may well be."""
    state = later.states.get(root.ranks[0])
    work = state.innermost_work() if state is not None else None
    if root.kind != CulpritKind.HOST_STUCK or state is None or work is None or work.begun_ns is None:
        return False
    if state.process_state == "stopped":
        return False
    return (state.moment_ns - work.begun_ns) / NS_PER_S < 2 * longest_s.get(work.segment, 0.0)


def _waits_since_s(later: Snapshot, rank: int) -> float:
    """Age of the oldest operation that a rank has in flight, seconds."""
    state = later.states[rank]
    begun = [flight.begun_ns for flight in state.flights if flight.communicates and flight.begun_ns is not None]
    return (state.moment_ns - min(begun)) / NS_PER_S if begun else 0.0


def _notes(earlier: Snapshot, later: Snapshot) -> tuple[Abstention, ...]:
    notes = []
    if later.missing:
        listed = ", ".join(str(rank) for rank in later.missing[:8]) + (", ..." if len(later.missing) > 8 else "")
        notes.append(Abstention("coverage", f"{len(later.missing)} ranks have no fresh heartbeat: {listed}"))
    unseen = [rank for rank in later.states if rank not in earlier.states]
    if unseen and earlier.states:
        notes.append(Abstention("heartbeats", f"{len(unseen)} ranks were seen only once"))
    return tuple(notes)
