"""The campaign of hangs itself: its trials can act, right and wrong are told apart, results and stores are kept."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hang_jobs import RUN, Job, acted_ns
from benchmarks.hang_keeping import Keeper
from benchmarks.hang_looks import Looks, incident, is_disturbed
from benchmarks.hang_trials import CHECKPOINT_EVERY, LAYOUTS, STEP, Trial, plan
from benchmarks.trainer_hangs import Campaign, chosen
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.trainer.config import load_config
from megascope.trainer.faults.kinds import FaultKind, parse_fault

SECOND = 10**9
HANG = Trial("pp2 dp2", "stop", "stop rank=1 segment=forward step=6", ("host-stuck",), (frozenset({1}),))


def verdict(state: str, kind: str = "host-stuck", *ranks: int) -> dict[str, Any]:
    culprits = [{"kind": kind, "ranks": list(ranks), "segment": "forward"}] if ranks else []
    return {"verdict": state, "culprits": culprits, "explained": 3, "victims": 3, "abstained": []}


def write_store(root: Path, **incident: Any) -> None:
    """A store of an attempt, with an incident if one is given."""
    with TableWriter(root, "test") as writer:
        writer.write("runs", RUN, 0, {"world_size": [4], "start_ns": [90 * SECOND]})
        if incident:
            writer.write("incidents", RUN, 0, {key: [value] for key, value in incident.items()})
        writer.commit()


@pytest.mark.parametrize("trial", list(plan()), ids=lambda trial: trial.case)
def test_each_trial_has_a_fault_that_can_act(trial: Trial, tmp_path: Path) -> None:
    config = load_config(None, Job(trial, tmp_path).flags())
    config.validate(config.topology().world_size)
    if trial.fault:
        fault = parse_fault(trial.fault)
        assert trial.is_harmless or set(fault.ranks) <= {rank for each in trial.culprits for rank in each}
        assert fault.kind is FaultKind.NO_RENDEZVOUS or fault.first_step in (STEP, STEP + 1, CHECKPOINT_EVERY)


def test_the_plan_has_every_kind_of_fault_that_hangs_a_job_in_both_layouts() -> None:
    trials = list(plan())
    assert len({trial.case for trial in trials}) == len(trials)
    for layout in list(LAYOUTS)[:2]:
        kinds = {trial.fault.partition(" ")[0] for trial in trials if trial.layout == layout}
        assert kinds == {"", *FaultKind} - {"slow-link", "slow-nic", "diverge"}


def test_words_choose_trials() -> None:
    assert [trial.case for trial in chosen(["pp4 dp2 NaN"])] == ["pp4 dp2 NaN"]
    assert len(chosen([])) == len(list(plan()))
    assert {trial.layout for trial in chosen(["stop in forward"])} == {"tp2 pp2 dp2", "pp4 dp2"}


def test_a_suspect_is_named_before_the_verdict_is_right() -> None:
    looks = Looks(HANG, fault_ns=100 * SECOND)
    assert not looks.take(verdict("running"), 102 * SECOND)
    assert not looks.take(verdict("slow", "host-stuck", 1), 109 * SECOND)
    assert looks.take(verdict("hang", "host-stuck", 1), 131 * SECOND)
    told = looks.told()
    assert (told["seconds_to_named"], told["seconds_to_verdict"], told["wrong_claims"]) == (9, 31, [])
    assert told["last_within_10_s"]["verdict"] == "slow"


@pytest.mark.parametrize(
    "wrong", [verdict("hang", "host-stuck", 2), verdict("hang", "host-stuck", 1, 2), verdict("crashed", "dead", 1)]
)
def test_others_or_another_kind_are_a_wrong_claim(wrong: dict[str, Any]) -> None:
    looks = Looks(HANG)
    assert not looks.take(wrong, 1)
    assert len(looks.wrong_claims) == 1


def test_of_a_harmless_fault_no_hang_may_be_claimed() -> None:
    looks = Looks(Trial("pp2 dp2", "slow", "slow rank=1 factor=6 from=6"))
    assert looks.take(verdict("slow", "host-stuck", 1), 1)
    assert not looks.take(verdict("hang", "host-stuck", 1), 2)
    assert len(looks.wrong_claims) == 1


def test_in_a_harmless_job_agents_open_no_incident(tmp_path: Path) -> None:
    looks = Looks(Trial("pp2 dp2", "none", ""))
    write_store(tmp_path)
    noticed = incident(tmp_path, None)
    assert noticed["incident"] is None
    assert not is_disturbed(looks, noticed)
    write_store(tmp_path, incident="a", opened_ns=106 * SECOND, kind="stalled", actions="[]")
    noticed = incident(tmp_path, None)
    assert noticed["incident"] == "stalled"
    assert is_disturbed(looks, noticed)
    looks.take(verdict("hang", "host-stuck", 1), 2)
    assert is_disturbed(looks, {"incident": None})


def test_the_incident_and_its_verdict_are_dated_by_the_fault(tmp_path: Path) -> None:
    actions = [
        {"action": "stood-still", "moment_ns": 106 * SECOND, "quiet_s": 6.2, "patience_s": 6.0},
        {"action": "diagnosed", "moment_ns": 112 * SECOND},
    ]
    write_store(
        tmp_path,
        incident="a",
        opened_ns=106 * SECOND,
        kind="stalled",
        actions=json.dumps(actions),
        verdict=json.dumps(verdict("hang", "host-stuck", 1)),
    )
    told = incident(tmp_path, 100 * SECOND)
    assert (told["incident"], told["seconds_to_incident"], told["seconds_to_agent_verdict"]) == ("stalled", 6, 12)
    assert told["patience_s"] == 6
    assert told["told_by_agent"] == {"verdict": "hang", "culprits": [["host-stuck", [1], "forward"]]}
    assert incident(tmp_path, 107 * SECOND)["seconds_to_incident"] is None


def test_a_fault_that_killed_its_agent_is_dated_by_the_spool(tmp_path: Path) -> None:
    assert acted_ns(tmp_path) is None
    spool = tmp_path / "spool-1" / "ab12" / RUN / "0"
    spool.mkdir(parents=True)
    (spool / "rank-00003.meta.jsonl").write_text('{"kind": "header"}\n')
    assert acted_ns(tmp_path) is None
    killed = spool / "rank-00004.meta.jsonl"
    killed.write_text('{"kind": "kill-host"}\n')
    assert acted_ns(tmp_path) == killed.stat().st_mtime_ns


def test_a_copy_is_made_when_it_is_due_and_can_be_asked(tmp_path: Path) -> None:
    root, kept = tmp_path / "store", tmp_path / "kept"
    write_store(root)
    (root / "left.tmp").write_text("half a file")
    keeper = Keeper(kept)
    keeper.look(root, time.time_ns())
    assert keeper.wants_more()
    assert not kept.exists()
    keeper.look(root, time.time_ns() - 11 * SECOND)
    assert not keeper.wants_more()
    assert [path.name for path in kept.iterdir()] == ["at-10"]
    assert not (kept / "at-10" / "left.tmp").exists()
    assert Store(kept / "at-10").attempt(RUN, 0).run == RUN
    assert not Keeper(None).wants_more()


def test_trials_that_have_a_result_are_not_run_again(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    trials = chosen(["NaN"])
    results.write_text("".join(json.dumps({"case": trial.case, "right": True}) + "\n" for trial in trials))
    given = argparse.Namespace(results=results, seconds=None, jobs=1, keep=None, limit=1.0)
    assert [one["case"] for one in Campaign(given).go(trials)] == [trial.case for trial in trials]
    given.seconds = 0.0  # no time for any
    assert [one["case"] for one in Campaign(given).go(chosen(["NaN", "kill host"]))] == [one.case for one in trials]
