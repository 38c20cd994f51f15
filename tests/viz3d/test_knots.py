"""Ranks that wait for each other, and what the steps before tell of who made it so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.history import NoHistory
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.states import Flight, Snapshot
from megascope.viz3d.streams import LOST, Streams
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import MOMENT_NS, SECOND, Scene

SQUARE = Topology.of(dp=2, tp=2)


@dataclass(frozen=True)
class Past(NoHistory):
    """``issued``: kind of a group -> the number that every rank has issued in it by now; ``order``: segments, of which
    each ends before the next begins."""

    scene: Scene
    issued: Mapping[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        return self.issued.get(self.scene.groups[other].kind)

    def ends_before(self, rank: int, step: int, first: tuple[int, int], second: tuple[int, int]) -> bool | None:
        names = [self._name(rank, one) for one in (first, second)]
        if any(name not in self.order for name in names):
            return None
        return self.order.index(names[0]) < self.order.index(names[1])

    def _name(self, rank: int, key: tuple[int, int]) -> str:
        return next((one.segment for one in self.scene.states[rank].flights if (one.group, one.sequence) == key), "")


def in_flight(scene: Scene, rank: int, segment: str, kind: str, sequence: int, since_s: float, **more: object) -> None:
    """A collective of a rank, which its host waits for only if ``waiting``."""
    group = scene.of(kind, rank) if kind != "world" else scene.group("world", range(scene.mesh.world_size))
    begun = MOMENT_NS - round(since_s * SECOND)
    flight = Flight(segment, "collective", group, sequence, begun_ns=begun, waiting=bool(more.get("waiting", False)))
    state = scene.states[rank]
    scene.states[rank] = replace(state, flights=(*state.flights, flight))
    known = scene.states[rank].progress.get(group, (0, sequence - 1))
    scene.progress(rank, group, max(known[0], sequence), known[1])


def roots(diagnosis: Diagnosis) -> list[tuple[tuple[int, ...], CulpritKind]]:
    return [(root.ranks, root.kind) for root in diagnosis.roots]


def left_out(ranks: int = 4) -> Scene:
    """Rank 3 left out its reduce-scatter. The others' hosts wait for the norm, their devices for the reduce-scatter."""
    scene = Scene(Topology.of(dp=ranks))
    for rank in range(ranks):
        if rank == 3:
            scene.progress(rank, scene.of("dp", rank), 10, 10)
        else:
            in_flight(scene, rank, "dp_reduce_scatter", "dp", 11, 50)
        in_flight(scene, rank, "norm", "world", 6, 49, waiting=True)
    return scene


def test_what_stands_behind_an_operation_that_usually_comes_first_has_not_begun() -> None:
    """That all hosts are in the norm makes no network failure."""
    scene = left_out()
    past = Past(scene, {"dp": 11}, order=("dp_reduce_scatter", "norm"))
    diagnosis = compare_looks(*scene.looks(), past)
    assert diagnosis.state == State.HANG
    assert roots(diagnosis) == [((3,), CulpritKind.MISSING_CALL)]
    assert diagnosis.waiting == diagnosis.explained == {0, 1, 2}


def test_operations_in_another_order_than_before_name_those_who_changed_it() -> None:
    """Ranks 0 and 3 reduce over dp before their last call over tp; ranks 1 and 2 do as always."""
    scene = Scene(SQUARE)
    for rank in range(4):
        calls = [("tp_gather", "tp", 8), ("dp_reduce", "dp", 4)]
        for place, (segment, kind, number) in enumerate(reversed(calls) if rank in (0, 3) else calls):
            in_flight(scene, rank, segment, kind, number, 50 - place)
    usual = {0: {"tp": 8, "dp": 3}, 1: {"tp": 7, "dp": 3}}

    class ByRank(Past):
        def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
            is_reduce = self.scene.groups[group].kind == "dp"
            return usual[0 if is_reduce else 1].get(self.scene.groups[other].kind)

    diagnosis = compare_looks(*scene.looks(), ByRank(scene))
    assert roots(diagnosis) == [((0, 3), CulpritKind.ORDER_INVERSION)]
    assert "late" in diagnosis.roots[0].why


