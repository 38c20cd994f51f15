"""Manifests: names as paths, torn snapshots, newer schemas, entries that point elsewhere."""

from __future__ import annotations

import json
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.manifests import manifest as manifests
from megascope.collectors.manifests import marker
from megascope.collectors.manifests.manifest import (
    FileEntry,
    Manifest,
    data_folder,
    quote_name,
    read_manifest,
    write_manifest,
)
from megascope.collectors.tables.schemas import SCHEMA_VERSION
from megascope.collectors.upkeep.sweeping import sweep
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.errors import MegascopeError


@given(st.text(min_size=1, max_size=300).filter(lambda text: "\0" not in text))
def test_a_quoted_name_is_one_folder_name(name: str) -> None:
    quoted = quote_name(name)
    assert set(quoted) <= set(string.ascii_letters + string.digits + "-_.~%")
    assert not quoted.startswith(".")
    assert len(f"run={quoted}") < 255


@given(st.text(alphabet=string.ascii_letters + "./ =%", min_size=1, max_size=40))
def test_a_short_name_can_be_read_back_as_hive_does(name: str) -> None:
    assert unquote(quote_name(name)) == name


def test_long_names_that_differ_at_the_end_stay_apart() -> None:
    assert quote_name("x" * 500 + "a") != quote_name("x" * 500 + "b")


def _entry(path: str, table: str = "events") -> FileEntry:
    return FileEntry(path, table, "r", 0, "b000", rows=1, size_bytes=1)


def _write(root: Path, snapshot: int) -> Manifest:
    path = f"{data_folder('events', 'r', 0, 'b000')}/w-{snapshot:012d}.parquet"
    manifest = Manifest("w", snapshot, (_entry(path),), state={"cursor": snapshot}, order=snapshot)
    write_manifest(root, manifest)
    return manifest


def _folder(root: Path) -> Path:
    return next(manifests.manifest_folders(root))


def test_the_highest_snapshot_counts_and_old_ones_go(tmp_path: Path) -> None:
    written = [_write(tmp_path, number) for number in range(1, 12)]
    assert read_manifest(_folder(tmp_path)) == written[-1]
    assert len(list(_folder(tmp_path).glob("*.json"))) == manifests.KEPT_SNAPSHOTS


@pytest.mark.parametrize("damage", [b"", b'{"version": 1, "sch', b"[]", b"\xff\xfe", b'{"version": 1, "schema": 1}'])
def test_a_damaged_snapshot_gives_way_to_the_one_before(tmp_path: Path, damage: bytes) -> None:
    before = _write(tmp_path, 1)
    _write(tmp_path, 2)
    (_folder(tmp_path) / "000000000002.json").write_bytes(damage)
    assert read_manifest(_folder(tmp_path)) == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    path = _folder(tmp_path) / "000000000001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": SCHEMA_VERSION + 1}))
    with pytest.raises(MegascopeError, match="newer than"):
        read_manifest(_folder(tmp_path))


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.parquet", "events/../../x.parquet", "events/x.parquet"])
def test_a_manifest_cannot_point_out_of_its_folders(tmp_path: Path, path: str) -> None:
    write_manifest(tmp_path, Manifest("w", 1, (_entry(path),)))
    assert read_manifest(_folder(tmp_path)) is None


@pytest.mark.parametrize("path", ["/tmp/x.parquet", "events/../../x.parquet", "_megascope.json"])
def test_a_manifest_cannot_have_anything_else_deleted(tmp_path: Path, path: str) -> None:
    write_manifest(tmp_path, Manifest("w", 1, retired=(manifests.Retired(path, 0),)))
    assert read_manifest(_folder(tmp_path)) is None


def test_a_leftover_temporary_file_is_no_snapshot(tmp_path: Path) -> None:
    written = _write(tmp_path, 1)
    (_folder(tmp_path) / "000000000002.json.tmp").write_text("{")
    assert read_manifest(_folder(tmp_path)) == written


def test_many_writers_may_begin_a_store_at_once(tmp_path: Path) -> None:
    for number in range(10):
        root = tmp_path / str(number)
        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(marker.write_marker, root) for _ in range(16)]:
                done.result(timeout=30)
        assert marker.check_marker(root)
        assert [path.name for path in root.iterdir()] == [marker.MARKER]


def test_what_a_damaged_snapshot_listed_stays_for_good(tmp_path: Path) -> None:
    """Later incarnations know that there was one: files that nobody lists may be the only copies."""
    rows = {"rank": [0], "step": [0], "start_ns": [0]}
    for _ in range(2):
        with TableWriter(tmp_path, "w", grace_s=0) as writer:
            writer.write("steps", "r", 0, rows)
            writer.commit()
    newest = max(_folder(tmp_path).glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:40])
    known = set(tmp_path.rglob("*.parquet"))
    assert len(known) == 2
    said: list[str] = []
    assert sweep(tmp_path, 0, say=said.append) == 0
    assert len(said) == 1
    assert str(newest) in said[0]
    assert max(_folder(tmp_path).glob("*.json")) == newest, "nobody went on from the older one"
    for _ in range(manifests.KEPT_SNAPSHOTS + 2):
        with TableWriter(tmp_path, "w", grace_s=0) as writer:
            writer.write("steps", "r", 0, rows)
            writer.commit()
            temporary = tmp_path / (writer.committed_files[0].path + ".tmp")
        temporary.write_bytes(b"")
    TableWriter(tmp_path, "w").close()
    assert known <= set(tmp_path.rglob("*.parquet"))
    assert not temporary.exists(), "nobody ever lists such a file"
