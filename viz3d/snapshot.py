"""The state of all ranks at a moment: from their heartbeats, or from what an incident froze."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..collectors.store import Attempt, Store
from ..profiler.vocabulary import WAITING_KINDS
from .verdict import GroupName

DEAD_STATES = frozenset({"gone", "zombie"})
STALE_NS = 30 * 10**9
"""A rank whose newest heartbeat is so much older than the newest of all counts as without data."""

RUN_COLUMNS = frozenset({"run", "attempt", "rank", "host", "local_rank", "device", "pid"})


@dataclass(frozen=True, slots=True)
class Flight:
    """A segment that has begun and not ended, as in a heartbeat."""

    segment: str
    kind: str
    group: int | None = None
    sequence: int | None = None
    peer: int | None = None
    microbatch: int | None = None
    begun_ns: int | None = None

    @property
    def communicates(self) -> bool:
        """Whether it is an operation with other ranks, numbered in its group."""
        return self.kind in WAITING_KINDS and self.group is not None and self.sequence is not None

    @property
    def is_receive(self) -> bool:
        """Whether it is a point-to-point operation that gets data: told by its name."""
        return self.kind == "p2p" and "recv" in self.segment.lower()

    @property
    def is_send(self) -> bool:
        """Whether it is a point-to-point operation that gives data."""
        return self.kind == "p2p" and not self.is_receive


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank at a moment. ``progress`` maps a group to the last sequence numbers (issued, completed)."""

    rank: int
    moment_ns: int
    step: int | None = None
    flights: tuple[Flight, ...] = ()
    progress: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    process_state: str | None = None
    spans: int | None = None

    def issued(self, group: int) -> int:
        """Last sequence number that the rank issued in a group; 0 if none."""
        flying = (flight.sequence for flight in self.flights if flight.group == group and flight.sequence is not None)
        return max(self.progress.get(group, (0, 0))[0], max(flying, default=0))

    def completed(self, group: int) -> int:
        """Last sequence number that the rank completed in a group; 0 if none."""
        return self.progress.get(group, (0, 0))[1]

    @property
    def is_dead(self) -> bool:
        """Whether the process is gone without having said so."""
        return self.process_state in DEAD_STATES

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, or has closed its black box."""
        return self.is_dead or self.process_state == "exited"

    @property
    def is_present(self) -> bool:
        """Whether the process can take part in anything: not ended, not stopped."""
        return not self.has_ended and self.process_state != "stopped"

    def innermost_work(self) -> Flight | None:
        """The open segment of the rank's own work that began last."""
        work = [flight for flight in self.flights if flight.kind not in WAITING_KINDS]
        return max(work, key=lambda flight: flight.begun_ns or 0, default=None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All ranks at a moment. ``missing`` are ranks that the job has and that have no (fresh) data."""

    moment_ns: int
    states: Mapping[int, RankState]
    groups: Mapping[int, GroupName]
    hosts: Mapping[int, str]
    coordinates: Mapping[int, Mapping[str, int | None]]
    axes: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()

    def stage_of(self, rank: int) -> int:
        """Index on the pipeline axis, 0 without one."""
        return self.coordinates.get(rank, {}).get("pp") or 0


def take_snapshot(store: Store, attempt: Attempt, moment_ns: int | None = None) -> Snapshot:
    """State of all ranks at their newest heartbeats (not after ``moment_ns``); ranks without any are `missing`.

    Where the store has no heartbeats at all, what the newest incident froze is taken.
    """
    rows = _newest_heartbeats(store, attempt, moment_ns)
    states = {int(row["rank"]): _state(row) for row in rows} or _frozen(store, attempt, moment_ns)
    newest = max((state.moment_ns for state in states.values()), default=0)
    fresh = {rank: state for rank, state in states.items() if state.has_ended or newest - state.moment_ns <= STALE_NS}
    groups = {
        int(row["group"]): GroupName(str(row["kind"]), tuple(sorted(row["ranks"])))
        for row in store.query("SELECT * FROM groups", attempt=attempt).to_pylist()
    }
    ranks = store.query("SELECT * FROM ranks", attempt=attempt)
    axes = tuple(attempt.layout) or tuple(name for name in ranks.column_names if name not in RUN_COLUMNS)
    places = {int(row["rank"]): row for row in ranks.to_pylist()}
    expected = set(places) | {rank for group in groups.values() for rank in group.ranks}
    if attempt.world_size is not None and len(expected) < attempt.world_size:
        expected |= set(range(attempt.world_size))
    return Snapshot(
        newest,
        fresh,
        groups,
        {rank: str(row["host"]) for rank, row in places.items()},
        {rank: {axis: row.get(axis) for axis in axes} for rank, row in places.items()},
        axes,
        tuple(sorted(expected - set(fresh))),
    )


def _newest_heartbeats(store: Store, attempt: Attempt, moment_ns: int | None) -> list[dict[str, Any]]:
    bound = "" if moment_ns is None else f"WHERE moment_ns <= {int(moment_ns)}"
    sql = f"""
        SELECT * FROM heartbeats SEMI JOIN
            (SELECT rank, max(moment_ns) AS moment_ns FROM heartbeats {bound} GROUP BY rank) newest
            USING (rank, moment_ns)"""
    rows: list[dict[str, Any]] = store.query(sql, attempt=attempt).to_pylist()
    return rows


def _state(row: Mapping[str, Any]) -> RankState:
    return RankState(
        rank=int(row["rank"]),
        moment_ns=int(row["moment_ns"]),
        step=row["step"],
        flights=tuple(_flight(flight) for flight in row["in_flight"] or ()),
        progress={
            int(one["group"]): (int(one["issued"] or 0), int(one["completed"] or 0)) for one in row["progress"] or ()
        },
        process_state=row["process_state"],
        spans=row["spans"],
    )


def _flight(row: Mapping[str, Any]) -> Flight:
    return Flight(
        segment=str(row["segment"] or ""),
        kind=str(row["kind"] or ""),
        group=row["group"],
        sequence=row["sequence"],
        peer=row["peer"],
        microbatch=row["microbatch"],
        begun_ns=row["begun_ns"],
    )


def _frozen(store: Store, attempt: Attempt, moment_ns: int | None) -> dict[int, RankState]:
    """From `in_flight`: the last snapshot of the newest incident. Without progress, what is in flight was issued."""
    incidents = store.query("SELECT incident, opened_ns FROM incidents", attempt=attempt).to_pylist()
    known = {str(row["incident"]): int(row["opened_ns"]) for row in incidents}
    if moment_ns is not None:
        known = {incident: opened for incident, opened in known.items() if opened <= moment_ns}
    if not known:
        return {}
    newest = max(known, key=lambda incident: known[incident])
    rows = store.query("SELECT * FROM in_flight WHERE incident = ?", [newest], attempt=attempt).to_pylist()
    return freeze(rows, known[newest])


def freeze(rows: Iterable[Mapping[str, Any]], moment_ns: int) -> dict[int, RankState]:
    """Rows of `in_flight` of one incident to the ranks' states; only each rank's last snapshot counts."""
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_rank.setdefault(int(row["rank"]), []).append(row)
    states = {}
    for rank, own in by_rank.items():
        last = max(int(row["snapshot"]) for row in own)
        chosen = [row for row in own if int(row["snapshot"]) == last]
        flights = sorted((_flight(row) for row in chosen), key=lambda flight: flight.begun_ns or 0)
        states[rank] = RankState(rank, moment_ns, chosen[0]["step"], tuple(flights))
    return states
