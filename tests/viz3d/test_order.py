"""Ranks that issue in another order than in their steps before: also where part of a circle is not heard of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.ends import untie
from megascope.viz3d.graph import build_graph
from megascope.viz3d.history import NoHistory
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.programs import Programs
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import MOMENT_NS, SECOND, Scene

SQUARE = Topology.of(dp=2, tp=2)


@dataclass(frozen=True)
class Past(NoHistory):
    """(kind, other kind) of groups -> the number usually issued in the other when one is issued in the first."""

    scene: Scene
    issued: Mapping[tuple[str, str], int]

    def runs_ahead(self) -> bool | None:
        return True

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        groups = self.scene.groups
        return self.issued.get((groups[group].kind, groups[other].kind))


def issue(
    scene: Scene, rank: int, segment: str, group: int, sequence: int, since_s: float, peer: int | None = None
) -> None:
    """An operation that a host has issued and goes on."""
    kind = "collective" if peer is None else "p2p"
    flight = Flight(segment, kind, group, sequence, peer, 0, MOMENT_NS - round(since_s * SECOND), waiting=False)
    state = scene.states[rank]
    scene.states[rank] = replace(state, flights=(*state.flights, flight))
    issued = max(sequence, state.progress.get(group, (0, 0))[0])
    scene.progress(rank, group, issued, state.progress.get(group, (0, sequence - 1))[1])


def crossed() -> Scene:
    """Ranks 0 and 3 issue dp before tp, ranks 1 and 2 tp before dp; all usually do tp first."""
    scene = Scene(SQUARE)
    for rank in range(4):
        order = ("dp", "tp") if rank in (0, 3) else ("tp", "dp")
        for place, axis in enumerate(order):
            issue(scene, rank, f"{axis}_reduce", scene.of(axis, rank), 5, 50 - place)
    return scene


def roots(found: Diagnosis) -> list[tuple[tuple[int, ...], CulpritKind]]:
    return [(root.ranks, root.kind) for root in found.roots]


def test_those_whose_order_made_the_circle_are_named_and_no_others() -> None:
    scene = crossed()
    found = compare_looks(*scene.looks(), Past(scene, {("dp", "tp"): 5, ("tp", "dp"): 4}))
    assert roots(found) == [((0, 3), CulpritKind.ORDER_INVERSION)]
    assert found.state == State.HANG


@pytest.mark.parametrize("silent", [1, 2])
def test_they_are_named_though_a_rank_of_the_circle_is_not_heard_of(silent: int) -> None:
    scene = crossed()
    scene.lose(silent)
    found = compare_looks(*scene.looks(), Past(scene, {("dp", "tp"): 5, ("tp", "dp"): 4}))
    assert roots(found) == [((0, 3), CulpritKind.ORDER_INVERSION)]


def test_a_record_that_is_lost_is_not_one_that_came_late() -> None:
    """Rank 0 issued tp 5, then dp 5, then tp 6 as ever; only the first record is lost."""
    scene = Scene(SQUARE)
    tensor = scene.of("tp", 0)
    issue(scene, 0, "dp_reduce", scene.of("dp", 0), 5, 50)
    issue(scene, 0, "tp_reduce", tensor, 6, 48)
    scene.progress(0, tensor, 6, 4)
    look = scene.snapshot()
    programs = Programs(look, Past(scene, {("dp", "tp"): 5}))
    head = look.states[0].flights[0]
    assert programs.issues_late(look.states[0], head) == []
    assert Programs(look, Past(scene, {("dp", "tp"): 6})).issues_late(look.states[0], head) == [(tensor, 6)]


def never_heard(scene: Scene, rank: int) -> tuple[Snapshot, Snapshot]:
    """Two looks at a job in which no agent has ever heard of a rank."""
    scene.lose(rank)
    earlier, later = (replace(look, never_heard=frozenset({rank})) for look in scene.looks())
    return earlier, later


def test_an_order_that_is_as_ever_accuses_nobody_for_one_that_is_not_heard_of() -> None:
    scene = crossed()
    found = compare_looks(*never_heard(scene, 2), Past(scene, {("dp", "tp"): 4, ("tp", "dp"): 4}))
    assert found.state == State.INCONCLUSIVE
    assert found.roots == ()


def behind_a_silent_rank(*, told: bool) -> Scene:
    """Rank 2 waits in tp for rank 3, of which nothing was ever heard, and all others behind rank 2 in dp, then world.
    Of rank 0 the record of dp 5 is lost; ``told``: and not how far it is in that group."""
    scene = Scene(Topology.of(dp=4, tp=2))
    issue(scene, 2, "tp_reduce", scene.of("tp", 2), 9, 60)
    for rank in set(range(8)) - {3}:
        if rank != 0:
            issue(scene, rank, "dp_reduce", scene.of("dp", rank), 5, 50)
        issue(scene, rank, "world_reduce", scene.world, 3, 49)
        issue(scene, rank, "dp_gather", scene.of("dp", rank), 6, 48)
    state, own = scene.states[0], scene.of("dp", 0)
    rest = {group: known for group, known in state.progress.items() if group != own}
    scene.states[0] = replace(state, progress={**rest, own: (6, 4)} if told else rest)
    return scene


@pytest.mark.parametrize("usual", [{}, {("world", "dp"): 5, ("dp", "world"): 2}])
@pytest.mark.parametrize("told", [True, False])
def test_a_record_that_is_lost_makes_no_circle(told: bool, usual: Mapping[tuple[str, str], int]) -> None:
    """Rank 0 has issued dp 5, for it has issued dp 6; that it did so behind world 3 nothing tells."""
    scene = behind_a_silent_rank(told=told)
    found = compare_looks(*never_heard(scene, 3), Past(scene, usual))
    assert found.state == State.INCONCLUSIVE
    assert roots(found) == []
    assert any("rank 3" in one.reason and "it may be the reason" in one.reason for one in found.abstained)


def test_what_is_usually_issued_behind_what_holds_a_rank_up_is_so_without_its_record() -> None:
    """Rank 0 usually issues world 3 first, and dp 5 has come to the others: they wait for it, and it for them."""
    scene = behind_a_silent_rank(told=True)
    found = compare_looks(*never_heard(scene, 3), Past(scene, {("world", "dp"): 4}))
    assert roots(found) == [((0, 4, 6), CulpritKind.ORDER_INVERSION)]


def test_a_circle_is_none_where_the_order_of_one_is_not_known() -> None:
    """Rank 0 has issued tp 5, and of that there is neither a record nor its past."""
    scene = crossed()
    state = scene.states[0]
    scene.states[0] = replace(state, flights=state.flights[:1])
    issue(scene, 0, "tp_gather", scene.of("tp", 0), 6, 48)
    found = compare_looks(*scene.looks(), Past(scene, {}))
    assert found.state == State.INCONCLUSIVE
    assert roots(found) == []
    assert any("rank 0" in one.reason and "lost" in one.reason for one in found.abstained)


@pytest.mark.parametrize("rest", [True, False])
def test_a_circle_is_none_where_nothing_tells_of_a_rank_in_a_group(rest: bool) -> None:
    """Rank 0 usually comes to tp first, and nothing tells of that; ``rest``: ranks 4 and 5 are in a circle too."""
    scene = Scene(Topology.of(dp=3, tp=2))
    tensor, world = scene.of("tp", 0), scene.group("pair", (0, 1))
    scene.in_group(1, tensor, 5, "tp_reduce")
    scene.in_group(0, world, 3, "pair_reduce")
    scene.progress(1, world, 2, 2)
    if rest:
        scene.in_group(4, scene.of("tp", 4), 5, "tp_reduce")
        scene.in_group(5, scene.group("other", (4, 5)), 3, "other_reduce")
        scene.progress(5, scene.of("tp", 4), 4, 4)
        scene.progress(4, scene.group("other", (4, 5)), 2, 2)
    past = Past(scene, {("pair", "tp"): 5})
    found = compare_looks(*scene.looks(), past)
    assert roots(found) == ([((4, 5), CulpritKind.ORDER_INVERSION)] if rest else [])
    assert found.state == (State.HANG if rest else State.INCONCLUSIVE)
    assert rest or any("how far rank 0 is" in one.reason for one in found.abstained)
    assert ((0, 1), CulpritKind.ORDER_INVERSION) in roots(compare_looks(*scene.looks(), Past(scene, {})))
    scene.progress(0, tensor, 4, 4)
    assert any(0 in ranks for ranks, _ in roots(compare_looks(*scene.looks(), past)))


def test_it_is_a_suspicion_where_something_else_is_held_up_too() -> None:
    """Ranks 4 and 5 do not complete what both have joined."""
    scene = Scene(Topology.of(dp=3, tp=2))
    for rank in range(6):
        order = ("dp", "tp") if rank in (0, 3) else ("tp", "dp")
        for place, axis in enumerate(order):
            issue(scene, rank, f"{axis}_reduce", scene.of(axis, rank), 5, 50 - place)
    found = compare_looks(*never_heard(scene, 1), Past(scene, {("dp", "tp"): 5, ("tp", "dp"): 4}))
    assert found.state == State.INCONCLUSIVE
    assert roots(found) == [((0, 3), CulpritKind.ORDER_INVERSION)]


def test_a_message_that_is_sent_late_makes_the_order_another() -> None:
    """Rank 0's record of what it waits for is lost: it shows by the send, which is issued after a collective it usually
    comes before."""
    scene = Scene(Topology.of(pp=2, tp=2))
    for rank, peer in ((0, 2), (1, 3)):
        back, forth = scene.group("pp_backward", (rank, peer)), scene.group("pp_forward", (rank, peer))
        if rank == 1:
            issue(scene, rank, "recv_backward", back, 5, 50, peer)
        issue(scene, rank, "tp_gather", scene.of("tp", rank), 9, 49)
        issue(scene, rank, "tp_reduce", scene.of("tp", rank), 10, 48.9)
        issue(scene, rank, "send_forward", forth, 5, 48, peer)
        issue(scene, peer, "recv_forward", forth, 5, 50, rank)
        issue(scene, peer, "tp_gather", scene.of("tp", peer), 9, 49)
        issue(scene, peer, "tp_reduce", scene.of("tp", peer), 10, 48)
        issue(scene, peer, "send_backward", back, 5, 47, rank)
    past = Past(scene, {("pp_backward", "pp_forward"): 5, ("tp", "pp_forward"): 5})
    found = compare_looks(*scene.looks(), past)
    assert roots(found) == [((0, 1), CulpritKind.P2P_CYCLE)]


@pytest.mark.parametrize(("stood", "named"), [((60, 50), (0,)), ((50, 60), (9,)), ((60, 59), (0, 9))])
def test_clocks_of_two_hosts_do_not_tell_who_stopped_first(stood: tuple[float, float], named: tuple[int, ...]) -> None:
    """Ranks 0 and 9 are each in own work, beside a collective in which each lacks the other; rank 9's clock is an hour
    behind."""
    scene = Scene(Topology.of(dp=16))
    hour = 3600 * SECOND
    for rank, since_s, axis in ((0, stood[0], "dp"), (9, stood[1], "world")):
        moment = MOMENT_NS - (hour if rank == 9 else 0)
        group = scene.of("dp", 0) if axis == "dp" else scene.group("world", range(16))
        begun = moment - round(since_s * SECOND)
        flights = (
            Flight("reduce", "collective", group, 4, begun_ns=begun - SECOND, waiting=False),
            Flight("backward", "compute", begun_ns=begun),
        )
        scene.states[rank] = RankState(rank, moment, 12, flights, {group: (4, 3)}, "sleeping", 1000)
        for other in set(range(16)) - {0, 9}:
            scene.progress(other, group, 4, 3)
    look = scene.snapshot()
    look = replace(look, states={rank: scene.states[rank] for rank in (0, 9)})
    free, circles = untie(build_graph(look), look, (0, 9))
    assert (free, circles) == (named, [])


def test_who_issues_something_else_late_is_not_named_with_them() -> None:
    """Rank 4 of the other stage issues dp before tp too, and its stage is held up by it in another place."""
    scene = Scene(Topology.of(pp=2, dp=2, tp=2))
    for rank in range(8):
        order = ("dp", "tp") if rank in (0, 3, 4) else ("tp", "dp")
        for place, axis in enumerate(order):
            issue(scene, rank, f"{axis}_reduce", scene.of(axis, rank), 5, 50 - place)
    found = compare_looks(*scene.looks(), Past(scene, {("dp", "tp"): 5, ("tp", "dp"): 4}))
    assert roots(found)[0] == ((0, 3), CulpritKind.ORDER_INVERSION)
    assert all(4 not in root.ranks for root in found.roots if root.kind == CulpritKind.ORDER_INVERSION)


def test_it_is_told_where_not_all_could_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, past = crossed(), {("dp", "tp"): 5, ("tp", "dp"): 4}
    assert "were asked" not in compare_looks(*scene.looks(), Past(scene, past)).roots[0].why
    monkeypatch.setattr("megascope.viz3d.programs.MAX_ASKED", 3)
    assert "were asked" in compare_looks(*scene.looks(), Past(scene, past)).roots[0].why
