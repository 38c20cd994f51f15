"""Importing traces of the what-if analysis: times, groups, peers, schedule, layout and what cannot be imported."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megascope.collectors.importers.bytedance.places import layout_file_of
from megascope.collectors.importers.bytedance.rows import COLUMNS, read_operations
from megascope.collectors.importers.columns import dense_sequence
from megascope.collectors.importers.layout_file import read_meta
from megascope.collectors.reading.store import Store
from megascope.heatmap.stragglers import find_stragglers
from megascope.profiler.errors import FormatError, UsageError
from megascope.profiler.topology import group_id
from support.imports import imported, rows, taken

Row = tuple[int, int, int, int, str, float, float, int, int, int, int]


def step_of(number: int, slow: float = 1.0) -> list[Row]:
    """One step of two stages, two replicas and two micro-batches; rank 0 is slow. -1 does not apply."""
    found: list[Row] = []
    for stage in (0, 1):
        for dp in (0, 1):
            rank = stage * 2 + dp
            own = 0.2 * (slow if rank == 0 else 1.0)

            def add(
                kind: str, start: float, length: float, sequence: int, mc: int = -1, mb: int = -1, gmc: int = -1,
                *, place: tuple[int, int, int] = (dp, stage, rank),
            ) -> None:  # fmt: skip
                found.append((*place, number, kind, start, length, sequence, mc, mb, gmc))

            add("params-all-gather", 0.0, 0.1, 0, 0)
            for mb in (0, 1):
                at = 0.1 + mb * 2.0 + stage * 0.6
                if stage:
                    add("forward-recv", at - 0.3, 0.3, mb)
                add("forward-compute", at, own, mb, 0, mb, stage)
                if not stage:
                    add("forward-send", at + own, 0.1, mb)
                    add("backward-recv", at + own, 0.1, mb)
                add("backward-compute", at + own + 0.1, 2 * own, mb, 0, mb, stage)
                if stage:
                    add("backward-send", at + 3 * own + 0.1, 0.1, mb)
            add("gc", 4.5, 0.0, 0, -1, 0)
            add("grads-reduce-scatter", 4.6, 0.2, 0, 0)
            add("optimizer-clip-main-grad", 4.8, 0.05, 0)
            add("optimizer", 4.9, 0.1, 0)
    return found


def write_rows(path: Path, found: list[Row]) -> Path:
    columns = dict(zip((*COLUMNS, "gmc"), zip(*found, strict=True), strict=True))
    small = {"dp_rank": pa.int8(), "stage": pa.int8(), "rank": pa.int16(), "step": pa.int64()}
    floats = {"start_ts": pa.float32(), "duration": pa.float32()}
    table = pa.table({name: pa.array(list(values), {**small, **floats}.get(name)) for name, values in columns.items()})
    pq.write_table(table, path)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "trace-XY.parquet", [row for number in (7, 9) for row in step_of(number)])


def test_every_step_has_its_own_place(tmp_path: Path, trace: Path) -> None:
    store = taken(trace)
    spans = rows(
        store, "SELECT step, min(start_ns) AS first, max(start_ns + duration_ns) AS last FROM events GROUP BY 1"
    )
    first, second = sorted(spans, key=lambda row: row["step"])
    assert (first["step"], second["step"]) == (7, 9)
    assert first["first"] == 0
    assert second["first"] == first["last"] == pytest.approx(5.0e9, abs=1000)
    steps = rows(store, "SELECT rank, step, start_ns, duration_ns FROM steps ORDER BY step, rank")
    assert len(steps) == 2 * 4
    assert {row["duration_ns"] for row in steps} == {first["last"]}


def test_missing_is_null_and_a_moment_has_no_length(tmp_path: Path, trace: Path) -> None:
    store = taken(trace)
    (moment,) = rows(store, "SELECT DISTINCT duration_ns, self_ns, status FROM spans WHERE segment_name = 'gc'")
    assert moment == {"duration_ns": None, "self_ns": None, "status": "unmeasured"}
    negative = rows(
        store, "SELECT count(*) AS n FROM events WHERE microbatch < 0 OR chunk < 0 OR peer < 0 OR sequence < 1"
    )
    assert negative == [{"n": 0}]
    compute = rows(store, "SELECT DISTINCT microbatch, chunk FROM spans WHERE segment_name = 'forward' ORDER BY 1")
    assert compute == [{"microbatch": 0, "chunk": 0}, {"microbatch": 1, "chunk": 0}]


def test_both_ends_of_a_transfer_agree(tmp_path: Path, trace: Path) -> None:
    store = taken(trace)
    pairs = rows(
        store,
        """SELECT s.rank AS sender, r.rank AS receiver, s.peer AS to_rank, r.peer AS from_rank, s.segment_name AS name,
               s.microbatch AS sent, r.microbatch AS received, s.step AS step, r.step AS other
           FROM spans s JOIN spans r ON s."group" = r."group" AND s.sequence = r.sequence
           WHERE s.segment_name LIKE 'send_%' AND r.segment_name LIKE 'recv_%'""",
    )
    assert len(pairs) == 2 * 2 * 2 * 2  # steps, micro-batches, replicas, directions
    for pair in pairs:
        assert (pair["to_rank"], pair["from_rank"]) == (pair["receiver"], pair["sender"])
        assert pair["receiver"] - pair["sender"] == (2 if pair["name"] == "send_forward" else -2)
        assert (pair["sent"], pair["step"]) == (pair["received"], pair["other"])
    (first,) = rows(store, "SELECT \"group\" AS g FROM spans WHERE segment_name = 'send_forward' AND rank = 0 LIMIT 1")
    assert first["g"] == group_id("pp_forward", (0, 2))


def test_a_batch_of_two_transfers_waits_once(tmp_path: Path, trace: Path) -> None:
    store = taken(trace)
    exposed = rows(
        store,
        """SELECT segment_name AS name, count(exposed_ns) AS known, count(*) AS n, max(exposed_ns) AS longest
           FROM spans WHERE rank = 0 AND kind = 'p2p' GROUP BY 1 ORDER BY 1""",
    )
    assert [(row["name"], row["known"], row["n"]) for row in exposed] == [
        ("recv_backward", 4, 4),
        ("send_forward", 0, 4),
    ]
    assert exposed[0]["longest"] == pytest.approx(1e8, abs=2000)


def test_communication_behind_compute_is_not_exposed(tmp_path: Path) -> None:
    found = [
        (0, 0, 0, 1, "forward-compute", 1.0, 1.0, 0, 0, 0, 0),
        (0, 0, 0, 1, "grads-reduce-scatter", 1.5, 1.0, 0, 0, -1, -1),
    ]
    store = taken(write_rows(tmp_path / "t.parquet", found))
    (row,) = rows(store, "SELECT exposed_ns FROM spans WHERE kind = 'collective'")
    assert row["exposed_ns"] == 500_000_000


def test_transfers_that_nobody_needs_are_left_out(tmp_path: Path) -> None:
    found = [
        *step_of(1),
        (0, 0, 0, 1, "forward-recv", 0.0, 0.001, 0, -1, -1, -1),
        (0, 1, 2, 1, "forward-send", 1.0, 0.001, 1, -1, -1, -1),
    ]
    store = taken(write_rows(tmp_path / "t.parquet", found))
    assert any("2 transfers" in note for note in store.done.notes)
    assert rows(store, "SELECT count(*) AS n FROM spans WHERE segment_name = 'recv_forward' AND rank = 0") == [{"n": 0}]


def test_times_that_cannot_be_are_rejected_and_counted(tmp_path: Path) -> None:
    found = step_of(1)
    bad = [
        (0, 0, 0, 1, "forward-compute", start, length, 5, 0, 5, 0)
        for start, length in ((1.0, -1.0), (1.0, 1e12), (float("nan"), 1.0))
    ]
    report, store = imported(tmp_path, write_rows(tmp_path / "t.parquet", found + bad))
    assert report.rejected == 3
    rejected = rows(store, "SELECT duration_ns FROM events WHERE status = 'rejected'")
    assert rejected == [{"duration_ns": None}] * 3
    (longest,) = rows(store, "SELECT max(duration_ns) AS ns FROM steps")
    assert longest["ns"] < 6e9
    counted = rows(store, "SELECT sum(duration_count) AS n FROM rank_windows WHERE window_steps = 1000")
    assert counted == rows(store, "SELECT count(*) AS n FROM events WHERE status = 'ok'")


def test_the_schedule_can_be_run_as_it_is(tmp_path: Path, trace: Path) -> None:
    store = taken(trace)
    actions = rows(store, "SELECT stage, position, action, microbatch, depends_on FROM schedule ORDER BY 1, 2")
    assert [row["action"] for row in actions if row["stage"] == 0][:3] == ["all_gather", "forward", "send_forward"]
    assert sum(row["action"] == "optimizer_step" for row in actions) == 2
    assert run_all(actions) == len(actions)


def run_all(actions: list[dict[str, object]]) -> int:
    """How many actions can run, each stage in its order and behind what it depends on."""
    lists: dict[int, list[dict[str, object]]] = {}
    for row in actions:
        lists.setdefault(int(str(row["stage"])), []).append(row)
    at = dict.fromkeys(lists, 0)
    moved = True
    while moved:
        moved = False
        for stage, own in lists.items():
            while at[stage] < len(own):
                needed = own[at[stage]]["depends_on"]
                assert isinstance(needed, list)
                if any(at[one["stage"]] <= one["position"] for one in needed):
                    break
                at[stage] += 1
                moved = True
    return sum(at.values())


def test_interleaved_stages_meet_at_the_right_chunk(tmp_path: Path) -> None:
    """Two stages of two chunks: stage 1 of chunk 0 sends to stage 0 of chunk 1."""
    found: list[Row] = []
    for stage in (0, 1):
        for number, (mc, mb) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            gmc = mc * 2 + stage
            at = 1.0 + gmc * 1.0 + mb * 0.4
            found.append((0, stage, stage, 3, "forward-compute", at, 0.2, number, mc, mb, gmc))
            found.append((0, stage, stage, 3, "forward-recv", at - 0.1, 0.1, number, -1, -1, -1))
            found.append((0, stage, stage, 3, "forward-send", at + 0.2, 0.1, number, -1, -1, -1))
    store = taken(write_rows(tmp_path / "t.parquet", found))
    pairs = rows(
        store,
        """SELECT s.chunk AS sent, r.chunk AS received, s.rank AS sender, s.microbatch = r.microbatch AS same
           FROM spans s JOIN spans r ON s."group" = r."group" AND s.sequence = r.sequence
           WHERE s.segment_name = 'send_forward' AND r.segment_name = 'recv_forward' ORDER BY 1, 2, 3""",
    )
    assert [(p["sender"], p["sent"], p["received"]) for p in pairs] == [(0, 0, 0)] * 2 + [(1, 0, 1)] * 2 + [
        (0, 1, 1)
    ] * 2
    assert all(pair["same"] for pair in pairs)
    kinds = rows(store, "SELECT DISTINCT kind FROM groups ORDER BY 1")
    assert [row["kind"] for row in kinds] == ["pp_forward", "pp_forward_wrap"]


def test_the_layout_lies_beside_the_trace_or_is_worked_out(tmp_path: Path, trace: Path) -> None:
    assert layout_file_of(trace) is None
    _, store = imported(tmp_path, trace)
    assert store.attempt().layout == {"pp": 2, "dp": 2}
    meta = tmp_path / "meta-XY.yaml"
    meta.write_text("trial_name: XY  # of a test\ndp_size: 2\npp_size: 2\ntp_size: 1\nworld_size: 4\n")
    assert read_meta(meta)["trial_name"] == "XY"
    report, _ = imported(tmp_path, trace)
    assert report.run == "XY"
    meta.write_text("dp_size: 1\npp_size: 2\n")
    with pytest.raises(FormatError, match="fewer stages or replicas"):
        imported(tmp_path, trace, run="third")
    with Store(tmp_path / "imported") as known:
        assert [one.run for one in known.attempts()] == ["XY", "trace-XY"]


def test_what_is_no_such_trace_leaves_nothing_behind(tmp_path: Path, trace: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"rank": [1]}), other)
    with pytest.raises(FormatError, match="no column dp_rank"):
        imported(tmp_path, other)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(trace.read_bytes()[:-100])
    with pytest.raises(FormatError, match="cannot be read"):
        imported(tmp_path, cut)
    assert not (tmp_path / "imported").exists()
    imported(tmp_path, trace)
    with pytest.raises(UsageError, match="has a run 'trace-XY' already"):
        imported(tmp_path, trace)
    with pytest.raises(FormatError):
        imported(tmp_path, cut, run="cut")
    with Store(tmp_path / "imported") as store:
        assert [one.run for one in store.attempts()] == ["trace-XY"]
        assert not store.damaged
    assert not list((tmp_path / "imported").rglob("*run=cut*"))


def test_a_folder_is_taken_for_the_one_trace_in_it(tmp_path: Path, trace: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "readme.txt").write_text("no trace")
    shutil.copy(trace, folder)
    assert taken(folder).rows("SELECT count(*) AS n FROM steps") == [{"n": 8}]
    shutil.copy(trace, folder / "other.parquet")
    with pytest.raises(UsageError, match="2 files of format bytedance"):
        taken(folder)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_in_a_group_are_dense_and_in_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    group, order = random.integers(1, 5, 200), random.integers(0, 40, 200)
    found = dense_sequence(group, order)
    for one in np.unique(group):
        mine, places = found[group == one], order[group == one]
        expected = np.searchsorted(np.unique(places), places) + 1
        assert (mine == expected).all()
    assert not len(dense_sequence(group[:0], order[:0]))


def test_the_bad_worker_of_a_real_job_is_found(tmp_path: Path, traces: Path) -> None:
    """The origin's answer: rank 0 alone, median forward 0.546 s against 0.220 s of its peers."""
    report, store = imported(tmp_path, traces / "bytedance_whatif" / "trace-AR.parquet")
    assert (report.run, report.ranks, report.world_size, report.steps, report.spans) == ("AR", 16, 64, 44, 117_216)
    assert (report.rejected, store.attempt().layout) == (0, {"pp": 4, "dp": 4, "tp": 4})
    verdict = find_stragglers(store, store.attempt())
    assert {one.ranks for one in verdict.culprits if one.kind not in ("stage", "job")} == {(0,)}
    coverage = [note.reason for note in verdict.abstained if note.signal == "coverage"]
    assert len(coverage) == 1
    assert "one rank of each tp group was recorded, 16 of 64 ranks" in coverage[0]
    forward = rows(
        store, "SELECT rank, median(duration_ns) / 1e9 AS s FROM spans WHERE segment_name = 'forward' GROUP BY 1"
    )
    seconds = {row["rank"]: row["s"] for row in forward}
    assert seconds[0] == pytest.approx(0.546, abs=0.001)
    assert np.median([seconds[rank] for rank in (4, 8, 12)]) == pytest.approx(0.220, abs=0.01)
    overlaps = rows(
        store,
        """SELECT count(*) AS n FROM (
               SELECT start_ns - lag(start_ns + duration_ns) OVER (PARTITION BY rank, stream ORDER BY start_ns) AS gap
               FROM events WHERE status = 'ok') WHERE gap < 0""",
    )
    assert overlaps == [{"n": 0}]


def test_a_real_job_keeps_its_numbers(tmp_path: Path, traces: Path) -> None:
    path = tmp_path / "trace-ST.parquet"
    shutil.copy(traces / "bytedance_whatif" / "trace-ST.parquet", path)
    store = taken(path)
    assert (store.done.world_size, store.done.rejected, store.done.layout) == (8, 0, {"pp": 4, "dp": 2})
    operations = read_operations(path)
    assert rows(store, "SELECT count(*) AS n FROM events")[0]["n"] == len(operations) == 6784
    recorded = float(pq.read_table(path)["duration"].to_numpy().astype(float).sum())
    (stored,) = rows(store, "SELECT sum(duration_ns) / 1e9 AS s FROM events")
    assert stored["s"] == pytest.approx(recorded, rel=1e-6)
