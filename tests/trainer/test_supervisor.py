"""A supervised training on two hosts and a spare: it goes on through faults, and its losses stay the same bit by bit.

`benchmarks.faults` is the long form: every kind of fault. Who is slow cannot be told for sure on a busy machine. So
here a GPU falls off the bus, as the kernel's log of its host tells: what is done is the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fault_draws import AT
from benchmarks.fault_jobs import Ran, run_trial
from benchmarks.fault_settings import SHORT
from benchmarks.fault_trials import LONGER, MIXED, STEPS, Trial, plan
from megascope.collectors.reading.store import Store
from megascope.trainer.launch import preload

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    preload()
    return run_trial(Trial("undisturbed"), tmp_path_factory.mktemp("undisturbed"), lambda line: None, SHORT)


def named(name: str) -> Trial:
    return next(trial for trial in plan() if trial.name == name)


@pytest.mark.timeout(240)
def test_an_undisturbed_job_is_left_alone(undisturbed: Ran) -> None:
    assert undisturbed.report["outcome"] == "finished"
    assert (undisturbed.report["attempts"], undisturbed.report["fenced"]) == (1, [])
    assert sorted(undisturbed.losses) == list(range(STEPS[MIXED]))


@pytest.mark.timeout(400)
def test_a_killed_rank_costs_its_host_and_no_step(undisturbed: Ran, tmp_path: Path) -> None:
    """With the settings of the verb, so that the host checks itself."""
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
    actions = json.loads(row["actions"])
    done = [one["action"] for one in actions]
    assert done[0] == "noticed"
    assert {"asked-hang", "self-check", "decided", "fenced", "restarting", "caught-up", "times"} <= set(done)
    (check,) = [one for one in actions if one["action"] == "self-check"]
    assert check["host"] == "node-1"
    assert check["passed"] is not None, check["report"]
    assert row["verdict"] is not None


@pytest.mark.timeout(500)
def test_a_host_that_fails_is_replaced_after_all_have_saved_and_no_step_is_lost(tmp_path: Path) -> None:
    preload()
    undisturbed = run_trial(Trial("undisturbed", layout=LONGER), tmp_path / "whole", lambda line: None, SHORT)
    ran = run_trial(named("xid"), tmp_path / "broken", lambda line: None, SHORT)
    assert (ran.report["outcome"], ran.report["fenced"]) == ("finished", ["node-1"])
    (incident,) = [one for one in ran.report["incidents"] if one["decision"] is not None]
    assert (incident["kind"], incident["decision"]) == ("device-error", "checkpoint-and-replace")
    assert "Xid 79" in incident["why"]
    assert ran.losses == undisturbed.losses
    with Store(tmp_path / "broken" / "store") as store:
        (row,) = store.query("SELECT actions FROM incidents WHERE kind = 'recovery-device-error'").to_pylist()
        made = store.query(
            "SELECT attempt, min(step) AS first, max(step) AS last FROM steps_all WHERE loss IS NOT NULL "
            "GROUP BY attempt ORDER BY attempt"
        ).to_pylist()
        hosts = store.query("SELECT DISTINCT host FROM ranks WHERE attempt = 1 ORDER BY host").column(0).to_pylist()
    (saved,) = [one["step"] for one in json.loads(row["actions"]) if one["action"] == "saved"]
    assert saved > AT
    assert [(one["attempt"], one["first"], one["last"]) for one in made] == [
        (0, 0, saved - 1),
        (1, saved, STEPS[LONGER] - 1),
    ]
    assert hosts == ["node-0", "node-2"]
