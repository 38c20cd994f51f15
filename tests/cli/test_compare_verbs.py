"""`megascope mfu`, `stragglers --against` and `--fleet`: what they print, write and refuse, and ranges in UTC."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from megascope.cli import main
from megascope.collectors.reading.store import Store
from megascope.commands.other_run import find_other
from megascope.profiler.errors import UsageError
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.writing import simulate
from support.small_job import job_of
from support.span_store import FIRST_NS, meeting, write_spans

LAYOUT = {"pp": 2, "dp": 4, "tp": 2}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs; in the newer one a rank is slow in its second half."""
    root = tmp_path_factory.mktemp("verbs")
    simulate(job_of(layout=LAYOUT, chunks=1, steps=100, run="day", seed=1, start_ns=1_780_000_000 * 10**9), root)
    slow = [parse_fault("slow-gpu:rank=6:factor=1.4:steps=50-")]
    simulate(job_of(layout=LAYOUT, chunks=1, steps=100, run="night", seed=2), root, faults=slow)
    return root


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_mfu_as_text_json_and_csv(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "mfu", str(store))
    assert code == 0
    assert "DECLINED" in out
    path = tmp_path / "mfu.csv"
    code, out, err = run(capsys, "mfu", str(store), "--json", "--csv", str(path), "--bins", "5")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert (value["schema"], value["run"], value["verdict"]) == (1, "night", "declined")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(value["bins"])
    assert [float(row["step_ms"]) for row in rows] == [pytest.approx(one["step_ms"]) for one in value["bins"]]
    assert rows[-1]["largest_part"] == "backward"
    code, _, err = run(capsys, "mfu", str(store), "--csv", str(tmp_path / "none" / "mfu.csv"))
    assert (code, "give another --csv" in err) == (1, True)


