"""A supervised training on two hosts and a spare: it goes on through faults, and its losses stay the same bit by bit.

`benchmarks.faults` is the long form: every kind of fault.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fault_jobs import Ran, run_trial
from benchmarks.fault_trials import MIXED, STEPS, Trial, plan
from megascope.collectors.reading.store import Store
from megascope.trainer.launch import preload

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    preload()
    return run_trial(Trial("undisturbed"), tmp_path_factory.mktemp("undisturbed"), lambda line: None)


def named(name: str) -> Trial:
    return next(trial for trial in plan() if trial.name == name)


@pytest.mark.timeout(240)
def test_an_undisturbed_job_is_left_alone(undisturbed: Ran) -> None:
    assert undisturbed.report["outcome"] == "finished"
    assert (undisturbed.report["attempts"], undisturbed.report["fenced"]) == (1, [])
    assert sorted(undisturbed.losses) == list(range(STEPS[MIXED]))


@pytest.mark.timeout(240)
def test_a_killed_rank_costs_its_host_and_no_step(undisturbed: Ran, tmp_path: Path) -> None:
    ran = run_trial(named("kill"), tmp_path, lambda line: None)
    assert ran.report["outcome"] == "finished"
    assert ran.report["fenced"] == ["node-1"]
    (incident,) = [one for one in ran.report["incidents"] if one["decision"] is not None]
    assert (incident["kind"], incident["decision"]) == ("exited", "replace")
    assert [one["ranks"] for one in incident["culprits"]] == [[3]]
    assert ran.losses == undisturbed.losses
    with Store(tmp_path / "store") as store:
        rows = store.query("SELECT * FROM incidents WHERE kind = 'recovery-exited'").to_pylist()
        hosts = store.query("SELECT DISTINCT host FROM ranks WHERE attempt = 1 ORDER BY host").column(0).to_pylist()
    assert hosts == ["node-0", "node-2"]
    (row,) = rows
    assert row["closed_ns"] > row["opened_ns"]
    done = [one["action"] for one in json.loads(row["actions"])]
    assert done[0] == "noticed"
    assert {"asked-hang", "decided", "fenced", "restarting", "caught-up", "times"} <= set(done)
    assert row["verdict"] is not None
