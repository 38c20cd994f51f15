"""The numbers behind a root, each with the SQL that asks the store for it again."""

from __future__ import annotations

import signal

from ..collectors.reading.store import Attempt, Store
from ..collectors.reading.views import identifier, literal
from ..collectors.verdicts import Evidence
from ..profiler.exits import exit_words
from .deaths import Death, SilentHost
from .mismatch import Root
from .roots import group_name
from .states import RankState, Snapshot
from .verdict import CulpritKind, listed, plain_utc

MAX_RANKS = 4
"""So many ranks of one root get evidence of their own."""

OF_SEVERAL = frozenset(
    {
        CulpritKind.MISMATCH,
        CulpritKind.DIVERGED,
        CulpritKind.ITERATION_DESYNC,
        CulpritKind.ORDER_INVERSION,
        CulpritKind.P2P_CYCLE,
        CulpritKind.NETWORK,
    }
)
"""Roots that show only where several ranks are seen side by side."""

_GROUP = identifier("group")


def gather_evidence(store: Store, attempt: Attempt, snapshot: Snapshot, root: Root) -> tuple[Evidence, ...]:
    """What shows that a root is one; numbers that the store does not give are left out."""
    asking = _Asking(store, attempt, snapshot, root)
    if snapshot.incident is not None:
        return (asking.frozen(snapshot.incident),)
    if root.kind in OF_SEVERAL:
        return (asking.in_flight(),)
    found = [asking.of_rank(rank) for rank in root.ranks[:MAX_RANKS]]
    evidence = [one for one in found if one is not None]
    return tuple(evidence) or (asking.in_flight(),)


def death_evidence(store: Store, attempt: Attempt, death: Death) -> tuple[Evidence, ...]:
    """What the agent noted of a death, or what the heartbeats say where it noted nothing."""
    noted = (
        f"SELECT action FROM (SELECT unnest(json_extract(actions, '$[*]')) AS action FROM incidents "
        f"WHERE {_where(attempt)} AND actions IS NOT NULL) WHERE action->>'$.action' = 'noticed-death' "
        f"AND (action->>'$.rank')::INT = {death.rank} AND action->>'$.state' = {literal(death.state)}"
    )
    if death.is_exception:
        first_line = next(iter((death.message or "").splitlines()), "")[:300]
        return (Evidence(f"rank {death.rank} raised {death.type}: {first_line}", None, None, "incidents", noted),)
    if store.query(noted, attempt=attempt).num_rows:
        code = death.exit.code
        how = f"was found {death.state}" if code is None else exit_words(code)
        told = f"the process of rank {death.rank} {how}, and its black box had not been closed"
        value = None if code is None else float(code)
        own = noted.replace("SELECT action FROM", "SELECT (action->>'$.exit_code')::INT FROM", 1)
        first = Evidence(told, value, None, "incidents", noted if code is None else own)
        return (first, *_out_of_memory(store, attempt, death))
    sql = _gone_sql(attempt, death.rank)
    told = f"the process of rank {death.rank} is {death.state} in its last heartbeats"
    return (Evidence(told, _value(store, attempt, sql), None, "heartbeats", sql),)


def _out_of_memory(store: Store, attempt: Attempt, death: Death) -> tuple[Evidence, ...]:
    """That the kernel killed a process for want of memory, if the kernel's log as it was recorded names the process."""
    if death.exit.code != -signal.SIGKILL or death.pid is None or death.host is None:
        return ()
    sql = (
        f"SELECT count(*) FROM hardware_events WHERE {_where(attempt)} AND kind = 'oom-kill' "
        f"AND host = {literal(death.host)} AND pid = {death.pid}"
    )
    found = _value(store, attempt, sql)
    if not found:
        return ()
    told = f"the kernel of {death.host} killed it because memory had run out, by its log"
    return (Evidence(told, found, None, "hardware_events", sql),)


def silent_evidence(store: Store, attempt: Attempt, host: SilentHost, first: Death) -> Evidence:
    """For how long nothing had been heard of a host when the first rank elsewhere lost its peer."""
    seconds = (first.moment_ns - host.last_ns) / 1e9
    told = (
        f"nothing was heard of {host.name} from {plain_utc(host.last_ns)} on, {seconds:.1f} s before rank {first.rank} "
        f"on {first.host or 'another host'} lost its peer"
    )
    sql = (
        f"SELECT max(moment_ns) FROM heartbeats JOIN ranks USING (run, attempt, rank) "
        f"WHERE {_where(attempt)} AND host = {literal(host.name)}"
    )
    return Evidence(told, seconds, None, "heartbeats", sql)


def _where(attempt: Attempt) -> str:
    return f"run = {literal(attempt.run)} AND attempt = {attempt.attempt}"


def _gone_sql(attempt: Attempt, rank: int) -> str:
    return (
        f"SELECT count(*) FROM heartbeats WHERE {_where(attempt)} AND rank = {rank} "
        f"AND process_state IN ('gone', 'zombie')"
    )


def _value(store: Store, attempt: Attempt, sql: str) -> float | None:
    table = store.query(sql, attempt=attempt)
    value = table.column(0)[0].as_py() if table.num_rows else None
    return None if value is None else float(value)


