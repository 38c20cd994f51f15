"""A job in which ranks died: the first deaths are the roots, unless a mismatch killed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..collectors.reading.store import Attempt, Store
from .deaths import Death, Deaths, first_deaths, silent_hosts
from .ends import Waiters
from .evidence import death_evidence, gather_evidence, silent_evidence
from .graph import build_graph
from .history import History
from .looks import Diagnosis
from .mismatch import Root, deviants, find_mismatches
from .programs import find_skipped
from .recovered import with_recovered
from .snapshot import freeze, take_snapshot
from .states import RankState, Snapshot
from .streams import Streams
from .verdict import Abstention, CulpritKind, Evidence, State, listed

MAX_PARTNERS = 32
"""So many ranks that shared a group with a dead one are held against their history."""

SILENT_HOST = 0.7
"""Confidence in the death of a host of which nothing but its silence is known."""

UNSURE = 0.4
"""Confidence in a death that nobody noted as it came, or whose exception speaks of others."""


@dataclass(frozen=True, slots=True)
class Crash:
    """What the deaths came to; ``evidence`` belongs to the diagnosis' roots, one by one."""

    diagnosis: Diagnosis
    snapshot: Snapshot
    evidence: tuple[tuple[Evidence, ...], ...]


def judge_deaths(store: Store, attempt: Attempt, deaths: Deaths, history: History) -> Crash:
    """The first deaths are the roots; who waited for them shows in what was last seen of the others."""
    ended = attempt.exit_reason is not None
    snapshot = _at_death(store, attempt, deaths, ended=ended)
    asynchronous = history.asynchronous()
    if all(death.is_aftermath for death in deaths.all):
        return _lost_peers(store, attempt, deaths, snapshot, history)
    streams = Streams.of(snapshot, history)
    recovered = with_recovered(snapshot, streams.recorded)
    seen_waiting = build_graph(recovered, asynchronous, streams=streams).waiting()
    first = first_deaths(deaths.all, seen_waiting, deaths.clocks)
    if not deaths.noted and len(first) >= len(snapshot.states) > 1:
        return Crash(Diagnosis(State.CRASHED, abstained=(_NOBODY_NOTED, _ALL_GONE)), snapshot, ())
    dead = {death.rank for death in first}
    blamed = _killed_by_mismatch(snapshot, history, first, streams)  # by what they were seen to call, and no more
    seen = _with_dead(recovered, dead)
    graph = build_graph(seen, asynchronous, deviants(blamed), streams=streams)
    roots = blamed or [_death_root(death, seen, deaths, len(first)) for death in first]
    accused = {rank for root in roots for rank in root.ranks}
    explained = frozenset(Waiters.of(graph).waiting_for(accused | dead)) - accused
    waiting = frozenset(graph.waiting()) - accused
    roots = [replace(root, waiters=len(explained)) for root in roots]
    notes = _notes(deaths, first)
    diagnosis = Diagnosis(State.CRASHED, tuple(roots), waiting, explained & waiting, notes, graph)
    return Crash(diagnosis, seen, tuple(_evidence(store, attempt, seen, root, first, blamed) for root in roots))


def _lost_peers(store: Store, attempt: Attempt, deaths: Deaths, snapshot: Snapshot, history: History) -> Crash:
    """All that ended lost peers or were told to: the root is a host that fell silent before, or it is not known."""
    gone = silent_hosts(store, attempt, deaths)
    if not gone:
        abstained = (_why_nobody(deaths), *_notes(deaths, ()))
        return Crash(Diagnosis(State.CRASHED, abstained=abstained), snapshot, ())
    dead = {rank for host in gone for rank in host.ranks}
    streams = Streams.of(snapshot, history)
    seen = _with_dead(with_recovered(snapshot, streams.recorded), dead)
    graph = build_graph(seen, history.asynchronous(), streams=streams)
    waiting = frozenset(graph.waiting()) - dead
    explained = frozenset(Waiters.of(graph).waiting_for(dead)) - dead
    roots = tuple(
        Root(host.ranks, CulpritKind.DEAD, SILENT_HOST, waiters=len(explained), why=f"nothing is heard of {host.name}")
        for host in gone
    )
    diagnosis = Diagnosis(State.CRASHED, roots, waiting, explained & waiting, _notes(deaths, ()), graph)
    return Crash(diagnosis, seen, tuple((silent_evidence(store, attempt, host, deaths.all[0]),) for host in gone))


def _evidence(
    store: Store, attempt: Attempt, seen: Snapshot, root: Root, first: Sequence[Death], blamed: Sequence[Root]
) -> tuple[Evidence, ...]:
    if blamed:
        told = (one for death in first for one in death_evidence(store, attempt, death))
        return (*gather_evidence(store, attempt, seen, root), *told)
    return tuple(one for death in first if death.rank in root.ranks for one in death_evidence(store, attempt, death))


