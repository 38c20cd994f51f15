"""The 3D page's model: states of all ranks, details of those that matter, small for 12,288 ranks; and its own page."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Store
from megascope.dashboards.scene import history as scene_history
from megascope.dashboards.scene.data import incidents_of, moments_before, stacks_of
from megascope.dashboards.scene.history import Past
from megascope.dashboards.scene.model import LETTERS, Drawn, draw, model_of
from megascope.dashboards.scene.page import page_html
from megascope.dashboards.scene.verdict import CAUSES
from megascope.dashboards.workbench import Workbench
from megascope.profiler.topology import Topology
from megascope.viz3d.doing import Doing
from megascope.viz3d.graph import WaitGraph, build_graph
from megascope.viz3d.hang import Judged, diagnose_with_graph
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import CulpritKind, GroupName, HangCulprit, HangVerdict, State
from support.synthetic_store import SyntheticJob, write_synthetic_store

FLEET = Topology.of(pp=8, dp=192, tp=8)
ROOT = 5003


def culprit(ranks: tuple[int, ...], kind: CulpritKind = CulpritKind.HOST_STUCK) -> HangCulprit:
    return HangCulprit(ranks, (), 0.9, "high", kind, "data", None, 7, ())


def verdict(*culprits: HangCulprit) -> HangVerdict:
    return HangVerdict("run", 0, None, State.HANG, culprits=culprits)


def fleet() -> Judged:
    """12,288 ranks of which one is in data, and everyone else in a TP collective that lacks somebody or nobody."""
    groups = {1000 + number: GroupName("tp", group) for number, group in enumerate(FLEET.groups("tp"))}
    groups |= {9000 + number: GroupName("dp", group) for number, group in enumerate(FLEET.groups("dp"))}
    number_of = {rank: number for number, group in groups.items() if group.kind == "tp" for rank in group.ranks}
    states = {}
    for rank in range(FLEET.world_size):
        flight = Flight("tp_all_gather", "collective", number_of[rank], 7, begun_ns=10**9)
        own = Flight("data", "data", begun_ns=10**9) if rank == ROOT else flight
        states[rank] = RankState(rank, 60 * 10**9, 12, (own,), {number_of[rank]: (6 if rank == ROOT else 7, 6)})
    hosts = {rank: f"node{rank // 8:04}" for rank in states}
    places = {rank: dict(FLEET.coordinates(rank)) for rank in states}
    snapshot = Snapshot(60 * 10**9, states, groups, hosts, places, FLEET.names)
    return Judged(verdict(culprit((ROOT,))), snapshot, build_graph(snapshot))


def encoded(model: dict[str, Any]) -> bytes:
    return json.dumps(model, allow_nan=False, separators=(",", ":")).encode()


def test_a_fleet_is_small_on_the_wire() -> None:
    model = model_of(draw(fleet(), everyone=False))
    assert model["ranks"] == 12288
    assert model["coordinates"] is None, "ranks that count through the axes need no list"
    assert len(model["doing"]) == 12288
    assert model["doing"][ROOT] == "c"
    assert model["doing"].count("O") == 7
    assert ROOT in model["shown"]
    assert len(gzip.compress(encoded(model), 1)) < 30_000
    assert len(page_html(fleet(), title="fleet").encode()) < 300_000


def test_a_chosen_rank_is_told_with_its_neighbours() -> None:
    model = model_of(draw(fleet(), everyone=False, beside=(9000,)))
    assert {9000, 9001, 9007, *range(5000, 5008)} <= set(model["shown"])
    told = {flight[0] for flight in model["flights"]}
    assert told == set(model["shown"])


def test_a_chosen_rank_is_told_with_its_way_to_the_root() -> None:
    """Two hops away: it waits for one that waits for the root, and neither is a neighbour of the root."""
    groups = {1: GroupName("tp", (0, 1)), 2: GroupName("dp", (1, 500)), 3: GroupName("pp", (500, 900))}
    flights = {
        1: Flight("a", "collective", 1, 1, begun_ns=1),
        500: Flight("b", "collective", 2, 1, begun_ns=1),
        900: Flight("c", "collective", 3, 1, begun_ns=1),
    }
    states = {rank: RankState(rank, 9, flights=(one,)) for rank, one in flights.items()}
    states |= {rank: RankState(rank, 9) for rank in range(1000) if rank not in states}
    look = Snapshot(9, states, groups, {}, {rank: {} for rank in states}, ("none",))
    judged = Judged(verdict(culprit((0,))), look, build_graph(look))
    drawn = draw(judged, everyone=False)
    assert drawn.shown is not None
    assert drawn.toward[900] == 500
    assert drawn.toward[500] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("megascope.dashboards.scene.model.focus_on", lambda *_: (0,))
        assert draw(judged, everyone=False, beside=(900,)).shown == (0, 1, 500, 900)


def test_the_past_of_a_file_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_synthetic_store(tmp_path / "store", SyntheticJob(steps=3, stuck=5))
    with Store(tmp_path / "store") as store:
        attempt = store.attempt()
        judged = diagnose_with_graph(store, attempt)
        assert judged.snapshot is not None
        moments = [judged.snapshot.moment_ns - back * 10**9 for back in range(40, -1, -1)]
        monkeypatch.setattr(scene_history, "heartbeat_moments", lambda *_: moments)
        past, drawn = Past(store, attempt), draw(judged, everyone=True)
        told = past.told(drawn)
        assert (len(told["looks"]), told["earlier"], told["moments"]) == (40, 0, [str(one) for one in moments])
        monkeypatch.setattr(scene_history, "RANKS_IN_LOOKS", 8 * 7)
        told = past.told(drawn)
        assert (len(told["looks"]), told["earlier"], told["moments"]) == (7, 33, [str(one) for one in moments[-8:]])
        monkeypatch.setattr(scene_history, "LOOKS_BYTES", 3 * len(json.dumps(told["looks"][str(moments[-2])])))
        told = past.told(drawn)
        assert 2 <= len(told["looks"]) <= 4
        assert told["earlier"] == 40 - len(told["looks"])
        monkeypatch.setattr(scene_history, "LOOKS_BYTES", 0)
        assert past.told(drawn)["moments"] == [str(moments[-1])]


def test_of_many_stacks_those_of_the_accused_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene_history, "STACKS_BYTES", 10)
    stacks = {"1": "12345", "2": "12345", "7": "1234567"}
    assert scene_history._bounded(stacks, (7,)) == {"7": "1234567"}
    assert scene_history._bounded(stacks, ()) == {"1": "12345", "2": "12345"}


def test_operations_name_who_is_absent_and_who_waits() -> None:
    model = model_of(draw(fleet(), everyone=False))
    (operation,) = model["operations"]
    _, sequence, name, absent, lacks, waiting, many = operation
    assert (sequence, model["names"][name], absent, lacks, many) == (7, "tp_all_gather", [ROOT], 1, 7)
    assert waiting == [5000, 1, 1, 2, 1, 1, 1], "the first rank, and the steps to the next"
    toward = dict(zip(model["shown"], model["toward"], strict=True))
    assert {rank for rank, other in toward.items() if other == ROOT} == set(range(5000, 5008)) - {ROOT}


def test_ranks_out_of_order_or_without_a_place_have_their_coordinates_listed() -> None:
    states = {rank: RankState(rank, 0) for rank in (0, 2, 3)}
    places: dict[int, dict[str, int | None]] = {0: {"dp": 1}, 2: {"dp": 0}, 3: {"dp": None}}
    look = Snapshot(0, states, {}, {0: "a", 2: "a", 3: "b"}, places, ("dp",), missing=(7,))
    model = model_of(Drawn(look, WaitGraph(), None, (), {}, None))
    assert model["ranks"] == [0, 2, 3, 7]
    assert model["coordinates"] == [[1, 0, None, None]]
    assert model["hosts"] == [["a", 2], ["b", 1], [None, 1]]
    assert model["doing"] == "iiim"
    assert model["verdict"] is None


def test_a_group_number_survives_javascript() -> None:
    look = Snapshot(0, {}, {-(2**62) - 1: GroupName("dp", (0, 1))}, {}, {0: {}, 1: {}}, ("dp",))
    groups = model_of(Drawn(look, WaitGraph(), None, (), {}, None))["groups"]
    assert groups == {f"{2**64 - 2**62 - 1:x}": ["dp", [0, 1], 2]}


def test_roots_in_a_circle_point_at_each_other() -> None:
    states = {
        rank: RankState(rank, 9, flights=(Flight("send", "p2p", 5, 1, 1 - rank, begun_ns=1),), progress={5: (1, 0)})
        for rank in range(2)
    }
    look = Snapshot(9, states, {5: GroupName("pp", (0, 1))}, {}, {0: {}, 1: {}}, ("pp",))
    judged = Judged(verdict(culprit((0, 1), CulpritKind.P2P_CYCLE)), look, build_graph(look))
    model = model_of(draw(judged, everyone=True))
    assert model["toward"] == [1, 0]


def test_every_kind_and_state_has_its_word_and_letter() -> None:
    assert set(CAUSES) == set(CulpritKind)
    assert set(LETTERS) == set(Doing)
    assert len(set(LETTERS.values())) == len(LETTERS)


def test_the_page_needs_nothing_from_outside_and_hostile_names_stay_text() -> None:
    name = "</script><script>alert(1)</script>"
    states = {0: RankState(0, 9, flights=(Flight(name, "compute", begun_ns=1),))}
    look = Snapshot(9, states, {}, {0: name}, {0: {}})
    page = page_html(Judged(verdict(culprit((0,))), look, build_graph(look)), title=name)
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:|//)""", page)
    text = page.split('<script type="application/json" id="model">', 1)[1].split("</script>", 1)[0]
    assert json.loads(text)["names"][0] == name