def asked_of_two(ranks: int = 4) -> tuple[Scene, Past]:
    """As `left_out`; rank 0 has waited for longer, for rank 1 in a group of both. With what all usually do."""
    scene = left_out(ranks)
    pair = scene.group("pair", [0, 1])
    flight = Flight("pair_reduce", "collective", pair, 5, begun_ns=MOMENT_NS - 60 * SECOND)
    scene.states[0] = replace(scene.states[0], flights=(flight, *scene.states[0].flights))
    scene.progress(0, pair, 5, 4)
    scene.progress(1, pair, 4, 4)
    return scene, Past(scene, {"dp": 11, "pair": 4}, order=("dp_reduce_scatter", "norm"))


def test_where_not_all_could_be_asked_nobody_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a rank left out a call only its own steps tell; without them the others look like a circle."""
    scene, past = asked_of_two()
    assert roots(compare_looks(*scene.looks(), past)) == [((3,), CulpritKind.MISSING_CALL)]
    monkeypatch.setattr("megascope.viz3d.programs.MAX_ASKED", 1)
    found = compare_looks(*scene.looks(), past)
    assert found.roots
    assert all(root.is_suspicion and "were asked" in root.why for root in found.roots)
    assert max(root.confidence for root in found.roots) <= 0.4


def test_who_lacks_what_most_have_joined_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more ranks than are asked: rank 1, in a pair of which half is there, comes later and is not asked."""
    scene, past = asked_of_two(8)
    for module in ("programs", "knots"):
        monkeypatch.setattr(f"megascope.viz3d.{module}.MAX_ASKED", 2)
    monkeypatch.setattr("megascope.viz3d.knots.ENOUGH_ASKED", 2)
    found = compare_looks(*scene.looks(), past)
    assert roots(found) == [((3,), CulpritKind.MISSING_CALL)]
    assert not found.roots[0].is_suspicion


def test_a_replica_that_is_past_what_the_others_wait_in_counts_another_step() -> None:
    """All ranks of replica 1 are in a checkpoint's barrier; the others wait for them in the last reduction."""
    scene = Scene(SQUARE)
    for rank in range(4):
        if scene.mesh.coordinates(rank)["dp"] == 1:
            scene.work(rank, "checkpoint", kind="checkpoint")
            scene.progress(rank, scene.of("dp", rank), 10, 10)
            scene.collective(rank, "world", 6, "barrier")
        else:
            scene.progress(rank, scene.group("world", range(4)), 5, 5)
            scene.collective(rank, "dp", 11)
    diagnosis = compare_looks(*scene.looks(), Past(scene, {"dp": 11, "world": 5}))
    assert roots(diagnosis) == [((2, 3), CulpritKind.ITERATION_DESYNC)]


def test_a_host_of_which_nothing_is_heard_is_one_root_with_all_its_ranks() -> None:
    """Two of its ranks are waited for; that nobody is seen to wait for the others is no sign that they live."""
    scene = Scene(Topology.of(dp=8, tp=2))
    for rank in range(16):
        if rank < 8:
            scene.lose(rank)
        elif rank < 10:
            scene.message(rank, "recv", rank - 8, 5)
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.HANG
    assert roots(diagnosis) == [(tuple(range(8)), CulpritKind.DEAD)]


def test_who_waits_for_each_other_beside_a_rank_without_data_is_stuck_whatever_that_does() -> None:
    """Replica 1 is a step ahead; of its rank 7 nothing was heard, so that what rank 3 waits for is not known."""
    scene = Scene(Topology.of(dp=2, tp=4))
    for rank in range(8):
        if rank == 7:
            scene.lose(rank)
        elif rank > 3:
            scene.work(rank, "checkpoint", kind="checkpoint")
            scene.progress(rank, scene.of("dp", rank), 10, 10)
            scene.collective(rank, "world", 6, "barrier")
        else:
            scene.progress(rank, scene.group("world", range(8)), 5, 5)
            scene.collective(rank, "dp", 11)
    earlier, later = (replace(look, never_heard=frozenset({7})) for look in scene.looks())
    diagnosis = compare_looks(earlier, later, Past(scene, {"dp": 11, "world": 5}))
    assert roots(diagnosis) == [((4, 5, 6), CulpritKind.ITERATION_DESYNC)]


