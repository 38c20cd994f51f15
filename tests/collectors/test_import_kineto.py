"""Importing Kineto traces: steps, kernels and their launches, groups, ranks, and the awkward files that users have."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.importers.chrome_json import ChromeTrace
from megascope.collectors.importers.kineto import file as kineto_file
from megascope.collectors.importers.kineto.file import ranks_of, read_kineto
from megascope.collectors.importers.kineto.rank import event_rows, rank_spans
from megascope.collectors.importers.recognise import recognise
from megascope.heatmap.stragglers import find_stragglers
from megascope.profiler.errors import FormatError, UsageError
from megascope.profiler.topology import group_id
from megascope.viz3d.hang import diagnose
from support.chrome import Event, host, kernel, launch, marker, write_trace
from support.imports import imported, rows, taken

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def job(folder: Path, ranks: int = 2, steps: int = 2) -> Path:
    """Ranks with steps: a kernel, and an all-reduce to which rank 1 comes late, in each step a bit more."""
    for rank in range(ranks):
        events: list[Event] = []
        for step in range(steps):
            late = 30 + 2 * step if rank == 1 else 0
            at = 1_000_000 + 1000 * step
            events += [
                marker(40 + step, at, 900),
                host("aten::mm", at + 10, 20),
                launch(at + 12, 10 * step + 1),
                kernel("gemm", at + 50, 100 + late, correlation=10 * step + 1),
                launch(at + 40, 10 * step + 2),
                kernel(ALL_REDUCE, at + 150 + late, 250 - late, stream=20, correlation=10 * step + 2),
            ]
        write_trace(folder / f"trace-{rank}.json", events, rank=rank, world_size=ranks)
    return folder


def test_steps_kernels_and_launches(tmp_path: Path) -> None:
    report, store = imported(tmp_path, job(tmp_path / "traces"))
    assert (report.format, report.ranks, report.world_size, report.steps) == ("kineto", 2, 2, 2)
    steps = rows(store, "SELECT step, start_ns, duration_ns FROM steps WHERE rank = 0 ORDER BY 1")
    assert steps[0] == {"step": 40, "start_ns": 1_000_000_000, "duration_ns": 900_000}
    gemm = rows(store, "SELECT * FROM spans WHERE segment_name = 'gemm' ORDER BY rank, step")
    assert [(row["step"], row["clock"], row["stream"]) for row in gemm] == [
        (40, "device", "stream 7"),
        (41, "device", "stream 7"),
    ] * 2
    assert gemm[0]["start_ns"] - gemm[0]["enqueue_ns"] == 38_000
    assert [row["duration_ns"] for row in gemm] == [100_000, 100_000, 130_000, 132_000]


def test_groups_without_arguments_follow_from_the_order(tmp_path: Path) -> None:
    store = taken(job(tmp_path / "traces", steps=4))
    assert any("all 2 ranks issued the same ones" in note for note in store.done.notes)
    found = rows(store, "SELECT * FROM spans WHERE kind = 'collective' ORDER BY rank, start_ns")
    group = group_id("world", (0, 1))
    assert [(row["segment_name"], row["sequence"], row["group"]) for row in found] == [
        ("all_reduce", number, group) for number in (1, 2, 3, 4)
    ] * 2
    assert [row["exposed_ns"] for row in found] == [250_000] * 4 + [220_000, 218_000, 216_000, 214_000]


def test_pairs_that_do_the_same_are_not_one_group(tmp_path: Path) -> None:
    """Two tensor-parallel pairs: each meets in its own all-reduces, of the same number and order."""
    chance = np.random.default_rng(3)
    begin = chance.integers(0, 300, (20, 4))
    end = begin.reshape(20, 2, 2).max(axis=2).repeat(2, axis=1) + 50
    for rank in range(4):
        events = [
            kernel(ALL_REDUCE, 1000 * at + int(begin[at, rank]), int(end[at, rank] - begin[at, rank]), stream=20)
            for at in range(20)
        ]
        write_trace(tmp_path / f"traces/{rank}.json", events, rank=rank, world_size=4)
    _, store = imported(tmp_path, tmp_path / "traces")
    assert rows(store, 'SELECT count("group") AS g, count(sequence) AS s FROM events') == [{"g": 0, "s": 0}]
    assert rows(store, "SELECT count(*) AS n FROM clock_offsets") == [{"n": 0}]


def test_ranks_that_differ_get_no_made_up_group(tmp_path: Path) -> None:
    folder = job(tmp_path / "traces")
    told = json.loads((folder / "trace-1.json").read_text())
    told["traceEvents"].append(kernel(ALL_REDUCE, 1_001_800, 5, stream=20))
    (folder / "trace-1.json").write_text(json.dumps(told))
    store = taken(folder)
    assert any("5 collectives are without a group" in note for note in store.done.notes)
    assert rows(store, 'SELECT count("group") AS g, count(sequence) AS s FROM events') == [{"g": 0, "s": 0}]


def test_groups_are_their_ranks_and_not_their_names(tmp_path: Path) -> None:
    """Group 3 is one set of ranks on rank 0 and another one on rank 2."""
    for rank, members in ((0, "[0, 1]"), (2, "[2, 3]")):
        told: dict[str, Any] = {
            "Process Group Name": "3", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Group size": 2,
            "Process Group Ranks": members, "Collective name": "allreduce", "In msg nelems": 100, "dtype": "BFloat16",
        }  # fmt: skip
        write_trace(tmp_path / f"traces/r{rank}.json", [kernel(ALL_REDUCE, 10, 5, **told)], rank=rank, world_size=4)
    store = taken(tmp_path / "traces")
    found = rows(store, 'SELECT rank, "group" AS g, size_bytes, axis FROM spans ORDER BY rank')
    assert [row["g"] for row in found] == [group_id("tp", (0, 1)), group_id("tp", (2, 3))]
    assert {(row["size_bytes"], row["axis"]) for row in found} == {(200, "tp")}
    assert rows(store, "SELECT count(*) AS n FROM groups") == [{"n": 2}]


def test_a_layout_file_tells_the_mesh(tmp_path: Path) -> None:
    layout = tmp_path / "layout.yaml"
    layout.write_text("pp_size: 2\ntp_size: 1\nworld_size: 2\n")
    _, store = imported(tmp_path, job(tmp_path / "traces"), layout=layout)
    assert store.attempt().layout == {"pp": 2}
    assert [row["pp"] for row in rows(store, "SELECT pp FROM ranks ORDER BY rank")] == [0, 1]
    layout.write_text("dp_size: 4\n")
    with pytest.raises(UsageError, match="The layout has 4 ranks, the traces are of 2"):
        imported(tmp_path, tmp_path / "traces", layout=layout, run="other")
    layout.write_text("hello: 4\n")
    with pytest.raises(UsageError, match="tells no layout"):
        imported(tmp_path, tmp_path / "traces", layout=layout, run="other")


@pytest.mark.parametrize(
    ("value", "size", "ranks"),
    [
        ("[0, 1]", 2, [0, 1]),
        ("[0, 1, ..., 9]", 10, []),
        ("[0, 1]", 3, []),
        ([4, 5], None, [4, 5]),
        (None, 2, []),
        ("", 0, []),
    ],
)
def test_shortened_lists_of_ranks_are_not_believed(value: Any, size: int | None, ranks: list[int]) -> None:
    assert list(ranks_of(value, size)) == ranks


def test_without_rank_or_world_it_is_a_job_of_one(tmp_path: Path) -> None:
    report, store = imported(tmp_path, write_trace(tmp_path / "t.json", [host("aten::mm", 5, 3)]))
    assert (report.ranks, report.world_size, store.attempt().world_size) == (1, 1, 1)
    assert find_stragglers(store, store.attempt()).verdict == "insufficient-evidence"
    assert store.attempt().exit_reason is None
    assert diagnose(store, store.attempt()).verdict == "inconclusive"


def test_without_a_marker_there_is_one_implicit_step(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [host("aten::mm", 100, 50), kernel("gemm", 160, 40)])
    store = taken(path)
    assert any("one implicit step 0" in note for note in store.done.notes)
    assert rows(store, "SELECT step, start_ns, duration_ns FROM steps") == [
        {"step": 0, "start_ns": 100_000, "duration_ns": 100_000}
    ]
    assert rows(store, "SELECT DISTINCT step FROM events") == [{"step": 0}]


def test_an_empty_step_stays(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [marker(3, 0, 10), marker(4, 10, 10), host("aten::mm", 12, 3)])
    store = taken(path)
    assert [row["step"] for row in rows(store, "SELECT step FROM steps ORDER BY 1")] == [3, 4]


def test_work_is_of_the_step_that_launched_it(tmp_path: Path) -> None:
    events = [
        *(marker(1, 0, 100), marker(2, 100, 100), launch(90, 1)),
        *(kernel("late", 120, 10, correlation=1), kernel("own", 150, 5), kernel("after", 500, 5)),
    ]
    store = taken(write_trace(tmp_path / "t.json", events))
    found = {row["segment_name"]: row["step"] for row in rows(store, "SELECT segment_name, step FROM spans")}
    assert found == {"late": 1, "own": 2, "after": None}


def test_times_that_cannot_be_are_rejected_and_counted(tmp_path: Path) -> None:
    events = [
        kernel("good", 100, 5),
        kernel("centuries", 100, 7.4e15),
        kernel("negative", 100, -1),
        kernel("dateless", None, 5),
    ]
    report, store = imported(tmp_path, write_trace(tmp_path / "t.json", events))
    assert (report.rejected, report.dropped) == (2, 1)
    assert any("2 spans have a duration" in note for note in report.notes)
    assert any("1 spans have no start" in note for note in report.notes)
    assert rows(store, "SELECT duration_ns FROM events WHERE status = 'rejected'") == [{"duration_ns": None}] * 2
    assert rows(store, "SELECT duration_ns FROM steps") == [{"duration_ns": 5000}]
    assert rows(store, "SELECT sum(duration_count) AS n FROM rank_windows WHERE window_steps = 10") == [{"n": 1}]


def test_a_kernel_before_its_launch_is_kept_and_said(tmp_path: Path) -> None:
    events = [launch(110, 1), kernel("early", 100, 5, correlation=1)]
    store = taken(write_trace(tmp_path / "t.json", events))
    assert any("1 kernels begin before their launch, by up to 10.0 us" in note for note in store.done.notes)
    (row,) = rows(store, "SELECT start_ns, enqueue_ns, duration_ns FROM events")
    assert row == {"start_ns": 100_000, "enqueue_ns": 110_000, "duration_ns": 5000}


def test_a_file_that_was_cut_keeps_its_spans(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [host(f"op{i}", 10 * i, 5) for i in range(200)], rank=0, world_size=1)
    path.write_bytes(path.read_bytes()[:-100])
    store = taken(path)
    assert 195 <= rows(store, "SELECT count(*) AS n FROM events")[0]["n"] < 200
    assert any("was cut" in note and "are lost" in note for note in store.done.notes)


def test_what_began_and_never_ended_is_aborted(tmp_path: Path) -> None:
    events = [
        {"ph": ph, "name": name, "ts": ts, "pid": 1, "tid": 1}
        for ph, name, ts in (("B", "outer", 1), ("B", "inner", 2), ("E", "", 5))
    ]
    store = taken(write_trace(tmp_path / "t.json", events))
    found = rows(store, "SELECT segment_name, status, duration_ns FROM spans ORDER BY start_ns")
    assert [tuple(row.values()) for row in found] == [("outer", "aborted", None), ("inner", "ok", 3000)]


@pytest.mark.parametrize(
    ("depth", "kept"), [(0, {"note"}), (1, {"note", "a"}), (2, {"note", "a", "b"}), (9, {"note", "a", "b", "c"})]
)
def test_operators_are_kept_to_a_depth(tmp_path: Path, depth: int, kept: set[str]) -> None:
    events = [host("note", 0, 100, cat="user_annotation"), host("a", 10, 50), host("b", 20, 30), host("c", 25, 10)]
    store = taken(write_trace(tmp_path / "t.json", events), depth=depth)
    found = rows(store, "SELECT segment_name, self_ns, duration_ns FROM spans")
    assert {row["segment_name"] for row in found} == kept
    inside = {"note": "a", "a": "b", "b": "c", "c": ""}
    lengths = {"note": 100_000, "a": 50_000, "b": 30_000, "c": 10_000}
    for row in found:
        child = inside[row["segment_name"]]
        assert row["self_ns"] == lengths[row["segment_name"]] - (lengths[child] if child in kept else 0)


def test_names_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_file, "MOST_NAMES", 20)
    odd = ["../../etc", 'quo"te', "new\nline", "\U0001f600", "x" * 100_000, "x" * 100_000 + "y", "a/b" * 90]
    events = [kernel(name, 10 * i, 5) for i, name in enumerate([*odd, *(f"k{i}" for i in range(50))])]
    store = taken(write_trace(tmp_path / "t.json", events))
    names = [row["name"] for row in rows(store, "SELECT name FROM segments")]
    assert set(odd[:4]) <= set(names)
    assert len([name for name in names if name.startswith("xxx")]) == 2
    assert "(other names)" in names
    assert len(names) == 21
    assert any("more distinct names" in note for note in store.done.notes)


def test_more_spans_than_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_file, "MOST_SPANS", 10)
    store = taken(write_trace(tmp_path / "t.json", [kernel("k", 10 * i, 5) for i in range(25)]))
    assert rows(store, "SELECT count(*) AS n FROM events")[0]["n"] == 10
    assert any("15 more spans than fit" in note for note in store.done.notes)


def test_times_from_a_base(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [kernel("k", "12.345", 1)], baseTimeNanoseconds=1_700_000_000_000_000_000)
    store = taken(path)
    assert rows(store, "SELECT start_ns FROM events") == [{"start_ns": 1_700_000_000_000_012_345}]


def test_files_that_are_not_one_job_are_refused(tmp_path: Path) -> None:
    first = write_trace(tmp_path / "a.json", [kernel("k", 1, 1)], rank=0, world_size=2)
    second = write_trace(tmp_path / "b.json", [kernel("k", 1, 1)], rank=0, world_size=2)
    third = write_trace(tmp_path / "c.json", [kernel("k", 1, 1)], rank=1, world_size=4)
    with pytest.raises(UsageError, match="both of rank 0"):
        imported(tmp_path, first, second)
    with pytest.raises(UsageError, match="import each job by itself"):
        imported(tmp_path, first, third)
    with pytest.raises(FormatError, match="no span"):
        imported(tmp_path, write_trace(tmp_path / "d.json", []))
    assert not (tmp_path / "imported").exists()


TIMES = st.integers(0, 10**9)
SPANS = st.lists(
    st.tuples(TIMES, st.integers(0, 10**6), st.sampled_from("abc"), st.integers(7, 9)), min_size=1, max_size=20
)


@given(SPANS)
@settings(max_examples=50, deadline=None)
def test_generated_traces_come_back_exactly(spans: list[tuple[int, int, str, int]]) -> None:
    def us(ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03d}"

    events = [kernel(name, us(start), us(took), stream=stream) for start, took, name, stream in spans]
    text = json.dumps({"traceEvents": events}).replace('"ts": "', '"ts": ').encode()
    text = re.sub(rb'("ts": [0-9.]+)"', rb"\1", text)
    file = read_kineto(ChromeTrace(io.BytesIO(text), "t"), "t")
    found = rank_spans(file, 0, 1)
    none = np.zeros(len(found), np.int64)
    table = event_rows(found, np.arange(len(found)), none, none)
    names = {one.id: one.name for one in found.segments}
    stored = [(*row[:2], names[row[2]], row[3]) for row in zip(*(table[c].to_pylist() for c in COLUMNS), strict=True)]
    assert sorted(stored) == sorted((start, took, name, f"stream {at}") for start, took, name, at in spans)


COLUMNS = ("start_ns", "duration_ns", "segment", "stream")


def test_the_last_to_arrive_in_a_real_job(tmp_path: Path, traces: Path) -> None:
    """The manifest's answer: rank 7 in collectives 0 to 4, rank 5 in 5 and 6, rank 4 in 7; ends agree within 7 us."""
    _, store = imported(tmp_path, traces / "kineto" / "dlrm_kineto.tar.gz")
    last = rows(
        store,
        """SELECT sequence, arg_max(rank, start_ns) AS late, arg_min(rank, duration_ns) AS shortest,
               max(start_ns + duration_ns) - min(start_ns + duration_ns) AS apart
           FROM spans WHERE kind = 'collective' GROUP BY 1 ORDER BY 1""",
    )
    assert [row["late"] for row in last] == [7, 7, 7, 7, 7, 5, 5, 4]
    assert [row["late"] for row in last] == [row["shortest"] for row in last]
    assert max(row["apart"] for row in last) <= 7000
    offsets = rows(store, "SELECT DISTINCT host FROM clock_offsets WHERE uncertainty_ns < 10000")
    assert len(offsets) == 8


