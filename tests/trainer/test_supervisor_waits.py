"""A supervisor waits for nothing too long: for hosts that cannot be used, a slow store, or when it is asked to end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megascope.trainer.supervisor import pinging, starting
from megascope.trainer.supervisor import supervisor as supervisor_module
from megascope.trainer.supervisor.attempt import AttemptState
from megascope.trainer.supervisor.hub import Hub, Node, open_listener
from megascope.trainer.supervisor.job import Job
from megascope.trainer.supervisor.observing import Observer
from megascope.trainer.supervisor.supervisor import Supervisor
from support.supervised import Host, Script, World, finish, once, write_steps


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.timeout(60)
def test_a_host_whose_ranks_cannot_be_ended_is_not_used_again(world: World) -> None:
    """Its agent is there and says that ranks still run: a spare takes the place, and the attempt starts."""
    outcome = world.run(once(lambda host, ranks: host.end({0: 1}), "node-0"), holds="node-1", patience={"stop_s": 0.3})
    assert (outcome.finished, outcome.attempts, outcome.history.fences) == (True, 2, ())
    assert world.hosts["node-2"].started == [(1, (2, 3))]
    assert world.hosts["node-1"].started == [(0, (2, 3))]
    assert any("the ranks of node-1 cannot be ended" in line for line in world.lines)


@pytest.mark.timeout(60)
def test_a_host_comes_back_once_its_agent_says_that_its_ranks_have_ended(world: World) -> None:
    def script(host: Host, attempt: int, ranks: Sequence[int]) -> None:
        if attempt == 0 and host.name == "node-0":
            host.end({0: 1})
        elif attempt == 1 and host.name == "node-0":
            world.hosts["node-1"].end(dict.fromkeys((2, 3), 137))
            assert world.hosts["node-1"].wire is not None
            world.hosts["node-1"].wire.send({"say": "stopped", "attempt": 0})
            time.sleep(0.2)
            host.leave()  # and now a spare is needed
        elif attempt == 2:
            finish(host, attempt, ranks)

    outcome = world.run(script, holds="node-1", patience={"stop_s": 0.3})
    assert (outcome.finished, outcome.attempts) == (True, 3)
    assert world.hosts["node-1"].started == [(0, (2, 3)), (2, (0, 1))]


@pytest.mark.timeout(60)
def test_a_long_look_at_the_store_keeps_no_ping_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinging, "PING_S", 0.05)
    busy: list[tuple[float, float]] = []

    def look(_: Observer) -> bool:
        if not busy:
            began = time.monotonic()
            time.sleep(1.0)
            busy.append((began, time.monotonic()))
            for host in ("node-0", "node-1"):
                finish(world.hosts[host], 0, (0, 1) if host == "node-0" else (2, 3))
        return True

    monkeypatch.setattr(Observer, "look", look)
    assert world.run(lambda host, attempt, ranks: None).finished
    began, ended = busy[0]
    assert len([one for one in world.hosts["node-0"].pings if began < one < ended]) > 5


def fail(host: Host, attempt: int, ranks: Sequence[int]) -> None:
    """A rank of the first host ends with an error, in every attempt; the other host's go on."""
    if host.name == "node-0":
        host.end({0: 1})


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("word", "script", "patience"),
    [
        ("waiting 50 s", fail, {}),
        ("exited:", fail, {"verdict_s": 50.0}),
        ("at once", finish, {"join_s": 50.0}),
        ("attempt 0 starts", lambda host, attempt, ranks: None, {}),
    ],
    ids=["before a restart", "in a diagnosis", "for a host", "for a step"],
)
def test_whoever_is_asked_to_end_does_whatever_is_waited_for(
    world: World, word: str, script: Script, patience: dict[str, float]
) -> None:
    world.end_at, began = word, time.monotonic()
    outcome = world.run(script, hosts=1 if script is finish else 2, patience=patience, backoff_s=50.0)
    assert not outcome.finished
    assert "asked to end" in outcome.reason
    assert time.monotonic() - began < 20
    assert not any(host.running for host in world.hosts.values())


@pytest.mark.timeout(60)
def test_a_failure_in_the_first_step_of_an_attempt_is_of_the_step_it_resumed_with(world: World, tmp_path: Path) -> None:
    commit = tmp_path / "checkpoints" / "step-00000011" / "commit.json"
    commit.parent.mkdir(parents=True)
    commit.write_text("{}")

    outcome = world.run(fail, checkpoints=tmp_path / "checkpoints")
    assert [one.step for one in outcome.history.restarts] == [10, 10]
    assert "failed 3 times in a row in step 11" in outcome.reason


