"""The supervisor from end to end with hosts that only pretend to train: what it decides becomes what is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megascope.trainer.supervisor import diagnosis
from megascope.trainer.supervisor.attempt import AttemptState
from megascope.trainer.supervisor.history import load_history, run_folder
from megascope.trainer.supervisor.hub import Hub, open_listener
from megascope.trainer.supervisor.job import Job, Patience
from megascope.trainer.supervisor.journal import Record
from megascope.trainer.supervisor.policy import Action, Decision
from megascope.trainer.supervisor.supervisor import Supervisor
from support.supervised import Host, World, finish, once, write_steps


def verdict(kind: str = "dead", confidence: float = 0.95, host: str = "node-1", **more: Any) -> dict[str, Any]:
    culprit = {"ranks": [3], "hosts": [host], "confidence": confidence, "kind": kind, "segment": None, "evidence": []}
    return {"verdict": "crashed", "culprits": [{**culprit, **more}]}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.timeout(60)
def test_a_job_that_ends_well_is_started_once(world: World) -> None:
    outcome = world.run(finish)
    assert (outcome.finished, outcome.attempts, outcome.records) == (True, 1, [])
    assert world.hosts["node-0"].started == [(0, (0, 1))]
    assert world.hosts["node-1"].started == [(0, (2, 3))]
    assert world.hosts["node-2"].started == []


@pytest.mark.timeout(60)
def test_the_culprits_host_is_fenced_and_its_ranks_go_to_the_spare(world: World) -> None:
    world.answer = verdict()
    write_steps(world.root, 0, 8)
    outcome = world.run(once(lambda host, ranks: host.end({3: -9}), "node-1"))
    assert (outcome.finished, outcome.attempts) == (True, 2)
    assert [fence.host for fence in outcome.history.fences] == ["node-1"]
    assert world.hosts["node-0"].started == [(0, (0, 1)), (1, (0, 1))]
    assert world.hosts["node-2"].started == [(1, (2, 3))]
    assert world.hosts["node-1"].heard == ["start", "stop", "check", "fence", "end"]
    (record,) = outcome.records
    assert (record.kind, record.step, record.attempt) == ("recovery-exited", 7, 0)
    done = list(world.actions())
    order = ["noticed", "asked-hang", "self-check", "decided", "fenced", "restarting"]
    assert [one for one in done if one in order] == order
    history = load_history(run_folder(world.root, "run") / "history.json")
    assert history == outcome.history
    assert history.restarts[0].step == 7


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_named", [True, False])
def test_a_second_host_that_fails_as_the_job_starts_again_is_recovered_too(world: World, is_named: bool) -> None:
    world.answer = verdict()

    def script(host: Host, attempt: int, ranks: Sequence[int]) -> None:
        if attempt > 1:
            finish(host, attempt, ranks)
        elif attempt == 0 and host.name == "node-1":
            host.end({3: -9})
        elif attempt == 1 and host.name == "node-0":
            world.answer = verdict(host="node-0", ranks=[0]) if is_named else None
            host.end({0: -9})

    write_steps(world.root, 0, 8)
    outcome = world.run(script, hosts=4)
    assert (outcome.finished, outcome.attempts) == (True, 3)
    assert [fence.host for fence in outcome.history.fences] == (["node-1", "node-0"] if is_named else ["node-1"])
    spare, other = sorted((world.hosts["node-2"], world.hosts["node-3"]), key=lambda host: -len(host.started))
    assert spare.started == [(1, (2, 3)), (2, (2, 3))]  # whichever spare had joined first
    assert (other if is_named else world.hosts["node-0"]).started[-1] == (2, (0, 1))
    first, second = outcome.records
    assert (first.attempt, second.attempt) == (0, 1)
    assert "not-caught-up" in [one["action"] for one in first.actions]


@pytest.mark.timeout(60)
def test_without_a_verdict_the_same_hosts_go_on(world: World) -> None:
    outcome = world.run(once(lambda host, ranks: host.end({3: -9}), "node-1"))
    assert (outcome.finished, outcome.attempts, outcome.history.fences) == (True, 2, ())
    assert world.hosts["node-1"].started == [(0, (2, 3)), (1, (2, 3))]
    assert "check" not in world.hosts["node-1"].heard


@pytest.mark.timeout(60)
def test_a_job_whose_ranks_have_been_ended_is_never_only_watched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Decision(Action.WATCH, "There is no spare: the job goes on.")
    monkeypatch.setattr("megascope.trainer.supervisor.responding.decide", lambda *_: watch)
    outcome = world.run(once(lambda host, ranks: host.end({3: -9}), "node-1"))
    assert (outcome.finished, outcome.attempts) == (True, 2)
    assert any(line.startswith("restart: There is no spare") for line in world.lines)


@pytest.mark.timeout(60)
def test_a_weak_verdict_fences_once_the_self_check_fails(world: World) -> None:
    world.answer = verdict(confidence=0.5)
    outcome = world.run(once(lambda host, ranks: host.end({3: -9}), "node-1"), check=False)
    assert [fence.host for fence in outcome.history.fences] == ["node-1"]


@pytest.mark.timeout(60)
def test_a_lost_host_is_replaced_and_may_come_back(world: World) -> None:
    outcome = world.run(once(lambda host, ranks: host.leave(), "node-1"))
    assert (outcome.finished, outcome.attempts, outcome.history.fences) == (True, 2, ())
    assert world.hosts["node-2"].started == [(1, (2, 3))]
    assert any("node-1 is lost" in line for line in world.lines)


@pytest.mark.timeout(60)
def test_without_a_spare_the_run_stops_and_says_why(world: World) -> None:
    world.answer = verdict()
    outcome = world.run(once(lambda host, ranks: host.end({3: -9}), "node-1"), hosts=2, check=None)
    assert not outcome.finished
    assert "node-1 has to be replaced, and 0 spares are left" in outcome.reason
    assert outcome.attempts == 1


@pytest.mark.timeout(60)
def test_a_job_that_fails_again_and_again_is_given_up(world: World) -> None:
    def fail(host: Host, attempt: int, ranks: Sequence[int]) -> None:
        if host.name == "node-0":
            host.end({0: 1})

    outcome = world.run(fail)
    assert (outcome.finished, outcome.attempts) == (False, 3)
    assert "failed 3 times in a row" in outcome.reason


@pytest.mark.timeout(60)
def test_ranks_that_refuse_the_configuration_are_not_started_again(world: World) -> None:
    outcome = world.run(lambda host, attempt, ranks: host.end(dict.fromkeys(ranks, 2), "rank 0: choose another"))
    assert (outcome.finished, outcome.attempts) == (False, 1)
    assert any("rank 0: choose another" in line for line in world.lines)


@pytest.mark.timeout(60)
def test_a_loss_that_is_not_finite_halts(world: World) -> None:
    told = [{"statement": "rank 3 raised NotFiniteError: The loss of step 7 is not finite"}]
    world.answer = verdict("exception", evidence=told)
    outcome = world.run(once(lambda host, ranks: host.end({3: 1}), "node-1"))
    assert not outcome.finished
    assert "last good state" in outcome.reason
    assert "understood" in list(world.actions())


@pytest.mark.timeout(60)
def test_a_fenced_host_stays_out_of_a_run_that_is_started_again(world: World) -> None:
    world.answer = verdict()
    world.run(once(lambda host, ranks: host.end({3: -9}), "node-1"))
    hub = Hub(open_listener("127.0.0.1", 0), "secret")
    job = Job(config=Path("c"), run="run", store=world.root, hosts=2, world_size=4, steps=100)
    Supervisor(job, hub, world.lines.append)
    assert hub.banned == {"node-1"}
    hub.close()


@pytest.mark.timeout(60)
def test_too_few_hosts_are_not_waited_for_for_ever(world: World) -> None:
    outcome = world.run(finish, hosts=1)
    assert not outcome.finished
    assert "1 of 2 hosts are there after 2 s" in outcome.reason


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("word", "waits"), [("slow", True), ("inconclusive", False)])
def test_a_job_that_is_only_slow_gets_the_patience_of_a_stall(
    world: World, word: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.answer = {"verdict": word, "culprits": []}
    job = Job(
        config=Path("c"), run="run", store=world.root, hosts=2, world_size=4, steps=100,
        patience=Patience(verdict_s=0.1, stall_s=1.5),
    )  # fmt: skip
    state, record, now = AttemptState(0, ("node-0", "node-1"), 2, 0), Record(0, "recovery-stalled", 0, 0), [0.0]
    monkeypatch.setattr(diagnosis, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def turn(seconds: float) -> None:
        now[0] += seconds

    assert diagnosis.ask_hang(job, state, record, turn, lambda: False) == world.answer
    assert (now[0] > 1.4) is waits
