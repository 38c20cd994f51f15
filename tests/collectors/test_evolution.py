"""Old stores: one of version 1 opens, alone and mixed with new files; one that is newer is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megascope.collectors.manifests.marker import check_marker
from megascope.collectors.reading import evolution
from megascope.collectors.reading.store import Store
from megascope.collectors.tables import schemas
from megascope.collectors.tables.schemas import SCHEMA_VERSION, TABLES, WRITER_COLUMN, WRITTEN_COLUMN, Column, Table
from megascope.collectors.upkeep.compaction import compact
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.errors import MegascopeError

GOLDEN = Path(__file__).parent / "golden_store_v1.zip"
"""A store that megascope 0.1.0 wrote: two agents, four ranks, ten steps, a row at least in every table."""

FIRST_NS = 1_790_000_000 * 10**9


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the store of version 1."""
    root = tmp_path / "old"
    with zipfile.ZipFile(GOLDEN) as file:
        file.extractall(root)
    return root


def _rows(root: Path, table: str) -> list[dict[str, Any]]:
    with Store(root) as store:
        found = store.read(table, store.attempt("old")).to_pylist()
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))


_LATER = {"hardware_events", "machines"}
"""Tables that stores of version 1 did not have."""


def _check(root: Path) -> None:
    """The golden store's own rows, whatever was done to the store."""
    with Store(root) as store:
        attempt = store.attempt("old")
        assert store.damaged == []
        assert attempt.layout == {"pp": 2, "tp": 2}
        assert attempt.exit_reason == "finished"
        spans = store.read("spans", attempt).to_pylist()
        steps = store.read("steps", attempt).to_pylist()
        beats = store.read("heartbeats", attempt).to_pylist()
        for name, table in TABLES.items():
            found = store.read(name, attempt)
            wanted = {column.name for column in table.columns} - {WRITTEN_COLUMN, WRITER_COLUMN}
            assert wanted <= set(found.column_names)
            assert found.num_rows > 0 or name in _LATER, name
        assert store.query("SELECT count(*) AS n FROM events_aligned", attempt=attempt)["n"][0].as_py() == len(spans)
    assert len(spans) == 80
    assert {(s["rank"], s["segment_name"], s["host"], s["pp"]) for s in spans if s["step"] == 9} == {
        (rank, name, "ab"[rank // 2], rank // 2) for rank in range(4) for name in ("forward", "tp_all_reduce")
    }
    assert {(s["rank"], s["step"], s["loss"]) for s in steps} == {
        (r, s, 3.0 - s / 10) for r in range(4) for s in range(10)
    }
    assert len(beats) == 40
    flight = beats[0]["in_flight"][0]
    assert set(flight) == {field.name for field in schemas.FLIGHT}
    assert flight["segment"] == "tp_all_reduce"
    known = {"segment", "kind", "group", "sequence", "peer", "microbatch", "begun_ns"}
    assert all(flight[name] is None for name in set(flight) - known), "what version 1 did not have is NULL"


def test_a_store_of_version_1_opens(old: Path) -> None:
    _check(old)


def test_a_store_of_version_1_is_compacted(old: Path) -> None:
    before = {name: _rows(old, name) for name in set(TABLES) - {"rank_windows"}}
    report = compact(old, quiet_s=0)
    assert report.files_before > report.files_after > 0
    assert report.problems == []
    _check(old)
    assert {name: _rows(old, name) for name in before} == before
    # Rows of one window add up: those of two commits have become one.
    windows = [(row["rank"], row["duration_count"], row["duration_sum_ns"]) for row in _rows(old, "rank_windows")]
    assert sorted(windows) == [(rank, 10, 90_000_000) for rank in range(4)]


def test_old_and_new_files_lie_in_one_store(old: Path) -> None:
    flight = {field.name: None for field in schemas.FLIGHT} | {"segment": "forward"}
    with TableWriter(old, "agent-a") as writer:
        assert writer.state == {"at": 10}, "the old writer's positions"
        writer.write("steps", "old", 0, {"rank": [0], "step": [9], "start_ns": [FIRST_NS], "loss": [7.5]})
        beats = {"rank": [0], "moment_ns": [FIRST_NS + 5], "in_flight": [[flight]], "process_state": ["running"]}
        writer.write("heartbeats", "old", 0, beats)
        writer.commit()
    for _ in range(2):
        assert [row["loss"] for row in _rows(old, "steps") if (row["rank"], row["step"]) == (0, 9)] == [7.5]
        beats_read = _rows(old, "heartbeats")
        assert len(beats_read) == 41
        assert {beat["in_flight"][0]["segment"] for beat in beats_read} == {"forward", "tp_all_reduce"}
        compact(old, quiet_s=0)


def test_a_store_that_was_written_to_is_marked_anew(old: Path) -> None:
    """The version that wrote the store would read new files wrongly: it has to refuse them."""
    assert json.loads((old / "_megascope.json").read_text()) == {"schema": 1}
    with TableWriter(old, "agent-c"):
        pass
    assert json.loads((old / "_megascope.json").read_text()) == {"schema": SCHEMA_VERSION}
    assert check_marker(old)


def test_a_manifest_of_a_newer_version_is_refused(old: Path) -> None:
    path = max((old / "_manifests" / "agent-a").glob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": SCHEMA_VERSION + 1}))
    with pytest.raises(MegascopeError, match="newer than"):
        Store(old)
    with pytest.raises(MegascopeError, match="newer than"):
        compact(old)


def test_no_column_of_version_1_was_lost(old: Path) -> None:
    """A column that is renamed, removed or of another type makes every old store unreadable."""
    checked = 0
    for path in old.rglob("*.parquet"):
        table = TABLES[path.relative_to(old).parts[0]]
        current = {column.name: column.type for column in table.columns}
        for field in pq.read_schema(path):
            if not (table.has_axes and field.name in ("pp", "tp")):
                assert lost(field.type, current.get(field.name)) == [], (table.name, field.name)
                checked += 1
    assert checked > 100


def lost(old: pa.DataType, new: pa.DataType | None, name: str = "") -> list[str]:
    """What an old column has, by name and type and down to the fields of its structs, that the new one has not."""
    if new is None:
        return [name or "all of it"]
    if pa.types.is_list(old) and pa.types.is_list(new):
        return lost(old.value_type, new.value_type, name)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        of = {field.name: field.type for field in new}
        return [each for field in old for each in lost(field.type, of.get(field.name), f"{name}.{field.name}")]
    return [] if evolution.duck_type(old) == evolution.duck_type(new) else [f"{name}: {old} is {new}"]


def test_a_lost_field_of_a_struct_is_noticed() -> None:
    old = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]))
    more = pa.list_(pa.struct([("z", pa.int16()), ("b", pa.struct([("c", pa.string())])), ("a", pa.int64())]))
    other = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.struct([("d", pa.string())]))]))
    assert lost(old, more) == []
    assert lost(old, other) == [".a: int64 is int32", ".b.c"]
    assert lost(old, pa.int64()) != []


def test_a_reader_fills_in_what_any_older_version_lacked(store_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next column that somebody adds, to a table and inside of a struct: old rows have NULL there."""
    with TableWriter(store_root, "w") as writer:
        writer.write("health", "r", 0, {"host": ["a"], "moment_ns": [1], "metric": ["m"], "value": [2.0]})
        writer.commit()
    table = TABLES["health"]
    newer = Table("health", table.doc, (*table.columns, Column("colour", pa.string(), "A later column.")))
    with Store(store_root) as store:
        files = {SCHEMA_VERSION: store.files("health")}
        monkeypatch.setattr(evolution, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        found = store.query(f"SELECT * FROM {evolution.scan(newer, files)}").to_pylist()
    assert [(row["value"], row["colour"]) for row in found] == [(2.0, None)]
