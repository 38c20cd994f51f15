"""Reads from a store the ends of operations that several hosts shared, a sample of steps of a window of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..reading.store import Attempt, Store
from .pairs import Ends, IntArray

STEPS_PER_WINDOW = 24
OPERATIONS_PER_STEP = 12
"""Of one group: with the steps, enough for `pairs.MAX_SAMPLES` of a pair of hosts."""

GROUPS_PER_HOSTS = 2
"""Groups of the same kind that span the same hosts, such as those of their GPUs, tell the same: so many are read."""


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """The hosts of an attempt, the reference first, and which ranks are looked at: one of each host in each group."""

    hosts: tuple[str, ...]
    members: pa.Table
    """group, rank, host (index), one row a member."""


_HOSTS = "SELECT host, min(rank) AS first FROM ranks GROUP BY host ORDER BY first"

_MEMBERS = """
    WITH members AS (
        SELECT wide."group" AS "group", wide.kind, ranks.host, min(ranks.rank) AS rank
        FROM (SELECT "group", kind, unnest(ranks) AS rank FROM groups) wide JOIN ranks USING (rank) GROUP BY ALL
    ), spans AS (
        SELECT "group", kind, list(host ORDER BY host) AS hosts FROM members GROUP BY ALL HAVING count(*) > 1
    ), chosen AS (
        SELECT "group" FROM spans QUALIFY row_number() OVER (PARTITION BY kind, hosts ORDER BY "group") <= ?
    )
    SELECT members."group", members.rank, members.host FROM members SEMI JOIN chosen USING ("group")
"""

_STEPS = """
    SELECT step, min(start_ns) AS start_ns, max(start_ns + duration_ns) AS end_ns FROM {table}
    WHERE rank = {rank} AND step IS NOT NULL AND duration_ns IS NOT NULL
    GROUP BY step ORDER BY start_ns
"""

_ENDS = """
    WITH members AS (SELECT unnest(?::BIGINT[]) AS "group", unnest(?::INTEGER[]) AS rank, unnest(?::INTEGER[]) AS host),
    found AS (
        SELECT events."group", members.host, events.rank, events.step, events.sequence, events.peer, events.duration_ns,
            events.start_ns + events.duration_ns AS end_ns,
            CASE WHEN segments.kind <> 'p2p' THEN 0 WHEN contains(segments.name, 'recv') THEN 2
                 WHEN contains(segments.name, 'receive') THEN 2 ELSE 1 END AS side
        FROM events JOIN members ON members."group" = events."group" AND members.rank = events.rank
        JOIN segments ON segments.segment = events.segment
        WHERE list_contains(?, events.step) AND events.status = 'ok' AND events.duration_ns IS NOT NULL
            AND events.sequence IS NOT NULL AND segments.kind IN ('collective', 'p2p')
            AND NOT contains(segments.name, 'broadcast') AND (segments.kind <> 'p2p' OR events.peer IS NOT NULL)
        QUALIFY row_number() OVER
            (PARTITION BY events."group", members.host, events.step, side ORDER BY events.sequence) <= ?
    )
    SELECT dense_rank() OVER (ORDER BY "group", sequence, CASE side WHEN 1 THEN rank WHEN 2 THEN peer END) AS operation,
        host, end_ns, side, duration_ns
    FROM found
"""
"""A broadcast's root is done before the others: its ends tell nothing. A p2p operation is known by its sender too."""


def find_shared_groups(store: Store, attempt: Attempt) -> SharedGroups:
    """The hosts of an attempt, by their lowest rank, and the groups that span several of them."""
    hosts = tuple(str(host) for host in store.query(_HOSTS, attempt=attempt)["host"].to_pylist())
    number = {host: at for at, host in enumerate(hosts)}
    rows = store.query(_MEMBERS, [GROUPS_PER_HOSTS], attempt)
    index = pa.array([number[str(host)] for host in rows["host"].to_pylist()], pa.int32())
    return SharedGroups(hosts, rows.set_column(2, "host", index))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When the lowest rank, on the reference host, began and ended its steps, by its own clock; [S] each, ascending."""

    step: IntArray
    start_ns: IntArray
    end_ns: IntArray

    def chosen(self, begin_ns: int, end_ns: int) -> list[int]:
        """At most `STEPS_PER_WINDOW` steps that lie in [begin, end) whole, evenly spread."""
        inside = self.step[(self.start_ns >= begin_ns) & (self.end_ns < end_ns)]
        count = min(len(inside), STEPS_PER_WINDOW)
        return [int(inside[at]) for at in np.linspace(0, len(inside) - 1, count).round().astype(int)]


def read_step_times(store: Store, attempt: Attempt) -> StepTimes:
    """The steps of the lowest rank, from ``steps``, or from its spans where the store has no steps."""
    low = store.query("SELECT coalesce(min(rank), 0) AS rank FROM ranks", attempt=attempt).to_pylist()[0]["rank"]
    rows = store.query(_STEPS.format(table="steps", rank=low), attempt=attempt)  # a number: whole files are passed over
    for table in ("steps", "events"):
        if not rows.num_rows:
            rows = store.query(_STEPS.format(table=table, rank=f"(SELECT min(rank) FROM {table})"), attempt=attempt)
    return StepTimes(*(_integers(rows, name) for name in ("step", "start_ns", "end_ns")))


def _integers(rows: pa.Table, name: str) -> IntArray:
    return np.asarray(rows[name].cast(pa.int64()).combine_chunks().to_numpy(zero_copy_only=False), np.int64)


def read_ends(store: Store, attempt: Attempt, groups: SharedGroups, steps: Sequence[int]) -> Ends:
    """The ends of the groups' operations in some steps."""
    members = [groups.members[name].to_pylist() for name in ("group", "rank", "host")]
    rows = store.query(_ENDS, [*members, list(steps), OPERATIONS_PER_STEP], attempt)
    return Ends(*(_integers(rows, name) for name in ("operation", "host", "end_ns", "side", "duration_ns")))