@pytest.mark.parametrize(
    ("file", "ranks", "world", "steps"),
    [
        ("hta/trace_filter", [0, 1], 128, [551, 552]),
        ("hta/cpu_only", [34], 300, [551]),
        ("hta/distributed_info_unavailable", [0], 1, [1009]),
        ("hta/rank_unavailable", [0], 1, [1009]),
        ("hta/nccl_parser_config", [0], 2, [4, 5, 6]),
        ("hta/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz", [70], None, [0]),
    ],
)
def test_awkward_real_files(
    tmp_path: Path, traces: Path, file: str, ranks: list[int], world: int | None, steps: list[int]
) -> None:
    assert recognise([traces / file]) == "kineto"
    store = taken(traces / file)
    assert store.done.world_size == world
    assert sorted({row["rank"] for row in rows(store, "SELECT rank FROM ranks")}) == ranks
    assert sorted({row["step"] for row in rows(store, "SELECT step FROM steps")}) == steps
    assert rows(store, "SELECT count(*) AS n FROM events WHERE duration_ns < 0 OR self_ns < 0 OR exposed_ns < 0") == [
        {"n": 0}
    ]


def test_a_communicator_beyond_any_integer_survives(tmp_path: Path, traces: Path) -> None:
    store = taken(traces / "hta" / "rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz")
    assert store.done.configuration["imported"]["communicators"] == ["10159970886766084423"]


