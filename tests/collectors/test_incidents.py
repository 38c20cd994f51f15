"""When standing still is a stall, and what is done about one: the verdict, the alarm, the close."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.cli import main
from megascope.collectors import patience
from megascope.collectors.agent.agent import Agent
from megascope.collectors.drains.run import HASTE_S
from megascope.collectors.incidents.diagnosing import Diagnoser
from megascope.collectors.incidents.incidents import MOST_ACTIONS, SNAPSHOT_GAP_S, Incident
from megascope.collectors.incidents.question import read_answer
from megascope.collectors.incidents.responding import alarm_of_verdict, sentence_of
from megascope.profiler.errors import MegascopeError
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support import stuck_rank
from support.collecting import collective, read_table
from support.commands import wait_for
from support.processes import Processes

Open = Callable[..., Recorder]
STALL_S = 0.3


def warm(rank: Recorder, watcher: Agent, *, until: int = 5) -> None:
    """A job that is past its first steps."""
    for step in range(until):
        rank.step(step)
        watcher.poll()


def rest(watcher: Agent, seconds: float) -> list[str]:
    """Let time pass; the kinds of the incidents that were opened."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
        watcher.poll()
    return [one.kind for run in watcher.runs.values() for each in run.attempts.values() for one in each.incidents]


@pytest.mark.parametrize("kind", [SegmentKind.CHECKPOINT, SegmentKind.EVAL, SegmentKind.COMPILE])
def test_slow_work_gets_more_time_but_not_for_ever(
    recorder: Open, agent: Callable[..., Agent], kind: SegmentKind
) -> None:
    rank, watcher = recorder(), agent(stall_s=STALL_S)
    warm(rank, watcher)
    rank.begin(rank.segment("work", kind))
    assert rest(watcher, 3 * STALL_S) == []
    assert rest(watcher, 4 * STALL_S) == ["stalled"]


def test_loading_data_gets_somewhat_more(recorder: Open, agent: Callable[..., Agent]) -> None:
    rank, watcher = recorder(), agent(stall_s=2 * STALL_S)
    warm(rank, watcher)
    rank.begin(rank.segment("load", SegmentKind.DATA))
    assert rest(watcher, 3 * STALL_S) == []
    assert rest(watcher, 4 * STALL_S) == ["stalled"]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_all_ranks_do_by_themselves_is_no_stall_however_long_it_takes(
    recorder: Open, agent: Callable[..., Agent], is_first: bool
) -> None:
    """The first step of all, or an evaluation: far longer than slow work of a single rank is given."""
    ranks, watcher = [recorder(number, 2) for number in range(2)], agent(stall_s=STALL_S)
    for step in range(0 if is_first else 5):
        for rank in ranks:
            rank.step(step)
        watcher.poll()
    for rank in ranks:
        rank.begin(rank.segment("work", SegmentKind.COMPUTE if is_first else SegmentKind.EVAL))
    assert rest(watcher, 9 * STALL_S) == []


def test_other_work_does_not(recorder: Open, agent: Callable[..., Agent]) -> None:
    rank, watcher = recorder(), agent(stall_s=STALL_S)
    warm(rank, watcher)
    rank.begin(rank.segment("forward"))
    assert rest(watcher, 3 * STALL_S) == ["stalled"]


def test_a_job_that_starts_gets_more_time(recorder: Open, agent: Callable[..., Agent]) -> None:
    rank, watcher = recorder(), agent(stall_s=STALL_S)
    rank.step(0)
    rank.begin(rank.segment("forward"))
    assert rest(watcher, 3 * STALL_S) == []
    assert rest(watcher, 4 * STALL_S) == ["stalled"]


def test_the_jobs_own_steps_are_the_yardstick(recorder: Open, agent: Callable[..., Agent]) -> None:
    rank, watcher = recorder(), agent(stall_s=0.1)
    for step in range(6):
        rank.step(step)
        rest(watcher, 0.25)
    assert rest(watcher, 0.0) == []
    rank.begin(rank.segment("forward"))
    assert rest(watcher, 0.5) == []
    assert rest(watcher, 0.6) == ["stalled"]


