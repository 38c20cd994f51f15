"""Who diagnoses a stall and tells of it: one host, another one where that is gone, and nobody is left untold."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.alarms.rules import AlarmSettings
from megascope.collectors.alarms.verdict_alarms import read_verdict
from megascope.collectors.incidents import responding
from megascope.collectors.incidents.incidents import Incident
from megascope.collectors.incidents.question import Answer
from megascope.collectors.incidents.responding import Responder, alarm_of_verdict, sentence_of
from megascope.collectors.storage.shared_claim import SharedClaim
from megascope.profiler.host import HOST_VARIABLE
from support.commands import wait_for

SECOND = 10**9
VERDICT: dict[str, Any] = {
    "run": "job", "attempt": 0, "verdict": "hang", "sentence": "Rank 5 is stuck.",
    "culprits": [{"kind": "host-stuck", "ranks": [5], "hosts": ["b"]}],
}  # fmt: skip


class Slow:
    """A diagnosis that takes as long as the test wants."""

    def __init__(self, *_: object) -> None:
        self.is_busy = False
        self.answer: Answer | None = None
        self.starts = self.prepared = self.rests = 0

    def prepare(self, *_: object) -> None:
        self.prepared += 1

    def rest(self) -> None:
        self.rests += 1

    def start(self, *_: object) -> None:
        self.is_busy = True
        self.starts += 1

    def poll(self) -> Answer | None:
        answer, self.answer = self.answer, None
        if answer is not None:
            self.is_busy = False
        return answer

    def close(self) -> None:
        self.is_busy = False


class Host:
    """A host that has noticed the stall; ``seconds`` is the clock of all."""

    def __init__(
        self, root: Path, name: str, environment: pytest.MonkeyPatch, command: str, clock: list[float]
    ) -> None:
        environment.setenv(HOST_VARIABLE, name)
        self.clock, self.diagnoser = clock, Slow()
        settings = AlarmSettings(command, pause_s=0.05, gather_s=0.0, retry_for_s=0.3)
        self.responder = Responder(root, "job", 0, settings)
        self.responder._diagnoser = self.diagnoser  # type: ignore[assignment]
        self.incident = Incident(f"job/0/{name}/stalled/0", "stalled", 0, snapshots=2)

    def poll(self) -> None:
        self.responder.poll([self.incident], [], int(self.clock[0] * SECOND))

    def judge(self, verdict: dict[str, Any] = VERDICT) -> None:
        self.diagnoser.answer = Answer(verdict, None, 1.0, json.dumps(verdict))
        self.poll()

    def outcomes(self) -> list[str]:
        self.poll()
        return [str(one["outcome"]) for one in self.incident.actions if one["action"] == "alarm"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of all hosts, set by hand."""
    now = [1000.0]

    class Claim(SharedClaim):
        def __init__(self, folder: Path, name: str, holder: str) -> None:
            super().__init__(folder, name, holder, clock=lambda: now[0])

    monkeypatch.setattr("megascope.collectors.incidents.diagnosing.SharedClaim", Claim)
    monkeypatch.setattr(responding, "CLAIM_LOOK_S", 0.0)
    return now


def advance(clock: list[float], seconds: float, *hosts: Host) -> None:
    """Let time pass, in the agents' looks."""
    for _ in range(round(seconds / 0.5)):
        clock[0] += 0.5
        for host in hosts:
            host.poll()


def two(root: Path, environment: pytest.MonkeyPatch, clock: list[float], *commands: str) -> tuple[Host, Host]:
    first, second = (
        Host(root, name, environment, command, clock) for name, command in zip("ab", commands, strict=True)
    )
    return first, second


def test_while_one_host_diagnoses_for_minutes_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    first, second = two(tmp_path, monkeypatch, clock, "true", "true")
    advance(clock, 180, first, second)
    assert (first.diagnoser.starts, second.diagnoser.starts) == (1, 0)
    first.judge()
    advance(clock, 180, first, second)
    assert (first.diagnoser.starts, second.diagnoser.starts) == (1, 0), "it is judged, and stays so"


def test_who_will_diagnose_prepares_for_it_and_drops_that_where_the_job_moves_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    first, second = two(tmp_path, monkeypatch, clock, "true", "true")
    for host in (first, second):
        host.incident.snapshots = 1
    advance(clock, 1, first, second)
    assert first.diagnoser.prepared > 0
    assert second.diagnoser.prepared == first.diagnoser.starts == first.diagnoser.rests == 0
    first.incident.snapshots = 2
    advance(clock, 1, first)
    assert (first.diagnoser.starts, first.diagnoser.rests) == (1, 0)
    first.incident.closed_ns = 1
    advance(clock, 0.5, first)
    assert first.diagnoser.rests == 1


