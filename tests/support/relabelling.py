"""Other labels for a job that stays what it is: numbers of ranks, names of hosts, of axes and of the groups on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import group_id
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import GroupName

TABLES = (
    "groups", "segments", "schedule", "clock_offsets", "events", "steps", "heartbeats", "in_flight", "incidents",
)  # fmt: skip
"""What the judge of a hang reads, beside `runs` and `ranks`."""


@dataclass(frozen=True, slots=True)
class Labels:
    """New labels by the old ones: ``ranks`` has all of them; hosts and axes that are not named keep theirs.

    A group's kind is its axis, alone or with what runs on it: with pp called pipe, `pp_forward` is `pipe_forward`.
    """

    ranks: Mapping[int, int]
    hosts: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)

    def kind(self, kind: str) -> str:
        """The kind of a group."""
        axis, line, rest = kind.partition("_")
        return self.axes.get(axis, axis) + line + rest

    def group(self, name: GroupName) -> GroupName:
        """The identity of a group."""
        return GroupName(self.kind(name.kind), tuple(sorted(self.ranks[rank] for rank in name.ranks)))

    def numbers(self, groups: Mapping[int, GroupName]) -> dict[int, int]:
        """The ids of groups by the old ones."""
        named = {number: self.group(name) for number, name in groups.items()}
        return {number: group_id(name.kind, name.ranks) for number, name in named.items()}


def labels(world: int, hosts: Sequence[str] = (), axes: Sequence[str] = ()) -> st.SearchStrategy[Labels]:
    """Any order of the ranks and of the hosts, and other names of the ``axes``; the simplest one is an order too."""

    def shuffled(seed: int) -> Labels:
        random = Random(seed)
        names = random.sample([f"{first}{second}-axis" for first in "abxz" for second in "acyz"], len(axes))
        return Labels(
            dict(enumerate(random.sample(range(world), world))),
            dict(zip(hosts, random.sample(hosts, len(hosts)), strict=True)),
            dict(zip(axes, names, strict=True)),
        )

    return st.integers(0, 2**32).map(shuffled)


def relabelled_look(look: Snapshot, new: Labels) -> Snapshot:
    """A look with other labels, its ranks in the order of their new numbers."""
    numbers = new.numbers(look.groups)

    def flight(one: Flight) -> Flight:
        return replace(one, group=None if one.group is None else numbers[one.group],
                       peer=None if one.peer is None else new.ranks[one.peer])  # fmt: skip

    def state(one: RankState) -> RankState:
        progress = {numbers[group]: value for group, value in one.progress.items()}
        return replace(one, rank=new.ranks[one.rank], flights=tuple(map(flight, one.flights)), progress=progress)

    return replace(
        look,
        states={new.ranks[rank]: state(look.states[rank]) for rank in sorted(look.states, key=new.ranks.__getitem__)},
        groups={numbers[number]: new.group(name) for number, name in look.groups.items()},
        hosts={new.ranks[rank]: new.hosts.get(host, host) for rank, host in look.hosts.items()},
        coordinates={
            new.ranks[rank]: {new.axes.get(axis, axis): index for axis, index in place.items()}
            for rank, place in look.coordinates.items()
        },
        axes=tuple(new.axes.get(axis, axis) for axis in look.axes),
        missing=tuple(sorted(new.ranks[rank] for rank in look.missing)),
        never_heard=frozenset(new.ranks[rank] for rank in look.never_heard),
    )


def relabelled_store(store: Store, new: Labels, root: Path) -> Store:
    """Write all that the judge reads of a store's newest attempt with other labels, and open that."""
    attempt = store.attempt()
    groups = {
        int(row["group"]): GroupName(str(row["kind"]), tuple(row["ranks"]))
        for row in store.query("SELECT * FROM groups", attempt=attempt).to_pylist()
    }
    numbers = new.numbers(groups)
    axes = tuple(new.axes.get(axis, axis) for axis in attempt.layout)
    with TableWriter(root, "relabelled") as writer:
        for table in ("runs", "ranks", *TABLES):
            rows = store.query(f"SELECT * FROM {table}", attempt=attempt).to_pylist()
            changed = [_row(table, row, new, numbers, tuple(attempt.layout)) for row in rows]
            if changed:
                columns = {key: [row[key] for row in changed] for key in changed[0] if key not in ("run", "attempt")}
                writer.write(table, attempt.run, attempt.attempt, columns, axes=axes if table == "ranks" else ())
        writer.commit()
    return Store(root)


def _row(table: str, row: Mapping[str, Any], new: Labels, numbers: Mapping[int, int], axes: Sequence[str]) -> Any:
    """A row of a table with other labels."""
    found = {key: _value(key, value, new, numbers) for key, value in row.items()}
    if table == "groups":
        found["kind"] = new.kind(row["kind"])
    if table == "ranks":
        found = {new.axes.get(key, key) if key in axes else key: value for key, value in found.items()}
    if table == "runs":
        found["layout"] = json.dumps(
            {new.axes.get(axis, axis): size for axis, size in json.loads(row["layout"]).items()}
        )
    return found


def _value(key: str, value: Any, new: Labels, numbers: Mapping[int, int]) -> Any:
    """A value by the name of its column or key, with what is nested in it."""

    def entry(one: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _value(name, own, new, numbers) for name, own in one.items()}

    changes: Mapping[str, Callable[[Any], Any]] = {
        "rank": lambda rank: new.ranks[rank],
        "peer": lambda rank: new.ranks[rank],
        "ranks": lambda ranks: sorted(new.ranks[rank] for rank in ranks),
        "host": lambda host: new.hosts.get(host, host),
        "group": lambda group: numbers[group],
        "axis": lambda axis: new.axes.get(axis, axis),
        "actions": lambda text: json.dumps([entry(one) for one in json.loads(text)]),
        "in_flight": lambda flights: [entry(one) for one in flights],
        "progress": lambda counts: [entry(one) for one in counts],
    }
    return changes[key](value) if value is not None and key in changes else value
