"""`diagnose`: from a store to the hang verdict: who is at the root, who only waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..collectors.store import Attempt, Store
from ..collectors.views import literal
from .deaths import Death, first_deaths, load_deaths, parse_actions
from .evidence import death_evidence, gather_evidence
from .graph import build_graph, waiters_of
from .history import History, StoreHistory
from .looks import Diagnosis, compare_looks
from .mismatch import Root, deviants, find_mismatches, find_skipped
from .roots import group_name
from .snapshot import RankState, Snapshot, freeze, take_snapshot
from .verdict import Abstention, CulpritKind, Evidence, HangCulprit, HangVerdict, State, to_json

MIN_APART_NS = 5 * 10**9
MAX_APART_NS = 60 * 10**9
"""Between the two looks: three of the job's steps, within these bounds. Only what is unchanged in both is stuck."""

STILL_OPEN_NS = 10 * 10**9
"""A stall that was closed so shortly before the end was closed by the end: ranks that are interrupted move."""

OLD_DATA_S = 60.0
MAX_CULPRITS = 20
MAX_PARTNERS = 32
"""So many ranks that shared a group with a dead one are held against their history."""


def diagnose(store: Store, attempt: Attempt, *, now_ns: int | None = None) -> HangVerdict:
    """What holds an attempt up, as its newest heartbeats show it (or those not after ``now_ns``).

    Two looks, some steps apart, tell stuck from slow; the graph of waits leads from the victims to the root.
    """
    deaths = [] if now_ns is not None else load_deaths(store, attempt)
    moment_ns = now_ns
    if now_ns is None and (attempt.exit_reason is not None or deaths):
        moment_ns = _stalled_before(store, attempt, deaths[0].moment_ns if deaths else attempt.end_ns or 0)
        if moment_ns is None and not deaths:
            return _verdict(store, attempt, Diagnosis(State.FINISHED), (), ())
    history = StoreHistory(store, attempt)
    if deaths and moment_ns is None:
        return _after_deaths(store, attempt, deaths, history)
    later = take_snapshot(store, attempt, moment_ns)
    earlier = take_snapshot(store, attempt, later.moment_ns - _apart_ns(store, attempt))
    diagnosis = compare_looks(earlier, later, history, usual_longest_s(store, attempt, later))
    evidence = tuple(gather_evidence(store, attempt, later, root) for root in diagnosis.roots[:MAX_CULPRITS])
    culprits = tuple(
        _culprit(root, later, diagnosis.state, found)
        for root, found in zip(diagnosis.roots[:MAX_CULPRITS], evidence, strict=True)
    )
    return _verdict(store, attempt, diagnosis, culprits, later.missing)


def usual_longest_s(store: Store, attempt: Attempt, snapshot: Snapshot) -> dict[str, float]:
    """The longest span of each segment of work that is open in the snapshot, of those completed by then, seconds."""
    works = (state.innermost_work() for state in snapshot.states.values())
    names = sorted({work.segment for work in works if work is not None})
    if not names:
        return {}
    table = store.query(
        f"""SELECT segment_name AS name, max(duration_ns) / 1e9 AS longest FROM spans
            WHERE segment_name IN ({", ".join(literal(name) for name in names)})
            AND start_ns + duration_ns < {snapshot.moment_ns} GROUP BY segment_name""",
        attempt=attempt,
    )
    pairs = zip(table["name"].to_pylist(), table["longest"].to_pylist(), strict=True)
    return {str(name): float(longest) for name, longest in pairs if longest is not None}


def _apart_ns(store: Store, attempt: Attempt) -> int:
    table = store.query("SELECT median(duration_ns) AS usual FROM steps", attempt=attempt)
    usual = table["usual"][0].as_py()
    return min(max(3 * int(usual or 0), MIN_APART_NS), MAX_APART_NS)


def _stalled_before(store: Store, attempt: Attempt, end_ns: int) -> int | None:
    """If the job was stalled when it was ended, or ranks died: the moment of the agent's last look at the stall."""
    rows = store.query(
        """SELECT opened_ns, actions FROM incidents
           WHERE kind = 'stalled' AND coalesce(closed_ns, ?) >= ? AND opened_ns < ?
           ORDER BY opened_ns DESC LIMIT 1""",
        [end_ns, end_ns - STILL_OPEN_NS, end_ns],
        attempt=attempt,
    ).to_pylist()
    if not rows:
        return None
    looks = [int(one["moment_ns"]) for one in parse_actions(rows[0]["actions"]) if one.get("action") == "snapshot"]
    return max(looks, default=int(rows[0]["opened_ns"]))