def test_a_verdict_without_a_look_is_told_in_words() -> None:
    page = page_html(Judged(HangVerdict("run", 0, None, State.FINISHED)), title="run")
    assert "The job has ended." in page
    assert "{}" in page.split('id="model">', 1)[1].split("</script>", 1)[0]


def test_moments_lie_between_heartbeats_and_stacks_come_from_incidents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_synthetic_store(tmp_path / "store", SyntheticJob(steps=3, stuck=5))
    with Store(tmp_path / "store") as store:
        bench, attempt = Workbench(store), store.attempt()
        beats = sorted(set(store.query("SELECT moment_ns FROM heartbeats", attempt=attempt)["moment_ns"].to_pylist()))
        assert len(beats) == 2
        assert moments_before(bench, attempt, beats[1]) == [(beats[0] + beats[1]) // 2, beats[1]]
        assert moments_before(bench, attempt, beats[0] - 1) == []
        assert incidents_of(bench, attempt) == []
        actions = [{"action": "stack", "rank": 5, "stack": "old"}, {"action": "stack", "rank": 5, "stack": "new"}]
        rows = [{"opened_ns": 1, "actions": json.dumps(actions)}, {"opened_ns": 2, "actions": None}]
        monkeypatch.setattr("megascope.dashboards.scene.data.incidents_of", lambda *_: rows)
        assert stacks_of(bench, attempt) == {"5": "new"}
        judged = diagnose_with_graph(store, attempt)
        assert judged.verdict.culprits[0].ranks == (5,)
        bench.close()
