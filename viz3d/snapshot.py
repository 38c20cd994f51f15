"""Looks at a job: the state of all ranks at a moment, from their heartbeats or from what an incident froze."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..collectors.clocks.clocks import Clocks, load_clocks
from ..collectors.reading.clock_sql import CLOCK_PIECES, aligned_sql
from ..collectors.reading.store import Attempt, Store
from .actions import parse_actions
from .beats import COLUMNS, states_of
from .collector import without_collector
from .states import Flight, RankState, Snapshot
from .verdict import GroupName

STALE_NS = 30 * 10**9
"""A rank whose newest heartbeat is so much older than the newest of all counts as without data."""

RUN_COLUMNS = frozenset({"run", "attempt", "rank", "host", "local_rank", "device", "pid"})


@dataclass(frozen=True, slots=True)
class _Job:
    """What does not change from look to look."""

    groups: Mapping[int, GroupName]
    hosts: Mapping[int, str]
    coordinates: Mapping[int, Mapping[str, int | None]]
    axes: tuple[str, ...]
    expected: frozenset[int]
    clocks: Clocks


def take_snapshot(store: Store, attempt: Attempt, moment_ns: int | None = None) -> Snapshot:
    """State of all ranks at their newest heartbeats (not after ``moment_ns``); ranks without any are `missing`.

    Where the store has no heartbeats at all, what the newest incident froze is taken.
    """
    return take_looks(store, attempt, 0, moment_ns)[1]


@without_collector()
def take_looks(
    store: Store, attempt: Attempt, apart_ns: int, moment_ns: int | None = None
) -> tuple[Snapshot, Snapshot]:
    """Two looks at a job, the earlier one first.

    The later one is `take_snapshot`. The earlier one has each rank at its newest heartbeat that is at least
    ``apart_ns`` older than the rank's own in the later look: hosts report at different times. A rank without one is
    not in it. Frozen looks are the two snapshots of the newest incident.
    """
    job = _load_job(store, attempt)
    before, newest = _heartbeats(store, attempt, job, apart_ns, moment_ns)
    if not newest:
        return _frozen_looks(store, attempt, job, moment_ns)
    later = _snapshot(job, newest)
    if apart_ns <= 0:
        return later, later
    return replace(later, states={rank: before[rank] for rank in later.states if rank in before}), later


def _load_job(store: Store, attempt: Attempt) -> _Job:
    groups = {
        int(row["group"]): GroupName(str(row["kind"]), tuple(sorted(row["ranks"])))
        for row in store.query("SELECT * FROM groups", attempt=attempt).to_pylist()
    }
    table = store.query("SELECT * FROM ranks", attempt=attempt)
    axes = tuple(attempt.layout) or tuple(name for name in table.column_names if name not in RUN_COLUMNS)
    columns = {name: table[name].to_pylist() for name in ("rank", "host", *axes) if name in table.column_names}
    ranks = columns["rank"]
    unknown = [None] * len(ranks)
    indices = zip(*(columns.get(axis, unknown) for axis in axes), strict=True) if axes else ((),) * len(ranks)
    expected = set(ranks) | {rank for group in groups.values() for rank in group.ranks}
    if attempt.world_size is not None and len(expected) < attempt.world_size:
        expected |= set(range(attempt.world_size))
    return _Job(
        groups,
        {rank: str(host) for rank, host in zip(ranks, columns["host"], strict=True)},
        {rank: dict(zip(axes, own, strict=True)) for rank, own in zip(ranks, indices, strict=True)},
        axes,
        frozenset(expected),
        load_clocks(store, attempt),
    )


def _snapshot(job: _Job, states: Mapping[int, RankState], incident: str | None = None) -> Snapshot:
    """A look of these states, without those that are stale on a clock that they share with fresher ones."""
    moments = {rank: job.clocks.aligned_ns(job.hosts.get(rank), state.moment_ns) for rank, state in states.items()}
    newest = max(moments.values(), default=0)
    several = len(set(job.hosts.values())) > 1
    shared: dict[str, int] = {}  # the newest moment on every clock: all known ones are one
    clock_of = {rank: _clock_name(job, rank) if several else "" for rank in states}
    for rank, moment in moments.items():
        shared[clock_of[rank]] = max(shared.get(clock_of[rank], 0), moment)
    fresh = {
        rank: state
        for rank, state in states.items()
        if state.has_ended or shared[clock_of[rank]] - moments[rank] <= STALE_NS
    }
    lagging = tuple(sorted(host for host, moment in shared.items() if host and newest - moment > STALE_NS))
    missing = tuple(sorted(job.expected - set(fresh)))
    never = job.expected - set(states)
    return Snapshot(newest, fresh, job.groups, job.hosts, job.coordinates, job.axes, missing, lagging, incident, never)


def _clock_name(job: _Job, rank: int) -> str:
    """The clock of a rank's moments: the reference (an empty name), or its host's own where that is not aligned."""
    host = job.hosts.get(rank, "")
    return "" if host in job.clocks.known else host


_ALIGNED = f"""
    WITH pieces AS ({CLOCK_PIECES})
    SELECT beats.*, coalesce({aligned_sql("beats.moment_ns")}, beats.moment_ns) AS aligned_ns
    FROM heartbeats beats LEFT JOIN ranks USING (rank)
    ASOF LEFT JOIN pieces ON pieces.host = ranks.host AND beats.moment_ns >= pieces.from_ns"""
"""Heartbeats with their moments on the reference clock, as `clocks` has it."""


def _heartbeats(
    store: Store, attempt: Attempt, job: _Job, apart_ns: int, moment_ns: int | None
) -> tuple[dict[int, RankState], dict[int, RankState]]:
    """Each rank at its newest heartbeat that is at least ``apart_ns`` older than its newest one (none if that is not
    positive), and at its newest one, not after ``moment_ns``; in one pass over the table."""
    if moment_ns is None:
        source, bound = "heartbeats", ""
    elif job.clocks.known:
        source, bound = f"({_ALIGNED})", f"WHERE aligned_ns <= {int(moment_ns)}"
    else:
        source, bound = "heartbeats", f"WHERE moment_ns <= {int(moment_ns)}"
    beats = store.query(
        f"""WITH newest AS (SELECT rank, max(moment_ns) AS moment_ns FROM {source} {bound} GROUP BY rank),
            earlier AS (
                SELECT rank, max(beats.moment_ns) AS moment_ns FROM heartbeats beats JOIN newest USING (rank)
                WHERE {apart_ns > 0} AND beats.moment_ns <= newest.moment_ns - {int(apart_ns)} GROUP BY rank
            ),
            looks AS (SELECT *, true AS is_newest FROM newest UNION ALL SELECT *, false FROM earlier)
            SELECT {", ".join(COLUMNS)}, is_newest FROM heartbeats JOIN looks USING (rank, moment_ns)""",
        attempt=attempt,
    )
    looks: tuple[dict[int, RankState], dict[int, RankState]] = {}, {}
    for state, is_newest in zip(states_of(beats), beats["is_newest"].to_pylist(), strict=True):
        looks[is_newest][state.rank] = state
    return looks


def _flight(row: Mapping[str, Any]) -> Flight:
    return Flight(
        segment=str(row["segment"] or ""),
        kind=str(row["kind"] or ""),
        group=row["group"],
        sequence=row["sequence"],
        peer=row["peer"],
        microbatch=row["microbatch"],
        begun_ns=row["begun_ns"],
        size_bytes=row.get("size_bytes"),
        waiting=row.get("waiting"),
    )


def _frozen_looks(store: Store, attempt: Attempt, job: _Job, moment_ns: int | None) -> tuple[Snapshot, Snapshot]:
    """The snapshots of the newest incident that has any; both the same where it has only one."""
    rows = store.query(
        "SELECT incident, opened_ns, actions FROM incidents SEMI JOIN in_flight USING (incident)", attempt=attempt
    ).to_pylist()
    known = [row for row in rows if moment_ns is None or int(row["opened_ns"]) <= moment_ns]
    if not known:
        return _snapshot(job, {}), _snapshot(job, {})
    newest = max(known, key=lambda row: int(row["opened_ns"]))
    name, opened_ns = str(newest["incident"]), int(newest["opened_ns"])
    frozen = store.query("SELECT * FROM in_flight WHERE incident = ?", [name], attempt=attempt).to_pylist()
    moments = {
        int(one["snapshot"]): int(one["moment_ns"])
        for one in parse_actions(newest["actions"])
        if one.get("action") == "snapshot" and "snapshot" in one and "moment_ns" in one
    }
    looks = []
    for number in sorted({int(row["snapshot"]) for row in frozen} or {1}):
        # An incident that does not say when it looked still looked twice, the second time after the first.
        moment = moments.get(number, opened_ns + number - 1)
        states = freeze((row for row in frozen if int(row["snapshot"]) == number), moment)
        looks.append(_snapshot(job, _with_idle(states, job), name))
    return looks[0], looks[-1]


def freeze(rows: Iterable[Mapping[str, Any]], moment_ns: int) -> dict[int, RankState]:
    """Rows of one snapshot in `in_flight` to the ranks' states. Without progress, what is in flight was issued."""
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_rank.setdefault(int(row["rank"]), []).append(row)
    states = {}
    for rank, own in by_rank.items():
        flights = sorted((_flight(row) for row in own), key=lambda flight: flight.begun_ns or 0)
        states[rank] = RankState(rank, moment_ns, own[0]["step"], tuple(flights))
    return states


def flight_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """What is in flight in a look as rows of ``in_flight``, without incident, snapshot and source: see `freeze`."""
    return [
        {**{name: getattr(flight, name) for name in _FLIGHT_COLUMNS}, "rank": state.rank, "step": state.step}
        for state in snapshot.states.values()
        for flight in state.flights
        if not flight.is_recovered
    ]


_FLIGHT_COLUMNS = (
    "segment", "kind", "group", "sequence", "peer", "microbatch", "begun_ns", "size_bytes", "waiting",
)  # fmt: skip


def _with_idle(states: Mapping[int, RankState], job: _Job) -> dict[int, RankState]:
    """With the ranks that had nothing in flight: an agent freezes all ranks of its host at once."""
    looked_at = {job.hosts[rank]: state.moment_ns for rank, state in states.items() if rank in job.hosts}
    idle = {rank: RankState(rank, looked_at[host]) for rank, host in job.hosts.items() if host in looked_at}
    return {**idle, **states}


__all__ = ["STALE_NS", "Flight", "RankState", "Snapshot", "flight_rows", "freeze", "take_looks", "take_snapshot"]