class _Asking:
    """One root's questions to the store."""

    def __init__(self, store: Store, attempt: Attempt, snapshot: Snapshot, root: Root) -> None:
        self._store, self._attempt, self._snapshot, self._root = store, attempt, snapshot, root

    def _number(self, sql: str) -> float | None:
        return _value(self._store, self._attempt, sql)

    def of_rank(self, rank: int) -> Evidence | None:
        """The number that fits the kind of the root, of one of its ranks."""
        kind, state = self._root.kind, self._snapshot.states.get(rank)
        if state is None:
            return self._silent(rank)
        if kind == CulpritKind.DEAD:
            sql = _gone_sql(self._attempt, rank)
            statement = f"the process of rank {rank} is gone, and it never said goodbye"
            return Evidence(statement, self._number(sql), None, "heartbeats", sql)
        if kind in (CulpritKind.MISSING_CALL, CulpritKind.DEVICE_STUCK):
            return self._progress(state)
        return self._open_segment(state) if self._root.segment is not None else self._nothing_open(state)

    def _silent(self, rank: int) -> Evidence:
        """How old the last heartbeat of a rank is, against the newest of its host where that has any."""
        host = self._snapshot.hosts.get(rank)
        same_host = any(self._snapshot.hosts.get(other) == host for other in self._snapshot.states)
        where = _where(self._attempt)
        among = (
            f" AND rank IN (SELECT rank FROM ranks WHERE {where} AND host = {literal(host)})"
            if host is not None and same_host
            else ""
        )
        sql = (
            f"SELECT ((SELECT max(moment_ns) FROM heartbeats WHERE {where}{among}) - max(moment_ns)) / 1e9 "
            f"FROM heartbeats WHERE {where} AND rank = {rank}"
        )
        age_s = self._number(sql)
        told = "has no heartbeat" if age_s is None else f"has had no fresh heartbeat for {age_s:.0f} s"
        return Evidence(f"rank {rank} {told}, and others wait for it", age_s, None, "heartbeats", sql)

    def _open_segment(self, state: RankState) -> Evidence | None:
        sql = (
            f"SELECT max(moment_ns - flight.begun_ns) / 1e9 FROM (SELECT moment_ns, unnest(in_flight) AS flight "
            f"FROM heartbeats WHERE {_where(self._attempt)} AND rank = {state.rank} "
            f"AND moment_ns = {state.moment_ns}) WHERE flight.segment = {literal(self._root.segment or '')}"
        )
        seconds = self._number(sql)
        if seconds is None:
            return None
        told = f"rank {state.rank} has been in {self._root.segment} for {seconds:.1f} s; {self._root.why}"
        return Evidence(told, seconds, None, "heartbeats", sql)

    def _nothing_open(self, state: RankState) -> Evidence | None:
        """For how long a rank has been seen to complete nothing; without its count of spans, to have nothing open."""
        seen = f"{_where(self._attempt)} AND rank = {state.rank} AND moment_ns <= {state.moment_ns}"
        if state.spans is not None:
            condition, told = f"spans = {state.spans}", "has completed nothing"
        else:
            busy = f"SELECT max(moment_ns) FROM heartbeats WHERE {seen} AND len(in_flight) > 0"
            condition, told = f"moment_ns > coalesce(({busy}), 0)", "has had nothing in flight"
        sql = f"SELECT (max(moment_ns) - min(moment_ns)) / 1e9 FROM heartbeats WHERE {seen} AND {condition}"
        seconds = self._number(sql)
        if seconds is None:
            return None
        return Evidence(
            f"rank {state.rank} {told} for {seconds:.1f} s; {self._root.why}", seconds, None, "heartbeats", sql
        )

    def _progress(self, state: RankState) -> Evidence | None:
        """How far a rank is in the group, beside the number that the others are at."""
        root = self._root
        if root.group is None or root.sequence is None:
            return None
        stuck = root.kind == CulpritKind.DEVICE_STUCK
        column, verb = ("completed", "completed") if stuck else ("issued", "issued")
        sql = (
            f"SELECT max(done.{column}) FROM (SELECT unnest(progress) AS done FROM heartbeats "
            f"WHERE {_where(self._attempt)} AND rank = {state.rank} AND moment_ns = {state.moment_ns}) "
            f"WHERE done.{_GROUP} = {root.group}"
        )
        own = self._number(sql)
        if own is None or own >= root.sequence:  # it took another operation for this one: the names tell, not numbers
            return None
        name = group_name(self._snapshot, root.group)
        told = f"rank {state.rank} has {verb} {own:.0f} operations of group {name}, others are at {root.sequence}"
        return Evidence(f"{told}; {root.why}", own, float(root.sequence), "heartbeats", sql)

    def in_flight(self) -> Evidence:
        """What the ranks concerned had open: for accusations that rest on names and not on a number."""
        root = self._root
        name = group_name(self._snapshot, root.group)
        members = name.ranks if name is not None and root.kind != CulpritKind.ORDER_INVERSION else root.ranks
        moments = [
            (rank, self._snapshot.states[rank].moment_ns)
            for rank in dict.fromkeys([*root.ranks[:MAX_RANKS], *members])
            if rank in self._snapshot.states
        ][:8]
        looks = " OR ".join(f"(rank = {rank} AND moment_ns = {moment})" for rank, moment in moments) or "false"
        sql = (
            f"SELECT rank, step, flight.segment, flight.sequence FROM (SELECT rank, step, unnest(in_flight) AS flight "
            f"FROM heartbeats WHERE {_where(self._attempt)} AND ({looks})) WHERE flight.sequence IS NOT NULL ORDER BY 1"
        )
        return Evidence(root.why, None, None, "heartbeats", sql)

    def frozen(self, incident: str) -> Evidence:
        """What an incident froze of the ranks of the root."""
        sql = (
            f"SELECT * FROM in_flight WHERE {_where(self._attempt)} AND incident = {literal(incident)} "
            f"AND rank IN ({listed(self._root.ranks[:8])}) ORDER BY rank, snapshot, begun_ns"
        )
        return Evidence(self._root.why or "this is what the incident froze", None, None, "in_flight", sql)
