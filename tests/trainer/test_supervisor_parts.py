"""The supervisor's parts: checks, verdicts read, its rows in the store, and the configuration it hands on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.goodput import StepSpan, goodput_of
from megascope.collectors.incidents.question import Question
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.errors import UsageError
from megascope.profiler.host import host_name
from megascope.trainer.config import CheckpointConfig, DataConfig, RecordConfig, load_config
from megascope.trainer.skipping import batch_of
from megascope.trainer.supervisor.accusing import (
    accused_by_hang,
    accused_by_stragglers,
    network_signs,
    says_not_finite,
    says_storage,
)
from megascope.trainer.supervisor.attempt import AttemptState
from megascope.trainer.supervisor.history import Fence, History, Restart
from megascope.trainer.supervisor.job import check_job
from megascope.trainer.supervisor.journal import Journal
from megascope.trainer.supervisor.observing import Observer
from megascope.trainer.supervisor.recovery import Recovery
from megascope.trainer.supervisor.reporting import as_json, lines
from megascope.trainer.supervisor.resolved import as_toml
from megascope.trainer.supervisor.supervisor import Outcome
from support.training import small_config


def hang(kind: str, *, statement: str = "", verdict: str = "hang", **more: Any) -> dict[str, Any]:
    evidence = [{"statement": statement, "value": None, "peers": None, "table": "incidents", "sql": ""}]
    culprit = {"ranks": [3], "hosts": ["node-1"], "confidence": 0.9, "kind": kind, "segment": "forward"}
    return {"verdict": verdict, "culprits": [{**culprit, "evidence": evidence, **more}]}


@pytest.mark.parametrize(
    ("kind", "blames"),
    [("dead", True), ("host-stuck", True), ("device-stuck", True), ("network", True), ("exception", False),
     ("mismatch", False), ("missing-call", False), ("order-inversion", False), ("init", False)],
)  # fmt: skip
def test_a_kind_of_culprit_blames_the_host_or_the_program(kind: str, blames: bool) -> None:
    (accused,) = accused_by_hang(hang(kind))
    assert (accused.host, accused.confidence, accused.blames_host) == ("node-1", 0.9, blames)
    assert accused.reason == f"{kind} on rank 3 in forward"


def test_an_exception_that_tells_of_broken_hardware_blames_the_host() -> None:
    (accused,) = accused_by_hang(hang("exception", statement="rank 3 raised: CUDA error: uncorrectable ECC error"))
    assert accused.blames_host
    (accused,) = accused_by_hang(hang("exception", statement="rank 3 raised: CUDA out of memory"))
    assert not accused.blames_host


@pytest.mark.parametrize("verdict", ["slow", "running", "inconclusive", "finished"])
def test_a_verdict_that_is_not_firm_accuses_nobody(verdict: str) -> None:
    assert accused_by_hang(hang("dead", verdict=verdict)) == ()


def test_a_loss_that_is_not_finite_is_read_off_the_evidence() -> None:
    text = "rank 3 raised NotFiniteError: The loss of step 7 is not finite (NaN or infinite): ..."
    assert says_not_finite(hang("exception", statement=text))
    assert not says_not_finite(hang("exception", statement="rank 3 raised ValueError"))
    assert not says_not_finite(hang("dead", statement=text))


def test_storage_that_fails_is_read_off_the_evidence() -> None:
    text = "rank 3 raised MegascopeError: Cannot write a checkpoint to /x (No space left on device): make room"
    assert says_storage(hang("exception", statement=text))
    assert not says_storage(hang("exception", statement="rank 3 raised ValueError"))
    assert not says_storage(hang("dead", statement=text))


def straggler(**more: Any) -> dict[str, Any]:
    culprit = {"ranks": [2, 3], "hosts": ["node-1"], "confidence": 0.9, "kind": "rank", "cause": "slow-compute"}
    return {"verdict": "findings", "culprits": [{**culprit, "ratio": 2.0, **more}]}


def test_a_straggler_accuses_its_host() -> None:
    (accused,) = accused_by_stragglers(straggler())
    assert (accused.host, accused.blames_host) == ("node-1", True)
    assert accused.reason == "slow-compute on ranks 2, 3 (2.00 times its peers)"


@pytest.mark.parametrize(
    "more",
    [{"kind": "stage"}, {"kind": "job"}, {"hosts": ["node-0", "node-1"]}, {"hosts": []}, {"cause": "uneven-input"}],
)
def test_what_is_not_one_hosts_doing_accuses_nobody(more: Mapping[str, Any]) -> None:
    assert accused_by_stragglers(straggler(**more)) == ()
    assert accused_by_stragglers({**straggler(), "verdict": "insufficient-evidence"}) == ()


def test_a_slow_network_of_one_host_accuses_it_and_a_slow_link_neither_end() -> None:
    card = straggler(ranks=[4], hosts=["node-4"], cause="network", ratio=12.0, segment="send_forward")
    (accused,) = accused_by_stragglers(card)
    assert (accused.host, accused.confidence, accused.blames_host) == ("node-4", 0.9, True)
    assert accused.reason == "network on rank 4 (12.00 times its peers)"
    assert network_signs(card) == []  # it is acted on, not only told
    whole = straggler(kind="host", ranks=[2, 3], hosts=["node-1", "node-1"], cause="network")
    assert [one.host for one in accused_by_stragglers(whole)] == ["node-1"]
    link = straggler(kind="link", ranks=[3, 4], hosts=["node-3", "node-4"], cause="network")
    assert accused_by_stragglers(link) == ()
    assert [sign.hosts for sign in network_signs(link)] == [("node-3", "node-4")]


def test_a_question_that_cannot_be_answered_says_why(tmp_path: Path) -> None:
    question = Question("hang", tmp_path / "none", "run", 0)
    deadline = time.monotonic() + 60
    while (answer := question.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert answer.verdict is None
    assert answer.problem is not None
    assert "does not exist" in answer.problem


def test_what_the_supervisor_did_is_in_the_store(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "run")
    record = journal.open(0, "exited", 1_000, 9)
    record.note("noticed", sentence="rank 3 was killed by signal 9")
    journal.write(0)
    record.verdict, record.times["restart_s"], record.closed_ns = hang("dead"), 2.5, 2_000
    journal.write(0)
    journal.close()
    with Store(tmp_path) as store:
        (row,) = store.read("incidents", store.attempt("run", 0)).to_pylist()
    assert (row["incident"], row["kind"]) == ("run/0/supervisor/exited/0", "exited")
    assert (row["opened_ns"], row["closed_ns"]) == (1_000, 2_000)
    assert json.loads(row["verdict"])["culprits"][0]["ranks"] == [3]
    actions = json.loads(row["actions"])
    assert [one["action"] for one in actions] == ["noticed", "times"]
    assert actions[1]["restart_s"] == 2.5


def test_a_store_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file", "run")
    journal.open(0, "exited", 1_000, 9)
    journal.write(0)
    assert "not in the store yet" in caplog.text


def write_steps(root: Path, attempt: int, steps: range, ranks: int = 2, *, loss: float = 3.0) -> None:
    with TableWriter(root, "test") as writer:
        places = [(rank, step) for rank in range(ranks) for step in steps]
        writer.write(
            "steps",
            "run",
            attempt,
            {
                "rank": [rank for rank, _ in places],
                "step": [step for _, step in places],
                "start_ns": [10**18 + step * 10**8 for _, step in places],
                "duration_ns": [10**8 for _ in places],
                "loss": [loss for _ in places],
            },
        )
        writer.write("runs", "run", attempt, {"world_size": [2], "start_ns": [10**18]}, replace=True)
        writer.commit()


def test_an_observer_takes_over_what_is_new_and_waits_for_all_ranks(tmp_path: Path) -> None:
    observer = Observer(tmp_path, "run")
    observer.begin(0)
    assert not observer.look()  # there is no store yet
    write_steps(tmp_path, 0, range(3))
    assert observer.look(), observer.problem
    assert observer.seen.last_step == 2
    assert observer.seen.end_ns == 10**18 + 3 * 10**8
    write_steps(tmp_path, 0, range(3, 5), ranks=1)
    observer.look()
    assert (observer.seen.last_step, observer.seen.furthest) == (2, 4)
    assert [step.step for step in observer.seen.steps] == [0, 1, 2]
    assert observer.seen.steps[0].by_rank_ns == {0: 10**8, 1: 10**8}
    good = observer.goodput(10**18 - 10**9, 10**18 + 10**9)
    assert good is not None
    assert (good.steps, good.total_s) == (5, 2.0)
    assert good.useful_s == pytest.approx(0.5)
    observer.close()


def test_a_recovery_is_over_when_the_furthest_step_is_reached_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "run")
    record = journal.open(0, "exited", 10**18, 4)
    record.noticed_ns = 10**18 + 10**9
    record.times["diagnosis_s"] = 1.0
    recovery, observer = Recovery(journal), Observer(tmp_path, "run")
    recovery.begin(record, 4)
    write_steps(tmp_path, 1, range(3, 4))
    observer.begin(1)
    observer.look()
    assert recovery.look(observer.seen) is None
    write_steps(tmp_path, 1, range(4, 6))
    observer.look()
    assert recovery.look(observer.seen) is record
    assert record.closed_ns == 10**18 + 6 * 10**8
    assert {"restart_s", "catch_up_s", "recovery_s"} <= record.times.keys()
    journal.close()
    observer.close()


def test_nodes_read_the_configuration_as_it_was(tmp_path: Path) -> None:
    config = small_config(pp=2, dp=2, fault=('slow rank=1 factor=1.5 segment=forward from="2"'[:30],))
    config = replace(
        config,
        checkpoint=CheckpointConfig(folder=tmp_path / 'a "b" ü', every=3),
        record=RecordConfig(store=tmp_path / "store", run="run"),
        data=DataConfig(limit_bytes=100, skip=(3, 7)),
    )
    path = tmp_path / "config.toml"
    path.write_text(as_toml(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("changes", "hosts", "sentence"),
    [
        ({}, 3, "4 ranks cannot be spread over 3 hosts"),
        ({"checkpoint": CheckpointConfig()}, 2, "needs checkpoints to restart from"),
        ({"checkpoint": CheckpointConfig(folder=Path("x"), every=1, resume=False)}, 2, "resume is false"),
        ({"record": RecordConfig(enabled=False)}, 2, "record.enabled is false"),
        ({"record": RecordConfig(spool=Path("x"))}, 2, "record.spool is set.*MEGASCOPE_SPOOL"),
    ],
)
def test_what_cannot_be_supervised_is_refused(changes: dict[str, Any], hosts: int, sentence: str) -> None:
    config = small_config(pp=2, dp=2, checkpoint=CheckpointConfig(folder=Path("x"), every=1))
    check_job(config, 2)
    with pytest.raises(UsageError, match=sentence):
        check_job(replace(config, **changes), hosts)


@given(st.sets(st.integers(0, 30)))
def test_batches_that_are_passed_over_are_used_by_no_step(skipped: set[int]) -> None:
    used = [batch_of(step, skipped) for step in range(40)]
    assert used == sorted(set(range(40 + len(skipped))) - skipped)[:40]


def test_a_host_may_have_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    system = host_name()
    monkeypatch.setenv("MEGASCOPE_HOST", "node-7")
    assert host_name() == "node-7"
    monkeypatch.setenv("MEGASCOPE_HOST", "a/b")
    assert host_name() == system


def test_an_attempt_knows_its_ranks_by_host() -> None:
    state = AttemptState(3, ("node-0", "node-2"), 2, 0)
    assert list(state.ranks_of("node-2")) == [2, 3]
    state.take("node-2", {"say": "ended", "attempt": 2, "codes": {"2": 1}, "said": "old"})
    assert state.codes == {}
    state.take("node-2", {"say": "ended", "attempt": 3, "codes": {"2": -9, "3": 0}, "said": "new"})
    assert (state.failed, state.is_still("node-2"), state.is_still("node-0")) == ({2: -9}, True, False)
    state.take("node-9", {"say": "lost"})
    assert state.lost == set()
    state.take("node-0", {"say": "lost"})
    assert state.is_still("node-0")
    assert not state.has_ended_well


def test_the_report_tells_what_was_done_and_why(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "run")
    record = journal.open(0, "exited", 1_000, 9)
    record.verdict = hang("dead")
    record.note("decided", decision="replace", why="node-1: dead on rank 3")
    record.note("fenced", host="node-1")
    record.times["recovery_s"] = 12.5
    history = History((Restart(1.0, 9),), (Fence("node-1", 1.0, "dead on rank 3"),))
    outcome = Outcome(True, "the job has finished", 2, history, [record], goodput_of([StepSpan(0, 0, 5.0)], 10.0))
    told = as_json("run", outcome)
    assert (told["outcome"], told["fenced"], told["restarts"]) == ("finished", ["node-1"], 1)
    (incident,) = told["incidents"]
    assert (incident["decision"], incident["fenced"], incident["recovery_s"]) == ("replace", ["node-1"], 12.5)
    assert incident["culprits"][0]["ranks"] == [3]
    text = "\n".join(lines("run", outcome))
    assert "run run: finished. The job has finished." in text
    assert "attempt 0, after step 9: exited, replace (recovery 12.5 s)" in text
    assert "goodput 50.0%: 5.0 s of 10.0 s" in text