def test_arguments_of_real_collectives(tmp_path: Path, traces: Path) -> None:
    store = taken(traces / "hta" / "nccl_parser_config")
    (group,) = rows(store, "SELECT kind, ranks FROM groups")
    assert group == {"kind": "world", "ranks": [0, 1]}
    found = rows(
        store,
        """SELECT segment_name, count(*) AS n, max(size_bytes) AS b FROM spans WHERE kind = 'collective'
           GROUP BY 1 ORDER BY 1""",
    )
    assert [(row["segment_name"], row["n"]) for row in found] == [("all_reduce", 15), ("broadcast", 6)]
    assert max(row["b"] for row in found) == 4 * 7_875_584


def test_archives_and_folders_are_the_same(tmp_path: Path) -> None:
    folder = job(tmp_path / "traces")
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as archive:
        archive.add(folder, "x")
    one, _ = imported(tmp_path / "1", tmp_path / "t.tar.gz")
    other, _ = imported(tmp_path / "2", folder)
    assert (one.spans, one.ranks) == (other.spans, other.ranks)
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "t.tar.gz").read_bytes()[:60])
    with pytest.raises(FormatError, match="cannot be unpacked"):
        imported(tmp_path / "3", tmp_path / "cut.tar.gz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no trace"):
        imported(tmp_path / "3", tmp_path / "empty", format="kineto")