def _at_death(store: Store, attempt: Attempt, deaths: Deaths, *, ended: bool) -> Snapshot:
    """All ranks as they were when the first died, as if alive; in a job that still runs, the others as they are now.

    What the agent froze when it noticed the death is later, and finer, than the heartbeat before it.
    """
    moment_ns = deaths.all[0].moment_ns
    snapshot = take_snapshot(store, attempt, moment_ns if ended else None)
    rows = store.query(
        """SELECT in_flight.* FROM in_flight JOIN incidents USING (incident)
           WHERE snapshot = 1 AND incidents.kind = 'rank-died'
           QUALIFY dense_rank() OVER (PARTITION BY rank ORDER BY opened_ns, incident) = 1""",
        attempt=attempt,
    ).to_pylist()
    frozen = freeze(rows, moment_ns)
    gone = {death.rank for death in deaths.all}
    states = {
        rank: replace(
            state,
            step=frozen[rank].step if rank in frozen else state.step,
            flights=frozen[rank].flights if rank in frozen and (ended or rank in gone) else state.flights,
            process_state="running" if state.has_ended and (ended or rank in gone) else state.process_state,
        )
        for rank, state in {**frozen, **snapshot.states}.items()
    }
    return replace(snapshot, states=states)


def _with_dead(snapshot: Snapshot, dead: set[int]) -> Snapshot:
    """The snapshot with the dead gone, also those of whom nothing else is known."""
    states = {**{rank: RankState(rank, snapshot.moment_ns) for rank in dead}, **snapshot.states}
    states = {rank: replace(one, process_state="gone") if rank in dead else one for rank, one in states.items()}
    return replace(snapshot, states=states, missing=tuple(rank for rank in snapshot.missing if rank not in states))


def _was_in_communication(snapshot: Snapshot, rank: int) -> bool:
    """Whether a rank was last seen in an operation with others, out of which its exception may have come."""
    state = snapshot.states.get(rank)
    return state is not None and any(one.communicates and one.waiting is not False for one in state.flights)


def _killed_by_mismatch(snapshot: Snapshot, history: History, first: Sequence[Death], streams: Streams) -> list[Root]:
    """Mismatches in the groups of ranks that died: a library may abort the rank that received what does not fit."""
    dead = {death.rank for death in first}
    flights = [flight for rank in dead if rank in snapshot.states for flight in snapshot.states[rank].flights]
    groups = {flight.group for flight in flights if flight.group is not None}
    found = find_mismatches(snapshot, history, streams)
    mismatches = [root for root in found if root.group in groups]
    if mismatches or not groups:
        return mismatches
    if any(death.is_exception and not _was_in_communication(snapshot, death.rank) for death in first):
        return []
    partners = {rank for group in groups if group in snapshot.groups for rank in snapshot.groups[group].ranks}
    return find_skipped(snapshot, history, sorted(dead) + sorted(partners - dead)[:MAX_PARTNERS])


def _death_root(death: Death, seen: Snapshot, deaths: Deaths, together: int) -> Root:
    kind = CulpritKind.EXCEPTION if death.is_exception else CulpritKind.DEAD
    confidence = 0.95 if together == 1 else 0.7
    if death.is_aftermath or not deaths.noted:
        confidence = UNSURE
    work = seen.states[death.rank].innermost_work() if death.rank in seen.states else None
    return Root((death.rank,), kind, confidence, work.segment if work else None, exit_code=death.exit.code)


_NOBODY_NOTED = Abstention(
    "incidents", "the attempt crashed and no agent noted who died: the last heartbeats are all that is known of it"
)
_ALL_LOST_PEERS = Abstention(
    "deaths", "all ranks that ended say that they lost a peer, and nothing tells which rank was the first to go"
)
_ALL_ASKED = Abstention(
    "deaths", "all ranks that ended were told to by their launcher or its supervisor, and nothing tells what for"
)
_SOME_ASKED = Abstention(
    "deaths",
    "of the ranks that ended some say that they lost a peer, the others were told to by their launcher or its "
    "supervisor, and nothing tells which rank was the first to go",
)
_ALL_GONE = Abstention("deaths", "the processes of all ranks are gone, and which of them went first is not known")


def _why_nobody(deaths: Deaths) -> Abstention:
    asked = [death.is_on_request for death in deaths.all]
    if all(asked):
        return _ALL_ASKED
    return _SOME_ASKED if any(asked) else _ALL_LOST_PEERS


def _notes(deaths: Deaths, first: Sequence[Death]) -> tuple[Abstention, ...]:
    notes = [] if deaths.noted else [_NOBODY_NOTED]
    hosts = sorted({death.host for death in deaths.all if death.host is not None})
    if any(deaths.clocks.uncertainty_ns(hosts[0], host, deaths.all[0].moment_ns) is None for host in hosts[1:]):
        reason = f"the clocks of {', '.join(hosts[:8])} are not aligned: deaths on different hosts cannot be ordered"
        notes.append(Abstention("clocks", reason))
    dead = {death.rank for death in first}
    after = [death.rank for death in deaths.all if death.rank not in dead]
    if after:
        many = "1 rank ended too, and is" if len(after) == 1 else f"{len(after)} ranks ended too, and are"
        reason = f"{many} taken for a consequence: {listed(after)}"
        notes.append(Abstention("later deaths", reason))
    return tuple(notes)
