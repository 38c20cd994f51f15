"""What the widgets get: the right spans, cells, arrows and curves, with NaN and null for what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Attempt, Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.binary import unpack
from megascope.dashboards.curves import curve_panels, headline
from megascope.dashboards.heat.data import choose, matrix_of, worst_cells, worst_ranks
from megascope.dashboards.heat.payload import heat_payload
from megascope.dashboards.scene.data import edge_colours, scene_payload
from megascope.dashboards.spans.choice import choose_spans
from megascope.dashboards.spans.data import spans_payload
from megascope.dashboards.verdicts import hang_of, marks_of, peer_axis, stragglers_of
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.topology import Topology
from support.hang_scenes import Scene as HangScene
from support.hang_store import write_scene
from support.synthetic_store import Slow, SyntheticJob, write_synthetic_store


def test_the_timeline_opens_on_the_newest_whole_step_and_the_peers(bench: Workbench, attempt: Attempt) -> None:
    choice = choose_spans(View(), bench, attempt)
    assert (choice.rank, choice.axis, choice.ranks, choice.steps) == (0, "dp", (0, 2), (29, 29))
    assert stragglers_of(bench, attempt, wait_s=20).value is not None
    choice = choose_spans(View(), bench, attempt)
    assert (choice.rank, choice.ranks) == (5, (5, 7)), "who is accused comes first"


def test_named_ranks_come_in_their_order(bench: Workbench, attempt: Attempt) -> None:
    meta, arrays = unpack(spans_payload(bench, attempt, View(ranks=(6, 1), steps=(2, 2))))
    assert [rank for rank, _ in meta["lanes"]] == [6] * 4 + [1] * 4
    assert meta["rank"] == 6
    assert np.all(np.diff(arrays["lane"]) >= 0)


def test_spans_are_sorted_within_their_lane_and_missing_is_nan(bench: Workbench, attempt: Attempt) -> None:
    meta, arrays = unpack(spans_payload(bench, attempt, View(rank=5, axis="rank", steps=(2, 3))))
    for lane in range(len(meta["lanes"])):
        assert np.all(np.diff(arrays["start"][arrays["lane"] == lane]) >= 0)
    names = np.array([segment["name"] for segment in meta["segments"]])[arrays["segment"]]
    assert np.isnan(arrays["microbatch"][names == "optimizer"]).all()
    assert np.isnan(arrays["peer"][names == "forward"]).all()
    assert not np.isnan(arrays["peer"][names == "recv_forward"]).any()
    assert arrays["start"].min() == 0


def test_a_view_with_too_many_spans_is_refused(
    bench: Workbench, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.dashboards.spans.table.MAX_SPANS", 50)
    with pytest.raises(UsageError, match="more than 50 spans"):
        spans_payload(bench, attempt, View(rank=5, steps=(0, 9)))


def test_communication_from_the_host_gets_its_own_lane(tmp_path: Path) -> None:
    rows = {
        "rank": [0, 0],
        "step": [0, 0],
        "segment": [1, 2],
        "start_ns": [0, 5],
        "duration_ns": [10, 10],
        "clock": ["host"] * 2,
        "status": ["ok"] * 2,
    }
    with TableWriter(tmp_path, "test") as writer:
        writer.write("events", "run", 0, rows)
        writer.write("segments", "run", 0, {"segment": [1, 2], "name": ["f", "c"], "kind": ["compute", "collective"]})
        writer.write("ranks", "run", 0, {"rank": [0], "host": ["a"]})
        writer.commit()
    with Store(tmp_path) as store:
        bench = Workbench(store)
        meta, _ = unpack(spans_payload(bench, store.attempt(), View()))
        assert [label for _, label in meta["lanes"]] == ["host", "comm"]
        bench.close()


def test_a_store_without_steps_or_layout_still_opens(tmp_path: Path) -> None:
    with TableWriter(tmp_path, "test") as writer:
        writer.write("ranks", "run", 0, {"rank": [0], "host": ["a"]})
        writer.commit()
    with Store(tmp_path) as store:
        bench = Workbench(store)
        attempt = store.attempt()
        with pytest.raises(MegascopeError, match="no steps yet"):
            choose_spans(View(), bench, attempt)
        with pytest.raises(MegascopeError, match="no spans yet"):
            choose(View(), bench, attempt)
        with pytest.raises(MegascopeError, match="no heartbeats"):
            scene_payload(bench, attempt, View())
        assert headline(store, attempt).loss is None
        assert curve_panels(store, attempt)["panels"] == []
        bench.close()


def test_the_worst_rank_and_the_worst_cells_are_the_slow_ones(bench: Workbench, attempt: Attempt) -> None:
    matrix = matrix_of(bench, attempt, choose(View(segment="forward"), bench, attempt))
    worst = worst_ranks(matrix)[0]
    assert worst["rank"] == 5
    assert worst["ratio"] == pytest.approx((8 * 1.0 + 22 * 1.5) / 30, rel=0.05)
    assert worst["slow"] == pytest.approx(22 / 30, abs=0.05)
    assert {cell["rank"] for cell in worst_cells(matrix)} == {5}


def test_exposed_time_of_compute_is_said_to_be_recorded_for_communication_only(bench: Workbench) -> None:
    with pytest.raises(MegascopeError, match="is recorded for communication only"):
        heat_payload(bench, bench.attempt(View()), View(segment="forward", metric="exposed"))


@pytest.mark.parametrize(
    ("order", "first", "sections"), [("rank", [0, 1, 2], 0), ("dp", [0, 1, 4], 2), ("tp", [0, 2], 2)]
)
def test_rows_can_be_ordered_by_an_axis(
    bench: Workbench, attempt: Attempt, order: str, first: list[int], sections: int
) -> None:
    meta, arrays = unpack(heat_payload(bench, attempt, View(segment="forward", order=order)))
    assert meta["ranks"][: len(first)] == first
    assert len(meta["sections"]) == sections
    row = meta["ranks"].index(5)
    ratio = arrays["ratio"].reshape(len(meta["ranks"]), -1)
    assert np.nanmedian(ratio[row, 10:]) > 1.4


def test_missing_cells_are_nan_and_a_wrong_choice_is_refused(bench: Workbench, attempt: Attempt) -> None:
    meta, arrays = unpack(heat_payload(bench, attempt, View(segment="forward")))
    value = arrays["value"].reshape(len(meta["ranks"]), -1)
    assert np.isnan(value[3, 4])
    assert np.isnan(value[2, 10])
    assert np.isnan(value).sum() == 2
    with pytest.raises(UsageError, match="ordered by 'zz'"):
        heat_payload(bench, attempt, View(order="zz"))
    with pytest.raises(UsageError, match="None of the ranks 99"):
        heat_payload(bench, attempt, View(ranks=(99,)))


def test_communication_opens_with_its_plain_value(bench: Workbench, attempt: Attempt) -> None:
    choice = choose(View(segment="tp_all_gather"), bench, attempt)
    assert (choice.metric, choice.show) == ("duration", "value")


def test_the_picture_is_drawn_from_what_the_verdict_was_read_from(tmp_path: Path) -> None:
    """Rank 2 called another operation: only the verdict's graph knows that the others wait for it."""
    job = HangScene(Topology.of(dp=4))
    for rank in range(4):
        job.collective(rank, "dp", 7, "broadcast" if rank == 2 else "dp_all_reduce")
    with write_scene(tmp_path / "store", job.looks()) as store:
        bench = Workbench(store)
        attempt = store.attempt()
        assert hang_of(bench, attempt, wait_s=20).value is not None
        drawn = json.loads(scene_payload(bench, attempt, View()))
        assert drawn["doing"] == "OOoO", "those that wait for others have a capital"
        assert [culprit["ranks"] for culprit in drawn["verdict"]["culprits"]] == [[2]]
        assert drawn["toward"] == [2, 2, None, 2]
        bench.close()


