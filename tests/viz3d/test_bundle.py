"""The bundle: what goes in, what never does, and that half of one is never seen."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from megascope.bundling import bundle
from megascope.cli import main
from megascope.collectors.incidents.dumps import dumps_folder
from megascope.collectors.reading.store import Store
from megascope.profiler.errors import MegascopeError
from megascope.profiler.topology import Topology
from megascope.viz3d.bundle import files as bundle_files
from megascope.viz3d.bundle import store as bundle_store
from megascope.viz3d.bundle.bundle import write_bundle
from megascope.viz3d.bundle.reading import unpacked
from megascope.viz3d.hang import Judged, diagnose_with_graph
from megascope.viz3d.paths import Sources, diagnose_paths, sort_paths
from support.dumps import absent_member
from support.hang_scenes import MOMENT_NS, Scene, cascade
from support.hang_store import steps_done, write_scene


@pytest.fixture
def scene() -> Scene:
    """Rank 5 stands in its loader, the others wait for it."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.work(5, "data", kind="data")
    return scene


def table_of(files: dict[str, bytes], table: str) -> bytes:
    """The one Parquet file of a table."""
    (content,) = (one for name, one in files.items() if name.startswith(f"store/{table}/"))
    return content


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
    beats = pq.read_table(io.BytesIO(table_of(files, "heartbeats")))
    assert set(beats["rank"].to_pylist()) == set(range(8))
    assert {name.split("/")[1] for name in files if name.endswith(".parquet")} >= {"incidents", "ranks", "groups"}
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
    bundle(tmp_path / "b.zip", diagnose_with_graph(store, attempt), opened=(store, attempt))
    for name, content in read(tmp_path / "b.zip").items():
        assert b"very-secret" not in content, name
    runs_table = pq.read_table(io.BytesIO(table_of(read(tmp_path / "b.zip"), "runs")))
    assert runs_table["configuration"].to_pylist() == [None]


def test_dumps_and_logs_are_packed_and_large_ones_cut(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_files, "MOST_FILE_BYTES", 10)
    monkeypatch.setattr(bundle_files, "MOST_FILES_BYTES", 17)
    store = write_scene(tmp_path / "store", scene.looks())
    logs = []
    for name, text in (("a.log", "all"), ("b.log", "0123456789abc"), ("c.log", "more"), ("d.log", "left out")):
        logs.append(tmp_path / name)
        logs[-1].write_text(text)
    logs.append(tmp_path / "gone.log")
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    (dumps / "_dump_0").write_bytes(b"{" + b" " * 20)
    sources = Sources(dumps=(dumps,), logs=tuple(logs))
    told = bundle(tmp_path / "b.zip", diagnose_with_graph(store, store.attempt()), sources=sources)
    files = read(tmp_path / "b.zip")
    packed = {
        name.rpartition("/")[2]: content for name, content in files.items() if name.startswith(("logs/", "dumps/"))
    }
    assert packed == {"a.log": b"all", "b.log": b"3456789abc", "c.log": b"more"}
    notes = json.loads(files["manifest.json"])["notes"]
    for one in ("b.log: its last 10 of 13 bytes", "d.log: left out, its 8 bytes", "gone.log: left out (No such file",
                "_dump_0: left out, its 21 bytes are more than the 10 of a file"):  # fmt: skip
        assert any(one in note for note in notes), notes
    assert "_dump_0: left out" in told


def test_the_dumps_of_the_accused_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = tmp_path / "dumps"
    absent_member(range(8), 5).write(dumps)
    size = max(one.stat().st_size for one in dumps.iterdir())
    monkeypatch.setattr(bundle_files, "MOST_FILES_BYTES", 2 * size)
    sources = sort_paths([dumps])
    judged = diagnose_paths(sources)
    assert [one.ranks for one in judged.verdict.culprits] == [(5,)]
    bundle(tmp_path / "b.zip", judged, sources=sources)
    files = read(tmp_path / "b.zip")
    assert any(name.endswith("_dump_5") for name in files)
    notes = json.loads(files["manifest.json"])["notes"]
    assert len([note for note in notes if "more than there is room for" in note]) >= 5
    assert "judged from what is in here alone, the verdict is another one: see verdict.json" in notes


