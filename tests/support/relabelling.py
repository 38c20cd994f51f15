"""Other labels for a job that stays what it is: numbers of ranks, names of hosts, of axes and of the groups on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import group_id
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import GroupName, HangVerdict

TABLES = (
    "groups", "segments", "schedule", "clock_offsets", "events", "steps", "heartbeats", "in_flight", "incidents",
)  # fmt: skip
"""What the judge of a hang reads, beside `runs` and `ranks`."""

Told = tuple[object, ...]


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
    """Any order of the ranks and of the hosts, and any names of the axes, ``axes``, as far as they may be others."""
    names = st.lists(st.text("abcxyz", min_size=1, max_size=4), min_size=len(axes), max_size=len(axes), unique=True)
    return st.builds(
        lambda ranks, renamed, called: Labels(
            dict(enumerate(ranks)),
            dict(zip(hosts, renamed, strict=True)),
            {axis: f"{name}-axis" for axis, name in zip(axes, called, strict=True)},
        ),
        st.permutations(range(world)), st.permutations(hosts), names,
    )  # fmt: skip


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
        found["layout"] = json.dumps({new.axes.get(axis, axis): size for axis, size in json.loads(row["layout"]).items()})
    return found


def _value(key: str, value: Any, new: Labels, numbers: Mapping[int, int]) -> Any:
    """A value by the name of its column or key, with what is nested in it."""
    if value is None:
        return None
    if key in ("rank", "peer"):
        return new.ranks[value]
    if key == "ranks":
        return sorted(new.ranks[rank] for rank in value)
    if key == "host":
        return new.hosts.get(value, value)
    if key == "group":
        return numbers[value]
    if key == "axis":
        return new.axes.get(value, value)
    if key == "actions":
        return json.dumps([{name: _value(name, one, new, numbers) for name, one in action.items()}
                           for action in json.loads(value)])  # fmt: skip
    if key in ("in_flight", "progress"):
        return [{name: _value(name, one, new, numbers) for name, one in entry.items()} for entry in value]
    return value


def told_of(verdict: HangVerdict, new: Labels) -> Told:
    """What a verdict says, as it must read under other labels; words and the order of the culprits aside."""
    culprits = sorted(
        (sorted(new.ranks[rank] for rank in one.ranks), sorted(new.hosts.get(host, host) for host in one.hosts),
         str(one.kind), one.confidence, one.severity, one.segment or "", str(one.group and new.group(one.group)),
         one.waiters, str(one.exit_code))
        for one in verdict.culprits
    )  # fmt: skip
    ranks = (sorted(new.ranks[rank] for rank in some) for some in (verdict.unexplained, verdict.missing))
    return (verdict.verdict, verdict.victims, verdict.explained, *ranks, culprits)


def same_labels(world: int) -> Labels:
    """The labels that there are."""
    return Labels({rank: rank for rank in range(world)})