def test_a_rest_that_ended_by_itself_is_usual_from_then_on(recorder: Open, agent: Callable[..., Agent]) -> None:
    rank, watcher = recorder(), agent(stall_s=0.3)
    warm(rank, watcher)
    work = rank.begin(rank.segment("snapshot_upload", SegmentKind.HOST))
    assert rest(watcher, 0.8) == ["stalled"]
    rank.end(work)
    assert rest(watcher, 0.1) == ["stalled"]
    rank.begin(rank.segment("snapshot_upload", SegmentKind.HOST))
    assert rest(watcher, 0.9) == ["stalled"], "it takes so long every time"
    assert rest(watcher, 1.2) == ["stalled", "stalled"]


def test_a_stall_that_ends_by_itself_says_so(recorder: Open, agent: Callable[..., Agent], store_root: Path) -> None:
    rank, watcher = recorder(world_size=2), agent(stall_s=STALL_S)
    warm(rank, watcher)
    stuck = collective(rank, 1, wait=False)
    assert rest(watcher, 3 * STALL_S) == ["stalled"]
    rank.end_async(stuck)
    watcher.poll(flush=True)
    (incident,) = read_table(store_root, "incidents")
    actions = [one["action"] for one in json.loads(incident["actions"])]
    assert (actions[0], actions[-1]) == ("stood-still", "moved-again")
    assert incident["closed_ns"] > incident["opened_ns"]


def test_the_second_snapshot_is_late_enough_for_a_firm_verdict() -> None:
    assert patience.STALL_S + SNAPSHOT_GAP_S > patience.STUCK_S


