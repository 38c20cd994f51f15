"""The demo, as a new user runs it: it trains, it names the slowed rank and only it, and nothing recorded is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import DEMO_STEPS, Demo
from megascope.cli import main
from megascope.collectors.reading.store import Store
from megascope.collectors.tables.schemas import TABLES
from support.commands import interrupt, relatives, started, wait_for
from support.rollup_checks import check_rollups

pytestmark = pytest.mark.alone

FIRST_SLOW_STEP = 20


def verdict(verb: str, store: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main([verb, str(store), "--json"]) == 0
    loaded: dict[str, Any] = json.loads(capsys.readouterr().out)
    return loaded


def test_the_demo_names_the_slowed_rank_and_only_it(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict("stragglers", demo.store, capsys)
    assert found["verdict"] == "findings"
    (culprit,) = found["culprits"]
    assert (culprit["ranks"], culprit["segment"], culprit["kind"]) == ([5], "forward", "rank")
    assert 1.25 < culprit["ratio"] < 1.8
    assert abs(culprit["steps"][0] - FIRST_SLOW_STEP) <= 4
    assert culprit["steps"][1] >= DEMO_STEPS - 4
    assert "Rank 5" in demo.process.stdout


def test_the_evidence_can_be_asked_for_again(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    (culprit,) = verdict("stragglers", demo.store, capsys)["culprits"]
    assert culprit["evidence"]
    for evidence in culprit["evidence"]:
        assert main(["sql", str(demo.store), evidence["sql"], "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["rows"][0][0] == pytest.approx(evidence["value"], rel=1e-6)


def test_it_prints_progress_and_learns(demo: Demo) -> None:
    lines = [line for line in demo.process.stdout.splitlines() if line.startswith("step ") and "tokens/s" in line]
    losses = [float(line.split("loss ")[1].split()[0]) for line in lines]
    assert len(losses) == DEMO_STEPS // 10
    assert losses[-1] < losses[0] - 0.5
    assert all("MFU n/a" in line for line in lines)


def test_nothing_that_was_recorded_is_missing_in_the_store(demo: Demo) -> None:
    store = Store(demo.store)
    last = store.query(
        "select rank, max(spans) as spans, max(lost_spans) as lost from heartbeats group by rank order by rank"
    ).to_pylist()
    stored = store.query("select rank, count(*) as n from events group by rank order by rank").to_pylist()
    assert [row["lost"] for row in last] == [0] * 8
    assert [row["n"] for row in stored] == [row["spans"] for row in last]
    per_step = store.query("select rank, count(*) as n from events where step = 30 group by rank").to_pylist()
    assert all(row["n"] >= 60 for row in per_step)
    assert len(per_step) == 8


def test_every_table_of_the_contract_has_rows_or_a_reason(demo: Demo) -> None:
    store = Store(demo.store)
    quiet = {"in_flight", "incidents"}  # nothing went wrong
    assert set(store.tables()) >= set(TABLES) - quiet
    check_rollups(store, store.attempt())
    (run,) = store.query("select * from runs").to_pylist()
    assert json.loads(run["layout"]) == {"pp": 2, "dp": 2, "tp": 2}
    assert (run["world_size"], run["exit_reason"]) == (8, "finished")
    assert run["start_ns"] < run["end_ns"]
    steps = store.query("select count(*) as n, count(loss) as losses, count(mfu) as mfu from steps").to_pylist()
    assert (steps[0]["n"], steps[0]["mfu"]) == (8 * DEMO_STEPS, 0)
    assert steps[0]["losses"] >= DEMO_STEPS
    (fault,) = store.query("select * from faults").to_pylist()
    assert (fault["kind"], fault["ranks"], fault["factor"], fault["first_step"]) == ("slow", [5], 1.5, FIRST_SLOW_STEP)


def test_the_schedule_is_what_ran(demo: Demo) -> None:
    store = Store(demo.store)
    planned = store.query(
        "select stage, chunk, microbatch, action from schedule where action in ('forward', 'backward')"
    ).to_pylist()
    assert len(planned) == 2 * 2 * 4 * 2  # stages x chunks x micro-batches x directions
    ran = store.query(
        "select stage, chunk, microbatch, segment_name as action from spans"
        " where step = 30 and segment_name in ('forward', 'backward')"
    ).to_pylist()
    key = ("stage", "chunk", "microbatch", "action")
    assert sorted(tuple(row[k] for k in key) for row in ran) == sorted(
        tuple(row[k] for k in key) for row in planned for _ in range(4)
    )


def test_a_finished_run_does_not_hang(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict("hang", demo.store, capsys)
    assert (found["verdict"], found["culprits"], found["missing"]) == ("finished", [], [])


def test_no_process_and_no_black_box_is_left(demo: Demo) -> None:
    assert relatives(demo.folder) == []
    assert list((demo.folder / "spool").rglob("*.box")) == []


def test_ctrl_c_ends_all_children_and_saves_what_was_recorded(tmp_path: Path) -> None:
    with started(tmp_path, "demo", "--no-serve") as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("step "):
                break
        interrupt(child)
        assert child.wait(60) == 130
        wait_for(lambda: not relatives(tmp_path), 30, "the end of all children")
    (path,) = tmp_path.glob("runs/*/store")
    store = Store(path)
    assert store.attempt().exit_reason == "interrupted"
    assert store.query("select count(distinct rank) as n from events").to_pylist() == [{"n": 8}]