def _after_deaths(store: Store, attempt: Attempt, deaths: Sequence[Death], history: History) -> HangVerdict:
    """The first deaths are the roots, unless a mismatch killed them; who waited for them shows in the last looks."""
    ended = attempt.exit_reason is not None
    snapshot = _at_death(store, attempt, deaths, ended=ended)
    asynchronous = history.asynchronous()
    first = first_deaths(deaths, build_graph(snapshot, asynchronous).waiting())
    dead = {death.rank for death in first}
    blamed = _killed_by_mismatch(snapshot, history, dead)
    states = {
        **{rank: RankState(rank, snapshot.moment_ns) for rank in dead},
        **snapshot.states,
    }
    states = {rank: replace(one, process_state="gone") if rank in dead else one for rank, one in states.items()}
    seen = replace(snapshot, states=states, missing=tuple(rank for rank in snapshot.missing if rank not in states))
    graph = build_graph(seen, asynchronous, deviants(blamed))
    roots = blamed or [_death_root(death, seen, len(first)) for death in first]
    accused = {rank for root in roots for rank in root.ranks}
    explained = frozenset(waiters_of(graph, accused | dead)) - accused
    waiting = explained if ended else frozenset(graph.waiting()) - accused
    roots = [replace(root, waiters=len(explained)) for root in roots]
    diagnosis = Diagnosis(State.CRASHED, tuple(roots), waiting, explained & waiting, _death_notes(deaths, dead))
    of_deaths = tuple(one for death in first[:MAX_CULPRITS] for one in death_evidence(store, attempt, death))
    culprits = []
    for root in roots[:MAX_CULPRITS]:
        own = [one for death, one in zip(first, of_deaths, strict=False) if death.rank in root.ranks]
        found = (*gather_evidence(store, attempt, seen, root), *of_deaths) if blamed else tuple(own)
        culprits.append(_culprit(root, seen, State.CRASHED, found))
    return _verdict(store, attempt, diagnosis, tuple(culprits), seen.missing)


def _at_death(store: Store, attempt: Attempt, deaths: Sequence[Death], *, ended: bool) -> Snapshot:
    """All ranks as they were when the first died, as if alive; in a job that still runs, the others as they are now.

    What the agent froze when it noticed the death is later, and finer, than the heartbeat before it.
    """
    snapshot = take_snapshot(store, attempt, deaths[0].moment_ns if ended else None)
    rows = store.query(
        "SELECT * FROM in_flight WHERE snapshot = 1 AND incident LIKE '%rank-died%'", attempt=attempt
    ).to_pylist()
    frozen = freeze(rows, deaths[0].moment_ns)
    gone = {death.rank for death in deaths}
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


def _killed_by_mismatch(snapshot: Snapshot, history: History, dead: set[int]) -> list[Root]:
    """Mismatches in the groups of ranks that died: a library may abort the rank that received what does not fit."""
    flights = [flight for rank in dead if rank in snapshot.states for flight in snapshot.states[rank].flights]
    groups = {flight.group for flight in flights if flight.group is not None}
    mismatches = [root for root in find_mismatches(snapshot, history) if root.group in groups]
    if mismatches or not groups:
        return mismatches
    partners = {rank for group in groups if group in snapshot.groups for rank in snapshot.groups[group].ranks}
    return find_skipped(snapshot, history, sorted(dead) + sorted(partners - dead)[:MAX_PARTNERS])


def _death_root(death: Death, seen: Snapshot, together: int) -> Root:
    kind = CulpritKind.EXCEPTION if death.is_exception else CulpritKind.DEAD
    confidence = 0.95 if together == 1 else 0.7
    if death.is_aftermath:
        confidence = 0.4
    work = seen.states[death.rank].innermost_work() if death.rank in seen.states else None
    return Root((death.rank,), kind, confidence, work.segment if work else None)


def _death_notes(deaths: Sequence[Death], dead: set[int]) -> tuple[Abstention, ...]:
    after = [death for death in deaths if death.rank not in dead]
    if not after:
        return ()
    listed = ", ".join(str(death.rank) for death in after[:8]) + (", ..." if len(after) > 8 else "")
    return (Abstention("later deaths", f"{len(after)} ranks ended after that, as a consequence: {listed}"),)


def _culprit(root: Root, snapshot: Snapshot, state: State, evidence: tuple[Evidence, ...]) -> HangCulprit:
    hosts = dict.fromkeys(snapshot.hosts[rank] for rank in root.ranks if rank in snapshot.hosts)
    return HangCulprit(
        ranks=root.ranks,
        hosts=tuple(hosts),
        confidence=root.confidence,
        severity="medium" if state in (State.SLOW, State.INCONCLUSIVE) else "high",
        kind=root.kind,
        segment=root.segment,
        group=group_name(snapshot, root.group),
        waiters=root.waiters,
        evidence=evidence,
    )


def _verdict(
    store: Store,
    attempt: Attempt,
    diagnosis: Diagnosis,
    culprits: tuple[HangCulprit, ...],
    missing: tuple[int, ...],
) -> HangVerdict:
    age_s = store.data_age_s(attempt)
    notes = list(diagnosis.abstained)
    if attempt.exit_reason is None and age_s is not None and age_s > OLD_DATA_S:
        reason = f"the newest data is {age_s:.0f} s old: this is the job as it was then, its agent may be gone"
        notes.insert(0, Abstention("heartbeats", reason))
    unexplained = diagnosis.waiting - diagnosis.explained
    return HangVerdict(
        run=attempt.run,
        attempt=attempt.attempt,
        data_age_s=age_s,
        verdict=diagnosis.state,
        victims=len(diagnosis.waiting),
        explained=len(diagnosis.explained),
        unexplained=tuple(sorted(unexplained)),
        missing=missing,
        culprits=culprits,
        abstained=tuple(notes),
    )


__all__ = ["HangVerdict", "diagnose", "to_json"]