def test_what_a_verdict_is_read_from_is_committed_at_once_and_so_is_the_verdict(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.collectors.drains.attempt.SNAPSHOT_GAP_S", 0.1)
    monkeypatch.setattr("megascope.collectors.incidents.incidents.JUDGED_WITHIN_NS", 600 * 10**9)
    rank, watcher = recorder(), agent(stall_s=STALL_S, flush_s=600.0, heartbeat_s=600.0, poll_s=5.0)
    warm(rank, watcher)
    rank.begin(rank.segment("forward"))
    (run,) = watcher.runs.values()
    assert run.pause_s > 5
    assert rest(watcher, 3 * STALL_S) == ["stalled"]
    assert run.pause_s == HASTE_S, "it is to be judged soon"
    (incident,) = [one for each in run.attempts.values() for one in each.incidents]
    while incident.snapshots < 2:
        rest(watcher, 0.1)
    looks = [one["moment_ns"] for one in incident.actions if one["action"] == "snapshot"]
    assert {one["snapshot"] for one in read_table(store_root, "in_flight")} == {1, 2}
    assert max(one["moment_ns"] for one in read_table(store_root, "heartbeats")) >= looks[1]
    incident.verdict = "{}"
    watcher.poll()
    assert [one["verdict"] for one in read_table(store_root, "incidents")] == ["{}"]
    assert run.pause_s > 5


@pytest.mark.timeout(90)
def test_within_seconds_of_a_stall_the_store_has_the_verdict_and_somebody_was_told(
    processes: Processes, spool: Path, store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is stopped, the other waits for it in a collective: the agent finds the one that is to blame."""
    out = tmp_path / "alarm.json"
    monkeypatch.setenv("MEGASCOPE_ALARM_COMMAND", f"cat > {out}.tmp && mv {out}.tmp {out}")
    ranks = [stuck_rank.start(spool, number, 2, reason) for number, reason in enumerate(("collective", "idle"))]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        ranks[1].send_signal(signal.SIGSTOP)
        processes.agent(heartbeat_s=0.25, stall_s=0.5, idle_exit_s=None)
        alarm = json.loads(wait_for(lambda: out.exists() and out.read_text(), 45, "an alarm"))
        judged = wait_for(lambda: _judged(store_root, "hang"), 20, "a verdict in the store")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(timeout=10)
            assert rank.stdout is not None
            rank.stdout.close()
    assert (alarm["kind"], alarm["ranks"], alarm["severity"]) == ("hang", [1], "high")
    verdict = json.loads(judged["verdict"])
    assert [(one["kind"], one["ranks"]) for one in verdict["culprits"]] == [("host-stuck", [1])]
    assert any(one["action"] == "diagnosed" and one["verdict"] == "hang" for one in json.loads(judged["actions"]))


@pytest.mark.timeout(120)
def test_an_alarm_that_an_ended_agent_could_not_tell_is_told_by_a_watch(
    processes: Processes, spool: Path, store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is killed while the alarm's target is down; the agent drains it, and ends before that is back."""
    up, out = tmp_path / "up", tmp_path / "alarm.json"
    monkeypatch.setenv("MEGASCOPE_ALARM_COMMAND", f"test -e {up} && cat > {out}")
    rank = stuck_rank.start(spool, 0, 1, "idle")
    assert rank.stdout is not None
    with rank.stdout:
        assert rank.stdout.readline() == "ready\n"
        rank.kill()
        rank.wait(timeout=10)
    agent = processes.agent(heartbeat_s=0.25, idle_exit_s=0.5)
    assert agent.wait(timeout=60) == 0
    assert not list(spool.rglob("*.box")), "all was drained"
    monkeypatch.setattr("megascope.collectors.alarms.alarms.LEFT_AFTER_S", 0.0)
    up.touch()
    assert main(["watch", str(store_root), "--once"]) == 0
    alarm = json.loads(out.read_text())
    assert (alarm["kind"], alarm["ranks"]) == ("rank-died", [0])


def _judged(store_root: Path, state: str) -> dict[str, Any] | None:
    with contextlib.suppress(MegascopeError):
        for row in read_table(store_root, "incidents"):
            if row["verdict"] and json.loads(row["verdict"])["verdict"] == state:
                return row
    return None


def test_a_diagnosis_that_fails_says_why(tmp_path: Path) -> None:
    diagnoser = Diagnoser(tmp_path / "no store")
    assert diagnoser.start("run", 0) is None
    assert diagnoser.start("run", 0) == "a diagnosis is under way already"
    answer = wait_for(diagnoser.poll, 30, "an answer")
    assert answer.verdict is None
    assert "hang gave no verdict: megascope: " in answer.problem
    assert not diagnoser.is_busy


def test_a_child_that_waits_reads_nothing_before_it_is_asked(tmp_path: Path) -> None:
    diagnoser = Diagnoser(tmp_path / "no store", timeout_s=0.0)
    diagnoser.prepare("run", 0)
    assert not diagnoser.is_busy
    assert diagnoser.poll() is None
    assert diagnoser.start("run", 0) is None
    answer = diagnoser.poll()
    assert answer is not None
    assert answer.problem == "hang gave no verdict within 0 s", "counted from the question on"
    patient = Diagnoser(tmp_path / "no store")
    patient.prepare("run", 0)
    patient.prepare("run", 0)
    assert patient.start("run", 0) is None
    answer = wait_for(patient.poll, 60, "an answer")
    assert "hang gave no verdict: megascope: " in answer.problem


def test_a_child_of_which_nothing_is_asked_is_ended(tmp_path: Path) -> None:
    diagnoser = Diagnoser(tmp_path / "no store")
    diagnoser.prepare("run", 0)
    assert diagnoser._ready is not None
    child = diagnoser._ready._child
    assert child is not None
    diagnoser.rest()
    assert child.poll() == -signal.SIGKILL
    assert diagnoser.poll() is None


def test_without_a_question_nothing_is_run() -> None:
    command = [sys.executable, "-P", "-m", "megascope.ready", "hang", "nowhere"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_diagnosis_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    diagnoser = Diagnoser(tmp_path / "no store", timeout_s=0.0)
    assert diagnoser.start("run", 0) is None
    answer = diagnoser.poll()
    assert answer is not None
    assert answer.problem == "hang gave no verdict within 0 s"


def test_an_answer_that_is_no_verdict() -> None:
    for out in ("", "no json", "[1]", "{}"):
        assert read_answer("hang", 0, out, "", 1.0).verdict is None
    assert read_answer("hang", 0, '{"verdict": "hang"}', "a warning", 1.0).verdict == {"verdict": "hang"}


def test_an_incident_never_grows_without_end() -> None:
    incident = Incident("i", "stalled", 0)
    for number in range(2 * MOST_ACTIONS):
        incident.note("diagnosis-failed", number)
    assert len(json.loads(incident.row()["actions"])) == MOST_ACTIONS


def test_a_verdict_as_an_alarm() -> None:
    verdict = {
        "run": "job", "attempt": 1, "verdict": "hang", "abstained": [],
        "culprits": [{"kind": "dead", "ranks": [3, 1], "hosts": ["a", "b"]}],
    }  # fmt: skip
    alarm = alarm_of_verdict(verdict, 5)
    assert (alarm.kind, alarm.ranks, alarm.hosts, alarm.severity) == ("hang", (1, 3), ("a", "b"), "high")
    assert alarm.sentence == "Run job, attempt 1: hang (dead: ranks 3, 1 on a, b)"
    assert sentence_of({**verdict, "sentence": "So it is."}) == "So it is."