def essence(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("verdict", "culprits", "victims", "explained", "unexplained", "missing")}


def judged_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["hang", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_bundle_is_judged_as_the_original(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store, a folder of dumps and a log; the bundle as it is, and its unpacked folder."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    incident = {"incident": "i", "kind": "stalled", "opened_ns": MOMENT_NS, "actions": "[]"}
    write_scene(tmp_path / "store", scene.looks(), incidents=[incident], more=steps_done(range(8), [1.0, 1.0, 1.0]))
    absent_member(range(8), 5).write(tmp_path / "dumps")
    (tmp_path / "job.log").write_text("[rank5]: Traceback (most recent call last):\n[rank5]: ValueError: no file\n")
    original = judged_json(
        capsys, *(str(tmp_path / name) for name in ("store", "dumps", "job.log")), "--bundle", str(tmp_path / "b.zip")
    )
    assert original["culprits"][0]["ranks"] == [5]
    manifest = json.loads(read(tmp_path / "b.zip")["manifest.json"])
    assert manifest["judged_alike"] is True
    assert manifest["notes"] == []
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    for name in ("store", "dumps"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "job.log").unlink()
    for path in (tmp_path / "b.zip", tmp_path / "unpacked"):
        again = judged_json(capsys, str(path))
        assert essence(again) == essence(original)
        assert [one["kind"] for one in again["used"]] == ["store", "dumps", "logs"]
        assert all(str(path) in one["path"] for one in again["used"])
    assert list((tmp_path / "temporary").iterdir()) == []


def test_dumps_that_agents_gathered_go_in(scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The store alone is open (one look), the dumps in it tell: so they do in the bundle."""
    write_scene(tmp_path / "store", scene.looks()[:1])
    gathered = dumps_folder(tmp_path / "store", "job", 0)
    absent_member(range(8), 5).write(gathered)
    (gathered / "left-out.node-9.txt").write_text("/spool/_dump_9: too large\n")
    original = judged_json(capsys, str(tmp_path / "store"), "--bundle", str(tmp_path / "b.zip"))
    assert [one["kind"] for one in original["used"]] == ["store", "dumps"]
    shutil.rmtree(tmp_path / "store")
    again = judged_json(capsys, str(tmp_path / "b.zip"))
    assert essence(again) == essence(original)
    assert again["verdict"] == "hang"
    assert any(name.endswith("left-out.node-9.txt") for name in read(tmp_path / "b.zip"))


def test_a_bundle_is_the_job_as_it_was_when_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that runs is judged by fresh data, and the bundle an hour later."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.work(5, "data", kind="data")
    earlier, later = scene.looks()
    moved = replace(later, states={rank: replace(one, step=99, spans=999) for rank, one in later.states.items()})
    write_scene(tmp_path / "store", [earlier, moved])
    monkeypatch.setattr(Store, "data_age_s", lambda *_: 5.0)
    original = judged_json(capsys, str(tmp_path / "store"), "--bundle", str(tmp_path / "b.zip"))
    monkeypatch.undo()
    assert original["verdict"] == "running"
    manifest = json.loads(read(tmp_path / "b.zip")["manifest.json"])
    assert manifest["judged_alike"] is True
    manifest["as_of"] = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    (tmp_path / "unpacked" / "manifest.json").write_text(json.dumps(manifest))
    again = judged_json(capsys, str(tmp_path / "unpacked"))
    assert essence(again) == essence(original)
    assert again["data_age_s"] == pytest.approx(3605, abs=60)
    (told,) = (one["reason"] for one in again["abstained"] if one["signal"] == "bundle")
    assert "when the bundle was written" in told
    judged_json(capsys, str(tmp_path / "unpacked"), "--bundle", str(tmp_path / "again.zip"))
    third = judged_json(capsys, str(tmp_path / "again.zip"))
    assert essence(third) == essence(original)
    assert third["data_age_s"] == pytest.approx(3605, abs=60)
    assert judged_json(capsys, str(tmp_path / "store"))["verdict"] == "inconclusive", "without the bundle it is old"


def test_of_a_large_store_the_newest_rows_are_packed(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_store, "NEWEST", bundle_store.NEWEST | {"events": ("start_ns", 10)})
    store = write_scene(tmp_path / "store", scene.looks(), more=steps_done(range(8), [1.0, 1.0, 1.0]))
    opened = store, store.attempt()
    told = bundle(tmp_path / "b.zip", diagnose_with_graph(*opened), opened=opened)
    assert "events: the newest 10 rows" in told
    events = pq.read_table(io.BytesIO(table_of(read(tmp_path / "b.zip"), "events")))
    assert set(events["step"].to_pylist()) == {2, 1}
    assert events.num_rows == 10


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"a.txt": "b"}, "is no bundle of megascope"),
        ({"manifest.json": "[]"}, "is no bundle of megascope"),
        ({"manifest.json": '{"bundle": 1, "files": []}'}, "is of version 1"),
        ({"manifest.json": '{"bundle": 2, "files": {}, "sources": [{}]}'}, "is damaged"),
        ({"manifest.json": '{"bundle": 2, "files": {}, "sources": []}'}, "has nothing to judge again"),
        ({"manifest.json": '{"bundle": 2, "sources": [{"path": "/etc"}]}'}, "names files outside"),
        ({"manifest.json": '{"bundle": 2, "sources": [{"path": "store/../.."}]}'}, "names files outside"),
    ],
)
def test_what_is_no_bundle_is_refused_in_a_sentence(
    content: dict[str, str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    assert main(["hang", str(path)]) == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--racks", "racks.csv"), "--racks is for the 3D page of a bundle"),
        (("--racks", "absent.csv", "--bundle", "b.zip"), "absent.csv cannot be read"),
    ],
)
def test_racks_that_cannot_be_meant_are_refused_before_anything_is_read(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hang", str(tmp_path), *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("b.zip").exists()


@pytest.mark.parametrize("at", [30, 200, -40])
def test_a_damaged_bundle_is_refused_in_a_sentence(
    scene: Scene, at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_scene(tmp_path / "store", scene.looks())
    path = tmp_path / "b.zip"
    bundle(path, diagnose_with_graph(store, store.attempt()), opened=(store, store.attempt()))
    content = bytearray(path.read_bytes())
    content[at : at + 20] = b"\xff" * 20
    path.write_bytes(content)
    assert main(["hang", str(path)]) in (1, 2)
    error = capsys.readouterr().err
    assert str(path) in error
    assert "Traceback" not in error


@pytest.fixture(scope="module")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("small")
    sources = sort_paths([absent_member(range(4), 2).write(folder / "dumps")])
    write_bundle(folder / "b.zip", diagnose_paths(sources), sources=sources)
    return (folder / "b.zip").read_bytes()


@hypothesis_settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_truncation_or_flip_of_a_bundle_is_a_sentence_or_a_verdict(
    small_bundle: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(small_bundle)
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(4, len(content) - 1)) :]
    else:
        at = data.draw(st.one_of(st.integers(4, len(content) - 1), st.integers(len(content) - 900, len(content) - 1)))
        content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "b.zip"
    path.write_bytes(content)
    with contextlib.suppress(MegascopeError), unpacked([path]) as given_paths:
        assert isinstance(diagnose_paths(sort_paths(given_paths.paths)), Judged)


def test_a_verdict_without_a_look_and_a_place_that_cannot_be_written(scene: Scene, tmp_path: Path) -> None:
    store = write_scene(tmp_path / "store", scene.looks(), exit_reason="finished")
    judged = diagnose_with_graph(store, store.attempt())
    assert isinstance(judged, Judged)
    bundle(tmp_path / "b.zip", judged)
    assert json.loads(read(tmp_path / "b.zip")["verdict.json"])["verdict"] == "finished"
    with pytest.raises(MegascopeError, match="cannot be written"):
        bundle(tmp_path / "none" / "b.zip", judged)
