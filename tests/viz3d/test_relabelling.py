"""A verdict is about the job and not about names: other numbers of ranks, other axes, other kinds of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.topology import Topology, group_id
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import CulpritKind, GroupName
from support.hang_scenes import MOMENT_NS, SECOND, Scene, cascade

MESH = Topology.of(pp=2, dp=2, tp=2)


def stuck_in_work() -> Scene:
    scene = cascade(MESH, 5)
    scene.work(5, "data", kind="data")
    return scene


def another_name() -> Scene:
    scene = Scene(MESH)
    for rank in range(8):
        scene.collective(rank, "world", 9, "all_gather" if rank == 3 else "all_reduce")
    return scene


def another_size() -> Scene:
    scene = another_name()
    for rank, state in scene.states.items():
        same = tuple(replace(one, segment="all_reduce", size_bytes=8 if rank == 6 else 16) for one in state.flights)
        scene.states[rank] = replace(state, flights=same)
    return scene


def ahead_of_a_stuck_device() -> Scene:
    """Every host has issued four collectives ahead; rank 4 does not complete the first one over tp, rank 5 has."""
    scene = Scene(MESH)
    for rank in range(8):
        for place, axis in enumerate(("tp", "dp") if rank == 4 else ("dp",)):
            group, first = scene.of(axis, rank), 7
            flights = tuple(
                Flight("all_gather", "collective", group, first + number, waiting=False,
                       begun_ns=MOMENT_NS - (50 - place) * SECOND + number) for number in range(2)
            )  # fmt: skip
            state = scene.states[rank]
            scene.states[rank] = replace(state, flights=(*state.flights, *flights))
            scene.progress(rank, group, first + 1, first - 1)
        if rank == 5:
            scene.progress(rank, scene.of("tp", rank), 8, 8)
    return scene


def circle() -> Scene:
    scene = Scene(MESH)
    for rank in range(8):
        scene.message(rank, "recv", (rank + 4) % 8, 3, kind="edge")
    return scene


def half_without_data() -> Scene:
    scene = cascade(MESH, 2)
    scene.lose(2)
    return scene


def lost_record() -> Scene:
    """Rank 4 waits for rank 5, which is stuck, and only its number over tp says so."""
    scene = stuck_in_work()
    state = scene.states[4]
    scene.states[4] = replace(state, flights=tuple(one for one in state.flights if not one.communicates))
    return scene


SCENES: dict[str, tuple[Callable[[], Scene], set[tuple[tuple[int, ...], CulpritKind]]]] = {
    "stuck in work": (stuck_in_work, {((5,), CulpritKind.HOST_STUCK)}),
    "lost record": (lost_record, {((5,), CulpritKind.HOST_STUCK)}),
    "another name": (another_name, {((3,), CulpritKind.MISMATCH)}),
    "another size": (another_size, {((6,), CulpritKind.MISMATCH)}),
    "stuck device": (ahead_of_a_stuck_device, {((4,), CulpritKind.DEVICE_STUCK)}),
    "circle": (circle, {((rank, rank + 4), CulpritKind.P2P_CYCLE) for rank in range(4)}),
    "without data": (half_without_data, {((2,), CulpritKind.DEAD)}),
}


def relabelled(look: Snapshot, ranks: Mapping[int, int], axes: Mapping[str, str]) -> Snapshot:
    """A look with other numbers of ranks, and other names of axes and of the groups along them."""
    kinds = {name.kind: axes.get(name.kind, name.kind) for name in look.groups.values()}
    numbers: dict[int, int] = {}
    groups: dict[int, GroupName] = {}
    for number, name in look.groups.items():
        members = tuple(sorted(ranks[rank] for rank in name.ranks))
        numbers[number] = group_id(kinds[name.kind], members)
        groups[numbers[number]] = GroupName(kinds[name.kind], members)

    def flight(one: Flight) -> Flight:
        return replace(one, group=None if one.group is None else numbers[one.group],
                       peer=None if one.peer is None else ranks[one.peer])  # fmt: skip

    def state(one: RankState) -> RankState:
        progress = {numbers[group]: value for group, value in one.progress.items()}
        return replace(one, rank=ranks[one.rank], flights=tuple(map(flight, one.flights)), progress=progress)

    return replace(
        look,
        states={ranks[rank]: state(one) for rank, one in sorted(look.states.items(), key=lambda pair: ranks[pair[0]])},
        groups=groups,
        hosts={ranks[rank]: host for rank, host in look.hosts.items()},
        coordinates={
            ranks[rank]: {axes.get(axis, axis): index for axis, index in place.items()}
            for rank, place in look.coordinates.items()
        },
        axes=tuple(axes.get(axis, axis) for axis in look.axes),
        missing=tuple(sorted(ranks[rank] for rank in look.missing)),
    )


def told(diagnosis: Diagnosis) -> set[tuple[tuple[int, ...], CulpritKind]]:
    return {(tuple(sorted(root.ranks)), root.kind) for root in diagnosis.roots}


@pytest.mark.parametrize("name", SCENES)
def test_the_scenes_are_judged_as_they_were_built(name: str) -> None:
    scene, expected = SCENES[name]
    assert told(compare_looks(*scene().looks())) == expected


@settings(deadline=None)
@given(
    st.sampled_from(sorted(SCENES)),
    st.permutations(range(8)),
    st.lists(st.text("abcxyz", min_size=1, max_size=4), min_size=3, max_size=3, unique=True),
)
def test_other_numbers_and_names_give_the_same_verdict(name: str, order: list[int], names: list[str]) -> None:
    scene, expected = SCENES[name]
    ranks = dict(enumerate(order))
    axes = dict(zip(MESH.names, (f"{one}-axis" for one in names), strict=True))
    earlier, later = (relabelled(look, ranks, axes) for look in scene().looks())
    diagnosis = compare_looks(earlier, later)
    assert told(diagnosis) == {(tuple(sorted(ranks[rank] for rank in root)), kind) for root, kind in expected}
    plain = compare_looks(*scene().looks())
    assert diagnosis.waiting == {ranks[rank] for rank in plain.waiting}
    assert diagnosis.explained == {ranks[rank] for rank in plain.explained}
