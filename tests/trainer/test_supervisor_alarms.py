"""What the supervisor tells through the alarm hook: what it did, once, and nothing where nothing was done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.alarms.teller import Teller
from support.supervised import Host, World, finish, once


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("MEGASCOPE_ALARM_COMMAND", f"cat >> {tmp_path / 'told'}; echo >> {tmp_path / 'told'}")
    (tmp_path / "told").touch()
    return World(tmp_path / "store", monkeypatch)


def told(world: World) -> list[dict[str, Any]]:
    lines = (world.root.parent / "told").read_text().splitlines()
    return [json.loads(line) for line in lines if line]


def kill(host: Host, ranks: object) -> None:
    host.end({3: -9})


def blamed() -> dict[str, Any]:
    culprit = {"ranks": [3], "hosts": ["node-1"], "confidence": 0.95, "kind": "dead", "segment": None, "evidence": []}
    return {"verdict": "crashed", "culprits": [culprit]}


@pytest.mark.timeout(60)
def test_a_fenced_host_is_told_of_with_its_ranks(world: World) -> None:
    world.answer = blamed()
    assert world.run(once(kill, "node-1")).finished
    (alarm,) = told(world)
    assert (alarm["kind"], alarm["severity"], alarm["run"], alarm["attempt"]) == ("supervise-fenced", "high", "run", 0)
    assert (alarm["ranks"], alarm["hosts"]) == ([3], ["node-1"])
    assert alarm["sentence"].startswith("Run run, attempt 0: replace after exited. node-1: dead on rank 3")


@pytest.mark.timeout(60)
def test_a_restart_without_a_culprit_is_told_as_such(world: World) -> None:
    assert world.run(once(kill, "node-1")).finished
    (alarm,) = told(world)
    assert (alarm["kind"], alarm["severity"], alarm["hosts"]) == ("supervise-restarted", "medium", [])


@pytest.mark.timeout(60)
def test_a_run_that_is_stopped_is_told_with_the_reason(world: World) -> None:
    world.answer = blamed()
    outcome = world.run(once(kill, "node-1"), hosts=2, check=None)
    (alarm,) = told(world)
    assert (alarm["kind"], alarm["severity"]) == ("supervise-stopped", "high")
    assert alarm["sentence"] == f"Run run is stopped after attempt 0: {outcome.reason}"


@pytest.mark.timeout(60)
def test_who_asked_for_the_end_need_not_be_told(world: World) -> None:
    world.end_at = "attempt 0 starts"
    assert not world.run(lambda host, attempt, ranks: None).finished
    assert told(world) == []


@pytest.mark.timeout(60)
def test_a_job_that_ends_well_tells_nothing(world: World) -> None:
    assert world.run(finish).finished
    assert told(world) == []


@pytest.mark.timeout(60)
def test_an_alarm_that_cannot_be_told_stops_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGASCOPE_ALARM_COMMAND", "false")
    monkeypatch.setattr(Teller.close, "__defaults__", (0.5,))
    assert world.run(once(kill, "node-1")).finished
