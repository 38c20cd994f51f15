"""The bundle: what goes in, what never does, and that half of one is never seen."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from megascope.bundling import bundle
from megascope.cli import main
from megascope.profiler.errors import MegascopeError
from megascope.profiler.topology import Topology
from megascope.viz3d import bundle as bundling
from megascope.viz3d.hang import Judged, diagnose_with_graph
from support.hang_scenes import MOMENT_NS, Scene, cascade
from support.hang_store import write_scene


@pytest.fixture
def scene() -> Scene:
    """Rank 5 stands in its loader, the others wait for it."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.work(5, "data", kind="data")
    return scene


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_it_has_what_an_incident_needs(scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    incident = {"incident": "i", "kind": "stalled", "opened_ns": MOMENT_NS, "actions": "[]"}
    write_scene(tmp_path / "store", scene.looks(), incidents=[incident])
    path = tmp_path / "hang.zip"
    assert main(["hang", str(tmp_path / "store"), "--json", "--bundle", str(path)]) == 0
    printed = capsys.readouterr()
    assert str(path) in printed.err
    files = read(path)
    verdict = json.loads(files["verdict.json"])
    assert verdict["culprits"] == json.loads(printed.out)["culprits"]
    assert verdict["culprits"][0]["ranks"] == [5]
    assert "What to do next" in files["report.txt"].decode()
    assert json.loads(files["looks.json"])["ranks"]["5"]["in_flight"][0]["segment"] == "data"
    beats = pq.read_table(io.BytesIO(files["tables/heartbeats.parquet"]))
    assert set(beats["rank"].to_pylist()) == set(range(8))
    assert {"tables/incidents.parquet", "tables/ranks.parquet", "tables/groups.parquet"} <= set(files)
    assert b"<html" in files["3d.html"]
    manifest = json.loads(files["manifest.json"])
    assert {*manifest["files"], "manifest.json"} == set(files)
    assert not list(tmp_path.glob("*.tmp"))


def test_no_configuration_and_no_environment_goes_in(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "very-secret-1")
    runs: dict[str, dict[str, list[object]]] = {
        "runs": {"configuration": ['{"key": "very-secret-2"}'], "world_size": [8], "layout": ["{}"]}
    }
    store = write_scene(tmp_path / "store", scene.looks(), more=runs)
    attempt = store.attempt()
    bundle(tmp_path / "b.zip", diagnose_with_graph(store, attempt), store=store, attempt=attempt)
    for name, content in read(tmp_path / "b.zip").items():
        assert b"very-secret" not in content, name
    runs_table = pq.read_table(io.BytesIO(read(tmp_path / "b.zip")["tables/runs.parquet"]))
    assert "configuration" not in runs_table.column_names


def test_dumps_and_logs_are_packed_and_large_ones_cut(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "MOST_FILE_BYTES", 10)
    monkeypatch.setattr(bundling, "MOST_FILES_BYTES", 14)
    store = write_scene(tmp_path / "store", scene.looks())
    logs = []
    for name, text in (("a.log", "all"), ("b.log", "0123456789abc"), ("c.log", "more"), ("d.log", "left out")):
        logs.append(tmp_path / name)
        logs[-1].write_text(text)
    logs.append(tmp_path / "gone.log")
    bundle(tmp_path / "b.zip", diagnose_with_graph(store, store.attempt()), files=logs)
    files = read(tmp_path / "b.zip")
    packed = {name.partition("-")[2]: content for name, content in files.items() if name.startswith("files/")}
    assert packed == {"a.log": b"all", "b.log": b"3456789abc", "c.log": b"more"}
    notes = " ".join(json.loads(files["manifest.json"])["notes"])
    assert "b.log: its last 10 of 13 bytes" in notes
    assert "d.log: left out" in notes
    assert "gone.log: left out" in notes


def test_a_verdict_without_a_look_and_a_place_that_cannot_be_written(scene: Scene, tmp_path: Path) -> None:
    store = write_scene(tmp_path / "store", scene.looks(), exit_reason="finished")
    judged = diagnose_with_graph(store, store.attempt())
    assert isinstance(judged, Judged)
    bundle(tmp_path / "b.zip", judged)
    assert json.loads(read(tmp_path / "b.zip")["verdict.json"])["verdict"] == "finished"
    with pytest.raises(MegascopeError, match="cannot be written"):
        bundle(tmp_path / "none" / "b.zip", judged)
