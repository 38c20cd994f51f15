"""The numbers behind a root, each with the SQL that asks the store for it again."""

from __future__ import annotations

from ..collectors.store import Attempt, Store
from ..collectors.verdicts import Evidence
from ..collectors.views import identifier, literal
from .deaths import Death
from .mismatch import Root
from .roots import group_name
from .snapshot import Snapshot
from .verdict import CulpritKind

NS_PER_S = 1e9
MAX_RANKS = 4
"""So many ranks of one root get evidence of their own."""


def gather_evidence(store: Store, attempt: Attempt, snapshot: Snapshot, root: Root) -> tuple[Evidence, ...]:
    """What shows that a root is one; numbers that the store does not give are left out."""
    found: list[Evidence | None] = []
    for rank in root.ranks[:MAX_RANKS]:
        if rank not in snapshot.states:
            found.append(_no_heartbeat(store, attempt, rank))
        elif root.kind == CulpritKind.DEAD:
            found.append(_process_gone(store, attempt, rank))
        elif root.kind in (CulpritKind.MISSING_CALL, CulpritKind.MISMATCH, CulpritKind.DEVICE_STUCK):
            found.append(_progress(store, attempt, snapshot, root, rank))
        else:
            found.append(_time_in_flight(store, attempt, snapshot, root, rank))
    evidence = [one for one in found if one is not None]
    if root.why and not evidence:
        listed = ", ".join(str(rank) for rank in root.ranks[:8])
        sql = (
            f"SELECT * FROM heartbeats WHERE {_where(attempt)} AND rank IN ({listed}) ORDER BY moment_ns DESC LIMIT 20"
        )
        evidence.append(Evidence(root.why, None, None, "heartbeats", sql))
    return tuple(evidence)


def death_evidence(store: Store, attempt: Attempt, death: Death) -> tuple[Evidence, ...]:
    """What the agent noted of a death."""
    if death.is_exception:
        first_line = next(iter((death.message or "").splitlines()), "")[:300]
        told = f"rank {death.rank} raised {death.type}: {first_line}"
    else:
        told = f"the process of rank {death.rank} was found {death.state}, and its black box had not been closed"
    sql = f"SELECT actions FROM incidents WHERE {_where(attempt)} AND kind = 'rank-died' ORDER BY opened_ns LIMIT 1"
    return (Evidence(told, None, None, "incidents", sql),)


def _where(attempt: Attempt) -> str:
    return f"run = {literal(attempt.run)} AND attempt = {attempt.attempt}"


def _value(store: Store, attempt: Attempt, sql: str) -> float | None:
    table = store.query(sql, attempt=attempt)
    value = table.column(0)[0].as_py() if table.num_rows else None
    return None if value is None else float(value)


def _no_heartbeat(store: Store, attempt: Attempt, rank: int) -> Evidence:
    sql = f"SELECT count(*) FROM heartbeats WHERE {_where(attempt)} AND rank = {rank}"
    count = _value(store, attempt, sql)
    fresh = "no heartbeat" if not count else "no fresh heartbeat"
    return Evidence(f"rank {rank} has {fresh}, and others wait for it", count, None, "heartbeats", sql)


def _process_gone(store: Store, attempt: Attempt, rank: int) -> Evidence:
    sql = (
        f"SELECT count(*) FROM heartbeats WHERE {_where(attempt)} AND rank = {rank} "
        f"AND process_state IN ('gone', 'zombie')"
    )
    statement = f"the process of rank {rank} is gone, and it never said goodbye"
    return Evidence(statement, _value(store, attempt, sql), None, "heartbeats", sql)


def _time_in_flight(store: Store, attempt: Attempt, snapshot: Snapshot, root: Root, rank: int) -> Evidence | None:
    state = snapshot.states[rank]
    if root.segment is None:
        sql = (
            f"SELECT (max(moment_ns) - min(moment_ns)) / 1e9 FROM heartbeats WHERE {_where(attempt)} AND rank = {rank} "
            f"AND spans = {state.spans if state.spans is not None else 'NULL'} AND moment_ns <= {state.moment_ns}"
        )
        seconds = _value(store, attempt, sql)
        statement = f"rank {rank} has completed nothing for {seconds or 0:.1f} s; {root.why}"
        return Evidence(statement, seconds, None, "heartbeats", sql)
    sql = (
        f"SELECT max(moment_ns - flight.begun_ns) / 1e9 FROM (SELECT moment_ns, unnest(in_flight) AS flight "
        f"FROM heartbeats WHERE {_where(attempt)} AND rank = {rank} AND moment_ns = {state.moment_ns}) "
        f"WHERE flight.segment = {literal(root.segment)}"
    )
    seconds = _value(store, attempt, sql)
    if seconds is None:
        return None
    return Evidence(
        f"rank {rank} has been in {root.segment} for {seconds:.1f} s; {root.why}", seconds, None, "heartbeats", sql
    )


def _progress(store: Store, attempt: Attempt, snapshot: Snapshot, root: Root, rank: int) -> Evidence | None:
    if root.group is None:
        return None
    name = group_name(snapshot, root.group)
    others = [
        member for member in (name.ranks if name else ()) if member not in root.ranks and member in snapshot.states
    ]
    peers = max((snapshot.states[member].progress.get(root.group, (0, 0))[0] for member in others), default=None)
    sql = (
        f"SELECT max(done.issued) FROM (SELECT unnest(progress) AS done FROM heartbeats WHERE {_where(attempt)} "
        f"AND rank = {rank} AND moment_ns = {snapshot.states[rank].moment_ns}) "
        f"WHERE done.{identifier('group')} = {root.group}"
    )
    own = _value(store, attempt, sql)
    told = (
        f"rank {rank} has issued {own or 0:.0f} operations of group {name}, the others up to {peers or 0}; {root.why}"
    )
    return Evidence(told, own, None if peers is None else float(peers), "heartbeats", sql)