def test_a_host_that_died_while_it_diagnosed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    out = tmp_path / "out"
    first, second = two(tmp_path / "store", monkeypatch, clock, "true", f"cat > {out}")
    advance(clock, 5, first, second)
    advance(clock, 25, second)
    assert second.diagnoser.starts == 0
    advance(clock, 10, second)
    assert (first.diagnoser.starts, second.diagnoser.starts) == (1, 1)
    second.judge()
    wait_for(lambda: second.outcomes() == ["told"], 10, "the alarm")
    assert json.loads(out.read_text())["ranks"] == [5]


def test_who_cannot_tell_lets_another_host_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two(tmp_path, monkeypatch, clock, "exit 7", "true")
    advance(clock, 2, first, second)
    with caplog.at_level(logging.WARNING):
        first.judge()
        wait_for(lambda: first.outcomes() == ["retrying", "failed"], 10, "that it was given up")
    assert "was not told: the alarm command ended with 7." in caplog.text
    advance(clock, 2, first, second)
    assert second.diagnoser.starts == 1
    second.judge()
    wait_for(lambda: second.outcomes() == ["told"], 10, "the alarm")


def test_an_agent_that_begins_anew_tells_what_the_one_before_had_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    out = tmp_path / "out"
    host = Host(tmp_path / "store", "a", monkeypatch, f"cat >> {out}", clock)
    host.incident.verdict = json.dumps(VERDICT)
    wait_for(lambda: host.outcomes() == ["told"], 10, "the alarm")
    again = Host(tmp_path / "store", "a", monkeypatch, f"cat >> {out}", clock)
    again.incident.verdict = json.dumps(VERDICT)
    wait_for(lambda: again.outcomes() == ["duplicate"], 10, "that it was told")
    assert (host.diagnoser.starts, again.diagnoser.starts) == (0, 0)
    assert json.loads(out.read_text())["sentence"] == "Rank 5 is stuck."


def test_a_verdict_that_was_not_firm_is_asked_for_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    host = Host(tmp_path, "a", monkeypatch, "true", clock)
    host.incident.verdict = json.dumps({**VERDICT, "verdict": "slow"})
    advance(clock, 2, host)
    assert host.diagnoser.starts == 1


def death(rank: int, moment_s: float) -> dict[str, Any]:
    return {"action": "noticed-death", "moment_ns": int(moment_s * SECOND), "rank": rank, "state": "gone"}


def test_ranks_of_a_host_that_die_one_after_the_other_are_one_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    out = tmp_path / "out"
    host = Host(tmp_path / "store", "a", monkeypatch, f"cat >> {out}; echo >> {out}", clock)
    host.incident = Incident("job/0/a/rank-died/0", "rank-died", 0)
    for rank in range(8):
        host.incident.actions.append(death(rank, clock[0]))
        advance(clock, 0.5, host)
    host.incident.actions.append({**death(0, clock[0]), "rank": None})
    advance(clock, 2, host)
    wait_for(lambda: host.outcomes() == ["told"], 10, "the alarm")
    host.incident.actions.append(death(9, clock[0]))
    advance(clock, 10, host)
    (value,) = map(json.loads, out.read_text().splitlines())
    assert (value["kind"], value["ranks"], value["hosts"]) == ("rank-died", list(range(8)), ["a"])
    assert value["sentence"] == (
        "Ranks 0, 1, 2, 3, 4, 5, 6, 7 on a ended without a goodbye (gone), run job, attempt 0."
    )


@pytest.mark.parametrize(
    ("culprit", "ranks", "hosts", "sentence"),
    [
        ({"kind": "dead", "ranks": None, "hosts": None}, (), (), "hang (dead: ?)"),
        ({"kind": "dead", "ranks": [3, None], "hosts": [None]}, (3,), (), "hang (dead: ranks 3)"),
        ({"kind": None, "ranks": [], "hosts": ["a", None]}, (), ("a",), "hang (somebody: a)"),
        ({}, (), (), "hang (somebody: ?)"),
        (None, (), (), "hang"),
    ],
)
def test_a_verdict_with_holes_is_told_without_them(
    culprit: object, ranks: tuple[int, ...], hosts: tuple[str, ...], sentence: str
) -> None:
    verdict = {"run": "job", "attempt": 0, "verdict": "hang", "culprits": [culprit], "abstained": None}
    alarm = alarm_of_verdict(verdict, 1)
    assert (alarm.ranks, alarm.hosts) == (ranks, hosts)
    assert sentence_of(verdict) == f"Run job, attempt 0: {sentence}"


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"run": "a", "attempt": null, "verdict": "hang"}', 7])
def test_what_is_no_verdict(text: object) -> None:
    assert read_verdict(text) is None
    assert read_verdict(json.dumps(VERDICT)) == VERDICT