@pytest.mark.timeout(60)
def test_attempts_that_left_nothing_keep_their_numbers(world: World) -> None:
    refuse = lambda host, attempt, ranks: host.end(dict.fromkeys(ranks, 2), "choose another")  # noqa: E731
    world.run(refuse)
    world.run(finish)
    assert world.hosts["node-0"].started == [(1, (0, 1))]


@pytest.mark.timeout(60)
def test_a_host_that_opens_no_rendezvous_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank was started, so that none has to be waited for; the other host is as good as before."""
    monkeypatch.setattr(starting, "PORT_S", 0.2)
    outcome = world.run(finish, dumb="node-0")
    assert (outcome.finished, outcome.attempts, outcome.history.fences) == (True, 2, ())
    assert world.hosts["node-2"].started == [(1, (0, 1))]
    assert world.hosts["node-1"].started == [(1, (2, 3))]


@pytest.mark.timeout(60)
def test_ranks_that_hang_while_they_are_torn_down_are_ended(world: World) -> None:
    """Those of the other host have ended in order, and no agent says that anything stands still."""
    write_steps(world.root, 0, 8)
    outcome = world.run(hang_at_the_end, patience={"stall_s": 0.3})
    assert (outcome.finished, outcome.attempts) == (True, 2)
    assert any("and 2 ranks do not end" in line for line in world.lines)
    assert world.hosts["node-1"].heard.count("stop") == 1


def hang_at_the_end(host: Host, attempt: int, ranks: Sequence[int]) -> None:
    """In the first attempt the ranks of one host do not end."""
    if attempt or host.name != "node-1":
        finish(host, attempt, ranks)


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of two hosts that runs nothing yet; its nodes a and b are there."""
    hub = Hub(open_listener("127.0.0.1", 0), "secret")
    job = Job(config=tmp_path / "c.toml", run="run", store=tmp_path, hosts=2, world_size=2, steps=9)
    supervisor = Supervisor(job, hub, lambda line: None)
    for host in "ab":
        hub.nodes[host] = node(host)
    yield supervisor
    supervisor.shared.observer.close()
    hub.nodes.clear()
    hub.close()


def node(host: str) -> Node:
    wire: Any = SimpleNamespace(send=lambda message: None)
    return Node(host, 1, "127.0.0.1", wire, 0.0)


def withheld(supervisor: Supervisor, *, untold: bool = False) -> AttemptState:
    """Host b is of no use: its ranks do not end, or (untold) it opened no rendezvous in time."""
    state = AttemptState(0, ("a", "b"), 1, 0)
    state.give_up(["b"])
    state.untold.update(["b"] if untold else [])
    supervisor.shared.withhold(state)
    return state


def test_a_withheld_host_whose_agent_is_started_again_can_be_used(idle: Supervisor) -> None:
    withheld(idle)
    assert idle.shared.barred == {"b"}
    old = idle.hub.nodes.pop("b")
    idle.hub.nodes["b"] = node("b")
    idle._take(idle.hub.nodes["b"], {"say": "stopped", "attempt": 0})
    assert idle.shared.barred == {"b"}, "what the old one left may still run"
    idle._take(old, {"say": "lost"})
    assert (idle.shared.barred, idle.shared.spares()) == (set(), ["a", "b"])


def test_a_host_that_was_late_with_its_rendezvous_can_be_used(idle: Supervisor) -> None:
    state = withheld(idle, untold=True)
    assert idle.shared.barred == {"b"}
    idle._take(idle.hub.nodes["b"], {"say": "port", "attempt": 0, "port": 1})
    assert idle.shared.barred == set()
    state.port = 1
    idle.shared.withhold(state)
    assert idle.shared.barred == set(), "it was there before it could be withheld"


def test_nothing_is_started_while_another_supervisor_may_have_the_run(
    idle: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease: Any = SimpleNamespace(is_lost=False, is_fresh=False)
    happened: list[str] = []

    def turn(_: float) -> None:
        happened.append("turn")
        lease.is_fresh = len(happened) > 2

    def start(*_: object) -> None:
        happened.append("start")

    idle._lease, idle.shared.turn = lease, turn
    monkeypatch.setattr(idle, "turn", turn)
    monkeypatch.setattr(supervisor_module, "await_hosts", lambda *_: ("a", "b"))
    monkeypatch.setattr(supervisor_module, "start_attempt", start)
    assert idle._start().hosts == ("a", "b")
    assert happened == ["turn", "turn", "turn", "start"]
