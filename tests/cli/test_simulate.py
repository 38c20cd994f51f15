"""`megascope simulate`: a store that the other verbs open, what it says, and one sentence for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megascope.cli import main
from megascope.collectors.reading.store import Store
from megascope.commands.simulate import parse_spans
from megascope.profiler.errors import UsageError

SMALL = ("--layout", "tp=2,pp=2,dp=4", "--steps", "40", "--microbatches", "4", "--model.layers", "4")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_store_opens_with_the_other_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "store")
    code, out, err = run(capsys, "simulate", store, *SMALL, "--fault", "slow-gpu:rank=5:factor=1.5:steps=10-", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["ranks"] == 16
    assert said["steps"] == 40
    assert said["spans_written"] == said["spans"] > 10_000
    code, out, _ = run(capsys, "stragglers", store, "--json")
    assert code == 0
    assert [culprit["ranks"] for culprit in json.loads(out)["culprits"]] == [[5]]
    code, out, _ = run(capsys, "hang", store, "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "finished")
    trace = tmp_path / "trace.json"
    code, _, _ = run(capsys, "timeline", store, "--steps", "30:31", "--ranks", "0-3", "--out", str(trace))
    assert code == 0
    assert len(json.loads(trace.read_text())["traceEvents"]) > 100
    code, out, _ = run(capsys, "sql", store, "SELECT count(*) AS n FROM rank_windows", "--json")
    assert (code, json.loads(out)["rows"][0][0] > 100) == (0, True)


def test_what_is_said_to_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--spans", "ranks=0-1,steps=5:", "--run", "night", "--skew-ms", "5", "--noise", "none")
    code, out, _ = run(capsys, "simulate", str(tmp_path / "store"), *SMALL, *arguments)
    assert code == 0
    assert out.startswith("run night: 16 ranks on 2 hosts, 40 steps, ")
    with Store(tmp_path / "store") as store:
        assert f" {len(store.read('events', store.attempt())):,} kept one by one" in out
        found = store.query("SELECT min(step) AS a, max(step) AS b, count(DISTINCT rank) AS n FROM events").to_pylist()
    assert found == [{"a": 5, "b": 39, "n": 2}]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--layout", "tp=8,pp"], "give axes and sizes"),
        (["--layout", "tp=2,pp=5"], "96 layers cannot be cut"),
        (["--layot", "tp=2"], "Unknown option"),
        (["--spans", "ranks=64"], "ranks 0 to 63"),
        (["--spans", "steps=100:"], "steps 0 to 99"),
        (["--spans", "everything"], "neither all nor none"),
        (["--spans", "ranks=5-3"], "end before they begin"),
        (["--spans", "ranks=1,5-3"], "end before they begin"),
        (["--spans", "steps=50:", "--fault", "dead:rank=1:step=50"], "hangs in step 50"),
        (["--skew-ms", "inf"], "skew_ms inf"),
        (["--drift-ppm", "inf"], "drift_ppm inf"),
        (["--heartbeat-s", "inf"], "Heartbeats every inf seconds"),
        (["--heartbeat-s", "nan"], "heartbeat-s"),
        (["--run", ""], "run name ''"),
        (["--run", ".."], "run name '..'"),
        (["--steps", "0"], "steps"),
        (["--fault", "slow-gpu:rank=64:factor=2"], "64"),
        (["--fault", "sloth:rank=1"], "no known kind"),
        (["--chunks", "2", "--microbatches", "6"], "no multiple of 4"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "simulate", str(tmp_path / "store"), *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_missing_store_and_a_missing_noise_file_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "simulate")
    assert (code, "Say where to write" in err) == (2, True)
    code, _, err = run(capsys, "simulate", str(tmp_path / "store"), "--noise", str(tmp_path / "none.parquet"))
    assert (code, "no noise file" in err) == (1, True)


def test_by_default_the_last_steps_before_a_hang_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = ("--layout", "tp=2,pp=2,dp=20", "--steps", "40", "--microbatches", "4", "--model.layers", "4")
    code, _, _ = run(capsys, "simulate", str(tmp_path / "store"), *layout, "--fault", "dead:rank=1:step=25")
    assert code == 0
    with Store(tmp_path / "store") as store:
        found = store.query("SELECT min(step) AS a, max(step) AS b FROM events").to_pylist()
    assert found == [{"a": 15, "b": 24}]


def test_settings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", "--settings")
    assert code == 0
    assert "--cluster.network-gbits" in out
    assert "--model.layers" in out


def test_spans_as_text() -> None:
    assert parse_spans("ranks=0-2,9,steps=5:7") == ((0, 1, 2, 9), (5, 7))
    assert parse_spans("ranks=3") == ((3,), None)
    assert parse_spans("steps=5:7") == (None, (5, 7))
    with pytest.raises(UsageError):
        parse_spans("rank=3")