def test_groups_are_coloured_by_the_place_of_their_axis() -> None:
    usual, other = edge_colours(("pp", "dp", "tp")), edge_colours(("stage", "fsdp", "sp"))
    assert list(usual.values()) == list(other.values())
    assert len(set(usual.values())) == 3


def test_curves_leave_gaps_as_null_and_name_what_was_not_recorded(bench: Workbench, attempt: Attempt) -> None:
    found = curve_panels(bench.store, attempt)
    assert found["x"] == list(range(30))
    loss = found["panels"][0]
    assert [one["name"] for one in loss["series"]] == ["training"]
    assert loss["series"][0]["y"][0] == pytest.approx(5.0)
    assert found["missing"] == []
    assert found["faults"] == [[8, None]]
    json.dumps(found, allow_nan=False)


def test_long_runs_are_thinned_evenly(bench: Workbench, attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megascope.dashboards.curves.MAX_POINTS", 10)
    assert curve_panels(bench.store, attempt)["x"] == list(range(0, 30, 3))


def test_culprits_are_marked_at_their_segment_only(bench: Workbench, attempt: Attempt) -> None:
    verdict = stragglers_of(bench, attempt, wait_s=20).value
    assert verdict is not None
    assert json.loads(marks_of(verdict, "forward", attempt)) == [{"ranks": [5], "steps": [8, 29]}]
    assert marks_of(verdict, "backward", attempt) == "[]"
    assert marks_of(None, "forward", attempt) == "[]"


def test_peers_stand_along_the_outermost_axis_but_the_stages() -> None:
    assert peer_axis(Attempt("r", 0, {"pp": 2, "dp": 4, "tp": 2})) == "dp"
    assert peer_axis(Attempt("r", 0, {"dp": 1, "tp": 2})) == "tp"
    assert peer_axis(Attempt("r", 0, {"pp": 2, "fsdp": 4})) == "fsdp"
    assert peer_axis(Attempt("r", 0, {"pp": 4})) is None


def test_other_axes_work_like_the_usual_ones(tmp_path: Path) -> None:
    job = SyntheticJob(layout={"pp": 2, "cp": 3, "dp": 1, "tp": 2}, steps=12, slow=Slow(3), ranks_per_host=4)
    write_synthetic_store(tmp_path / "store", job)
    with Store(tmp_path / "store") as store:
        bench = Workbench(store)
        attempt = store.attempt()
        assert choose_spans(View(rank=3, axis="cp"), bench, attempt).ranks == (1, 3, 5)
        meta, _ = unpack(heat_payload(bench, attempt, View(segment="forward", order="cp")))
        assert [label for label, _, _ in meta["sections"]] == ["cp 0", "cp 1", "cp 2"]
        scene = json.loads(scene_payload(bench, attempt, View(axis="cp", along="cp:tp")))
        assert scene["axes"] == ["pp", "cp", "dp", "tp"]
        with pytest.raises(UsageError, match="no axis 'zz'"):
            scene_payload(bench, attempt, View(along="zz"))
        with pytest.raises(UsageError, match="no groups of kind 'zz'"):
            scene_payload(bench, attempt, View(axis="zz"))
        bench.close()