def test_mfu_of_some_steps_or_of_a_time(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "mfu", str(store), "--steps", "20:49", "--json")
    value = json.loads(out)
    assert (value["bins"][0]["steps"][0], value["bins"][-1]["steps"][1], value["verdict"]) == (20, 49, "steady")
    moment = datetime.fromtimestamp(value["bins"][1]["start_ns"] / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    _, out, _ = run(capsys, "mfu", str(store), "--since", moment, "--steps", ":49", "--json")
    assert json.loads(out)["bins"][0]["steps"][0] in (value["bins"][1]["steps"][0], value["bins"][1]["steps"][0] + 1)
    code, _, err = run(capsys, "mfu", str(store), "--since", "2050-01-01")
    assert (code, "began then" in err) == (1, True)


def test_a_time_is_other_steps_in_each_attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last 20 steps of one attempt and the first of the next, which repeats some."""
    start_ns = 1_780_000_000 * 10**9
    settings = {"layout": LAYOUT, "chunks": 1, "steps": 60, "run": "r"}
    simulate(job_of(**settings, start_ns=start_ns), tmp_path)
    simulate(job_of(**settings, attempt=1, first_step=30, start_ns=start_ns + 3600 * 10**9), tmp_path)
    with Store(tmp_path) as opened:
        sql = "SELECT min(start_ns) AS ns FROM steps_all WHERE attempt = 0 AND step = 40"
        since = datetime.fromtimestamp(opened.query(sql)["ns"][0].as_py() / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    code, out, _ = run(capsys, "mfu", str(tmp_path), "--since", since, "--json")
    bins = json.loads(out)["bins"]
    first = {number: min(one["steps"][0] for one in bins if one["attempt"] == number) for number in (0, 1)}
    last = {number: max(one["steps"][1] for one in bins if one["attempt"] == number) for number in (0, 1)}
    assert (code, last) == (0, {0: 59, 1: 89})
    assert 40 <= first[0] <= 41  # not the union with those of the other attempt
    assert 30 <= first[1] <= 40


def test_a_trace_without_a_date_has_no_time_to_choose_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(job_of(layout=LAYOUT, chunks=1, steps=40, start_ns=0), tmp_path)
    for verb in ("mfu", "stragglers"):
        code, out, err = run(capsys, verb, str(tmp_path), "--until", "2030-01-01")
        assert (code, out) == (1, "")
        assert "has no date: give --steps" in err
    code, out, _ = run(capsys, "stragglers", str(tmp_path), "--fleet")
    assert (code, "1970" in out, "without a date" in out) == (0, False, True)


def test_stragglers_of_a_time(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(store) as opened:
        starts = opened.query(
            "SELECT step, min(start_ns) AS ns FROM steps WHERE step IN (40, 60) GROUP BY step ORDER BY step",
            attempt=opened.attempt(),
        )["ns"].to_pylist()
    early, late = (datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") for ns in starts)
    _, out, _ = run(capsys, "stragglers", str(store), "--until", early, "--json")
    assert json.loads(out)["culprits"] == []
    _, out, _ = run(capsys, "stragglers", str(store), "--since", late, "--json")
    (culprit,) = json.loads(out)["culprits"]
    assert culprit["ranks"] == [6]
    assert culprit["steps"][0] >= 50


def test_steps_and_a_time_that_have_nothing_in_common(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(store) as opened:
        start_ns = opened.attempt().start_ns
    assert start_ns is not None
    until = datetime.fromtimestamp(start_ns / 1e9 + 2, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    code, out, err = run(capsys, "stragglers", str(store), "--steps", "90:", "--until", until)
    assert (code, out) == (1, "")
    assert "none of them in --steps 90:" in err


def test_a_time_in_a_store_of_spans_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_spans(tmp_path, meeting(4, 40, lambda rank, step: 20.0), layout={"dp": 4}).close()
    moment = datetime.fromtimestamp(FIRST_NS / 1e9 + 20 * 0.2, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    code, out, _ = run(capsys, "mfu", str(tmp_path), "--since", moment, "--json")
    assert (code, json.loads(out)["bins"][0]["steps"][0]) == (0, 20)


def test_against_a_run_an_attempt_a_store_or_a_window(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for other in ("day", "day/0", f"{store}:day", f"{store}:day/0"):
        code, out, _ = run(capsys, "stragglers", str(store), "--steps", "50:", "--against", other, "--json")
        value = json.loads(out)
        assert (code, value["verdict"], value["then"]["run"]) == (0, "slower", "day")
        assert {tuple(one["ranks"]) for one in value["findings"]} == {(6,)}
    code, out, _ = run(capsys, "stragglers", str(store), "--steps", "50:", "--against-steps", "10:49")
    assert (code, "SLOWER: Rank 6 on node0003" in out) == (0, True)


def test_only_some_ranks_are_judged(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "stragglers", str(store), "--ranks", "0-1", "--json")
    found = json.loads(out)
    assert (code, found["slowdown"]) == (0, None)
    assert any("only some were asked for" in one["reason"] for one in found["abstained"])
    for more in ("--fleet", "--against-steps=0:3"):
        code, out, err = run(capsys, "stragglers", str(store), "--ranks", "0-1", more)
        assert (code, out) == (2, "")
        assert "--ranks is for the verdict alone" in err


def test_fleet_of_one_store_or_several(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "stragglers", str(store), "--fleet", "--also", str(store), "--json")
    value = json.loads(out)
    assert (code, value["schema"], len(value["attempts"])) == (0, 1, 2)
    assert [(one["host"], one["offender"]) for one in value["hosts"]] == [("node0003", False)]
    code, out, _ = run(capsys, "stragglers", str(store), "--fleet")
    assert (code, "Weeks (ISO, UTC)" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--against", "nowhere"], "no run of"),
        (["--against", "night"], "compared with itself"),
        (["--against", "{store}"], "compared with itself"),
        (["--against", "{store}/../{name}:night"], "compared with itself"),
        (["--against-steps", "a:b"], "--against-steps a:b is not"),
        (["--against-steps", "10:40"], "overlap"),
        (["--steps", "30:", "--against-steps", "10:40"], "overlap"),
        (["--against", "day/7"], "no attempt 7"),
        (["--fleet", "--steps", "3:4"], "leave out --steps"),
        (["--fleet", "--run", "day", "--against", "day"], "leave out --run, --against"),
        (["--also", "elsewhere"], "add --fleet"),
    ],
)
def test_wrong_usage_is_one_sentence(
    store: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [one.format(store=store, name=store.name) for one in arguments]
    code, out, err = run(capsys, "stragglers", str(store), *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_run_goes_before_a_folder_of_its_name(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "day").mkdir()
    monkeypatch.chdir(tmp_path)
    with Store(store) as opened:
        assert find_other("day", opened)[0] is opened
        with pytest.raises(UsageError, match="'week'"):
            find_other(f"{store}:week", opened)