def test_a_rank_whose_progress_is_lost_has_joined_what_others_completed() -> None:
    """Rank 2 is in the norm behind the reduction that everybody but rank 0 has completed, its record of it is lost."""
    scene = Scene(Topology.of(dp=4))
    for rank in range(4):
        if rank == 0:
            in_flight(scene, rank, "dp_reduce_scatter", "dp", 11, 50)
        elif rank != 2:
            scene.progress(rank, scene.of("dp", rank), 11, 11)
        in_flight(scene, rank, "norm", "world", 6, 49, waiting=True)
    diagnosis = compare_looks(*scene.looks(), Past(scene, order=("dp_reduce_scatter", "norm")))
    assert roots(diagnosis) == [((0,), CulpritKind.DEVICE_STUCK)]


def test_a_device_that_lags_at_one_look_alone_is_not_stuck() -> None:
    """Another host was asked a moment later, when the collective had just been done."""
    scene = Scene(Topology.of(dp=4))
    for rank in range(4):
        scene.collective(rank, "dp", 7, "dp_all_reduce")
    earlier = scene.snapshot(8)
    for rank in range(1, 4):
        scene.progress(rank, scene.of("dp", rank), 7, 7)
        scene.states[rank] = replace(scene.states[rank], flights=(), spans=1001)
    diagnosis = compare_looks(earlier, scene.snapshot())
    assert diagnosis.state != State.HANG


def test_a_lost_record_before_a_message_is_put_back() -> None:
    """The rank has issued collective 7 and not completed it; what it received afterwards is not what holds it up."""
    scene = Scene(Topology.of(pp=2, dp=2))
    group = scene.of("dp", 0)
    in_flight(scene, 1, "dp_all_gather", "dp", 7, 50)
    scene.progress(0, group, 7, 6)
    edge = scene.group("pp_forward", (0, 2))
    for number in (5, 6):
        begun = MOMENT_NS - (40 - number) * SECOND
        flight = Flight("recv_forward", "p2p", edge, number, 2, number, begun, waiting=False)
        scene.states[0] = replace(scene.states[0], flights=(*scene.states[0].flights, flight))
    in_flight(scene, 0, "dp_reduce", "dp", 8, 30)
    look: Snapshot = scene.snapshot()
    held = Streams.of(look, Past(scene, {"dp": 7})).holding[0]
    assert (held[0].segment, held[0].group, held[0].sequence) == (LOST, group, 7)


def test_hosts_that_communicate_themselves_do_not_run_ahead() -> None:
    """With gloo a receive posted ahead and a reduction under way hold nobody up: rank 0 is stuck in its own work."""

    class OnHost(Past):
        def runs_ahead(self) -> bool | None:
            return False

    scene = Scene(Topology.of(pp=2, dp=2))
    scene.work(0, "forward")
    edge = scene.group("pp_backward", (0, 2))
    posted = Flight("recv_backward", "p2p", edge, 5, 2, begun_ns=MOMENT_NS - 70 * SECOND, waiting=False)
    scene.states[0] = replace(scene.states[0], flights=(*scene.states[0].flights, posted))
    in_flight(scene, 0, "dp_reduce", "dp", 8, 65)
    scene.message(2, "recv", 0, 6)
    in_flight(scene, 1, "dp_reduce", "dp", 8, 65, waiting=True)
    diagnosis = compare_looks(*scene.looks(), OnHost(scene))
    assert [root.ranks for root in diagnosis.roots] == [(0,)]
    assert diagnosis.roots[0].kind == CulpritKind.HOST_STUCK


def test_operations_whose_parts_may_differ_are_no_mismatch() -> None:
    """Three ranks are in an all-to-all, each with its own number of bytes; the fourth is stuck in its own work."""
    scene = Scene(Topology.of(dp=4))
    scene.work(3, "data", kind="data")
    scene.progress(3, scene.of("dp", 3), 6, 6)
    for rank in range(3):
        scene.collective(rank, "dp", 7, "ep_all_to_all")
        state = scene.states[rank]
        scene.states[rank] = replace(state, flights=tuple(replace(one, size_bytes=8 + rank) for one in state.flights))
    assert roots(compare_looks(*scene.looks())) == [((3,), CulpritKind.HOST_STUCK)]


def test_a_phase_is_not_stuck_before_anybody_has_waited_for_long() -> None:
    """Seven ranks have compiled for a minute, the eighth has been done for a second."""
    scene = Scene(Topology.of(dp=8))
    for rank in range(7):
        scene.work(rank, "compile_model", since_s=60, kind="compile")
    scene.collective(7, "dp", 1, since_s=1)
    assert compare_looks(*scene.looks()).state != State.HANG
