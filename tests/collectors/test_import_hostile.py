"""Importing what no tool writes, and what lies beside the traces: one sentence or a count, never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.importers.bytedance.rows import COLUMNS
from megascope.collectors.importers.hostile import printable, whole
from megascope.profiler.errors import FormatError, MegascopeError, UsageError
from support.chrome import host, kernel, marker, write_trace
from support.imports import imported, rows, taken


@given(st.one_of(st.integers(), st.text(), st.booleans(), st.floats(), st.none()))
def test_a_whole_number_is_one_of_a_column_or_none(value: object) -> None:
    found = whole(value)
    assert found is None or (0 <= found < 1 << 63 and str(found) == (str(value).lstrip("0") or "0"))


@pytest.mark.parametrize("value", ["9" * 5000, "\u00b2", "-1", "", True, 1 << 63, "1.0", None, "\u0663"])
def test_what_is_no_whole_number(value: object) -> None:
    assert whole(value) is None


@given(st.binary(max_size=20))
def test_any_name_can_be_printed(name: bytes) -> None:
    text = printable(os.fsdecode(name))
    text.encode()
    assert text.isprintable()


def parquet(path: Path, **columns: Any) -> Path:
    plain: dict[str, Any] = {name: [0, 0] for name in COLUMNS} | {"optype": ["forward-compute"] * 2}
    plain |= {"start_ts": [0.0, 1.0], "duration": [0.5, 0.5], "mb_id": [0, 1]}
    pq.write_table(pa.table(plain | columns), path)
    return path


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def iteration(step: object = 1, ms: object = 100.0, more: str = "") -> str:
    return f"{more} iteration {step}/ 10 | elapsed time per iteration (ms): {ms} | lm loss: 1.0 |\n"


BROKEN: dict[str, Callable[[Path], Path]] = {
    "stage": lambda p: parquet(p / "trace-a.parquet", stage=[0, 10**12]),
    "rank": lambda p: parquet(p / "trace-a.parquet", rank=[0, 3 * 10**9]),
    "step": lambda p: parquet(p / "trace-a.parquet", step=pa.array([0, 1 << 63], pa.uint64())),
    "types": lambda p: parquet(p / "trace-a.parquet", start_ts=["a", "b"]),
    "lists": lambda p: parquet(p / "trace-a.parquet", rank=[[0], [1]]),
    "big rank": lambda p: write_trace(p / "t.json", [kernel("k", 1, 1)], rank=3 * 10**9, world_size=4),
    "header": lambda p: text(p / "t.json", '{"a": ' + "[" * 100_000 + ', "traceEvents": []}'),
    "deep curves": lambda p: text(p / "c.json", '{"iteration-time": ' + "[" * 100_000),
    "long curves": lambda p: text(p / "c.json", '{"iteration-time": {"values": {"1": ' + "9" * 5000 + "}}}"),
    "no date": lambda p: text(p / "a.log", iteration(step=1 << 64)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_one_sentence_names_the_file(tmp_path: Path, case: str) -> None:
    path = BROKEN[case](tmp_path)
    with pytest.raises(MegascopeError) as caught:
        imported(tmp_path, path)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "imported").exists()


def test_hostile_lines_of_a_log_cost_themselves_alone(tmp_path: Path) -> None:
    lines = [
        iteration(1, more=" [2024-13-45 01:02:03]"),
        iteration("\u0663"),
        iteration(1 << 63),
        iteration(2, "1e300"),
        "time (ms) | forward-compute: 1e300 | optimizer: 9e999\n",
        "[before the start of training step] datetime: 2024-02-31 00:00:00\n",
        iteration(3, "9" * 5000),
        iteration(4),
    ]
    store = taken(text(tmp_path / "a.log", "".join(lines)))
    assert rows(store, "SELECT step, duration_ns FROM steps ORDER BY 1") == [
        {"step": step, "duration_ns": known} for step, known in ((1, 10**8), (2, None), (3, None), (4, 10**8))
    ]


def test_true_is_no_rank(tmp_path: Path) -> None:
    store = taken(write_trace(tmp_path / "rank3.json", [kernel("k", 1, 1)], rank=True, world_size=True))
    assert rows(store, "SELECT rank FROM ranks") == [{"rank": 3}]


def test_starts_of_another_time_are_left_out(tmp_path: Path) -> None:
    now = 1_700_000_000_000_000
    events = [marker(7, now, 90), marker(0, 0, 5), kernel("old", 0, 5), *(kernel("k", now + i, 1) for i in range(9))]
    report, store = imported(tmp_path, write_trace(tmp_path / "t.json", events, rank=0, world_size=1))
    assert (report.dropped, report.rejected) == (1, 0)
    assert {row["segment_name"] for row in rows(store, "SELECT segment_name FROM spans")} == {"k"}
    assert [row["step"] for row in rows(store, "SELECT step FROM steps")] == [7]
    assert store.attempt().start_ns == now * 1000


def test_files_of_other_kinds_are_left_out_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    for rank in (0, 1):
        write_trace(folder / f"rank{rank}.json", [kernel("k", 1, 1)], rank=rank, world_size=2)
    text(folder / "config.json", '{"hidden": 1}')
    text(folder / "readme.txt", "hello")
    text(folder / "zeros.json", "")
    report, _ = imported(tmp_path, folder)
    assert report.ranks == 2
    assert "3 other files are not of format kineto and left out: config.json, readme.txt, zeros.json" in report.notes
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    text(mixed / "job.log", iteration())
    write_trace(mixed / "t.json", [kernel("k", 1, 1)])
    report, _ = imported(tmp_path / "2", mixed, format="megatron-log")
    assert "1 other file is not of format megatron-log and left out: t.json" in report.notes


def test_packed_traces_in_an_archive_are_read_in_one_pass(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    for rank in (0, 1):
        path = write_trace(folder / f"rank{rank}.json", [kernel("k", 1, 1)], rank=rank, world_size=2)
        if rank:
            path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    text(folder / "notes.txt", "hello")
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as archive:
        archive.add(folder, "x")
    report, _ = imported(tmp_path, tmp_path / "t.tar.gz")
    assert (report.ranks, report.spans) == (2, 2)
    assert any("left out: notes.txt" in note for note in report.notes)


def test_streams_of_several_devices_are_told_apart(tmp_path: Path) -> None:
    events = [kernel("a", 1, 1), {**kernel("b", 1, 1), "pid": 1}, host("c", 1, 1)]
    store = taken(write_trace(tmp_path / "t.json", events))
    assert {(row["segment_name"], row["stream"]) for row in rows(store, "SELECT segment_name, stream FROM spans")} == {
        ("a", "device 0 stream 7"), ("b", "device 1 stream 7"), ("c", "host"),
    }  # fmt: skip


def test_a_layout_is_held_against_the_traces(tmp_path: Path) -> None:
    layout = text(tmp_path / "layout.yaml", "dp_size: 4\n")
    trace = write_trace(tmp_path / "traces/rank2.json", [kernel("k", 1, 1)])
    report, _ = imported(tmp_path, trace, layout=layout)
    assert any("the layout has 4 ranks, no trace tells how many there are: 1 were given" in n for n in report.notes)
    assert any("1 of 4 ranks were imported" in note for note in report.notes)
    text(layout, "dp_size: 2\n")
    with pytest.raises(UsageError, match="has 2 ranks, and a trace is of rank 2"):
        imported(tmp_path / "2", trace, layout=layout)
    text(layout, "dp_size: 99999999999999999999\n")
    with pytest.raises(FormatError, match="give a size from 1"):
        imported(tmp_path / "2", trace, layout=layout)
    text(layout, "dp_size: 2\npp_size: 3\n")
    report, _ = imported(tmp_path / "3", parquet(tmp_path / "trace-a.parquet"), layout=layout)
    assert {
        "the layout has 3 places on pp, the trace only 1",
        "the layout has 2 places on dp, the trace only 1",
    } <= set(report.notes)


def test_what_to_do_follows_from_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    whole_file = parquet(tmp_path / "trace-a.parquet").read_bytes()
    for path, said in (
        (tmp_path / "none", "There is no file in"),
        (text(tmp_path / "empty.json", ""), "empty.json is empty"),
        (text(tmp_path / "short.parquet", "PAR1"), "it is damaged|it was cut"),
    ):
        with pytest.raises(MegascopeError, match=said):
            imported(tmp_path, path)
    for data, said in ((whole_file[:-9], "it was cut"), (b"hello", "no Parquet file"), (b"", "is empty")):
        (tmp_path / "trace-a.parquet").write_bytes(data)
        with pytest.raises(FormatError, match=said):
            imported(tmp_path, tmp_path / "trace-a.parquet", format="bytedance")


def test_a_name_that_is_no_utf_8_becomes_a_run(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"rank0_\xff\n.json")
    try:
        write_trace(path, [kernel("k", 1, 1)])
    except OSError:
        pytest.skip("this file system takes only names in UTF-8")
    report, store = imported(tmp_path, path)
    assert report.run == "rank0_\ufffd_"
    assert json.dumps(store.attempt().configuration["imported"]["files"]) == '["rank0_\\ufffd_.json"]'
