"""The small tables about an attempt, from what its ranks on this host have told about it."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..reading.clock_sql import OffsetSource
from ..spool.outbox import Whole
from ..spool.rank_metadata import RankMetadata

_CRASHED = frozenset({"crashed", "exception"})
"""Reasons of an exit that mean a failure."""


def small_tables(ranks: Sequence[RankMetadata], start_ns: int) -> dict[str, Whole]:
    """ranks, segments, groups, schedule, faults and clock_offsets; of ranks whose header is known."""
    axes = layout(ranks) or {}
    segments = {segment.id: segment for rank in ranks for segment in rank.names.segments.values()}
    groups = {group.id: group for rank in ranks for group in rank.names.groups.values()}
    return {
        "ranks": Whole([_rank_row(rank) for rank in ranks], tuple(axes)),
        "segments": Whole(
            [{"segment": s.id, "name": s.name, "kind": s.kind, "axis": s.axis} for s in segments.values()]
        ),
        "groups": Whole([{"group": g.id, "kind": g.kind, "ranks": list(g.ranks)} for g in groups.values()]),
        "schedule": Whole(_schedule_rows(ranks)),
        "faults": Whole(_fault_rows(ranks)),
        "clock_offsets": Whole(_clock_offsets(ranks, start_ns)),
    }


def run_row(ranks: Sequence[RankMetadata], start_ns: int, end_ns: int | None, exit_reason: str | None) -> Whole:
    """The row of ``runs``; the end and its reason are None while the attempt runs."""
    headers = [rank.header for rank in ranks if rank.header is not None]
    axes = layout(ranks)
    configuration = next((rank.configuration for rank in ranks if rank.configuration is not None), None)
    row = {
        "layout": None if axes is None else json.dumps(axes),
        "world_size": headers[0].world_size,
        "configuration": None if configuration is None else json.dumps(configuration),
        "versions": json.dumps(dict(headers[0].versions)),
        "start_ns": start_ns,
        "end_ns": end_ns,
        "exit_reason": exit_reason,
    }
    return Whole([row])


def layout(ranks: Sequence[RankMetadata]) -> dict[str, int] | None:
    """Axis to size, the outermost first; None while no rank knows it."""
    return next((rank.axes for rank in ranks if rank.axes), None)


def worst_exit(ranks: Sequence[RankMetadata], *, died: bool) -> str:
    """crashed, interrupted, exited or finished: the worst of any rank. ``died`` tells that one gave no goodbye.

    exited is a process that ended in order but never said that it was done: a script without ``shutdown()``, or one
    that called ``sys.exit``.
    """
    reasons = {rank.exit_reason for rank in ranks}
    if died or any(rank.exception for rank in ranks) or reasons & _CRASHED:
        return "crashed"
    return next((reason for reason in ("interrupted", "exited") if reason in reasons), "finished")


def _rank_row(rank: RankMetadata) -> dict[str, Any]:
    header = rank.header
    assert header is not None
    return {
        "rank": header.rank,
        "host": header.host,
        "local_rank": header.local_rank,
        "device": header.device,
        "pid": header.pid,
        **rank.coordinates,
    }


def _schedule_rows(ranks: Sequence[RankMetadata]) -> list[dict[str, Any]]:
    """Actions of all stages; where several ranks wrote the same action, it is the same."""
    rows = {}
    for rank in ranks:
        for action in rank.schedule:
            depends = [{"stage": stage, "position": position} for stage, position in action["depends_on"]]
            rows[action["stage"], action["position"]] = {**action, "depends_on": depends}
    return [rows[key] for key in sorted(rows)]


def _fault_rows(ranks: Sequence[RankMetadata]) -> list[dict[str, Any]]:
    """One row a fault; one that several ranks carry acted from the first moment of any to the last of any."""
    faults: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for rank in ranks:
        for name, values in rank.faults.items():
            faults[name].append(values)
    rows = []
    for carried in faults.values():
        row = {name: value for values in carried for name, value in values.items()}
        for name, choose in (("first_ns", min), ("last_ns", max)):
            moments = [values[name] for values in carried if values.get(name) is not None]
            if moments:
                row[name] = choose(moments)
        rows.append(row)
    return rows


def _clock_offsets(ranks: Sequence[RankMetadata], moment_ns: int) -> list[dict[str, Any]]:
    """On one host all ranks share one clock, which is then the reference; on several, what messages between them told.

    How ends of shared operations align several hosts can be seen only from the store as a whole: `clocks.update`.
    """
    told = {
        rank.header.host: {**rank.clock, "source": str(OffsetSource.EXCHANGE)}
        for rank in ranks
        if rank.header is not None and rank.clock is not None
    }
    if told:
        return [{"host": host, **row} for host, row in sorted(told.items())]
    headers = [rank.header for rank in ranks if rank.header is not None]
    hosts = {header.host for header in headers}
    if len(hosts) != 1 or len({header.rank for header in headers}) < headers[0].world_size:
        return []
    resolution_ns = max(1, round(time.get_clock_info("monotonic").resolution * 1e9))
    row = {"host": hosts.pop(), "moment_ns": moment_ns, "offset_ns": 0, "drift_ppb": 0.0}
    return [{**row, "uncertainty_ns": resolution_ns, "source": str(OffsetSource.HOST)}]