def test_the_clocks_of_two_machines_are_aligned_by_the_ends_of_what_they_shared(tmp_path: Path) -> None:
    """Machine B is 11.56 s ahead; nothing else tells, and the offset has its uncertainty."""
    chance, ahead = np.random.default_rng(1), 11_560_000
    events: tuple[list[Event], list[Event]] = ([], [])
    for step in range(20):
        begin = 1_700_000_000_000_000 + 1_000_000 * step
        for rank in (0, 1):
            events[rank].append(marker(step, begin + rank * ahead, 990_000))
        for end in range(begin + 100_000, begin + 600_000, 100_000):
            for rank, took in enumerate(chance.integers(200, 9000, 2).tolist()):
                longer = int(chance.integers(0, 6))
                events[rank].append(kernel(ALL_REDUCE, end - took + rank * ahead, took + longer, stream=20))
    for rank in (0, 1):
        write_trace(tmp_path / f"traces/{rank}.json", events[rank], rank=rank, world_size=2)
    _, store = imported(tmp_path, tmp_path / "traces")
    offsets = rows(store, "SELECT offset_ns, uncertainty_ns FROM clock_offsets WHERE host = 'host-of-rank-1'")
    assert offsets
    for row in offsets:
        assert abs(row["offset_ns"] + 11_560_000_000) <= row["uncertainty_ns"] < 20_000
    apart = rows(
        store,
        """SELECT max(ended) - min(ended) AS ns
           FROM (SELECT sequence, start_ns + duration_ns AS ended FROM events_aligned) GROUP BY sequence""",
    )
    assert max(row["ns"] for row in apart) < 20_000
