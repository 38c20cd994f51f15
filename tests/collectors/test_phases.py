"""Two hosts: who waits for the other's checkpoint is no stall, who waits for anything else is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.agent.agent import Agent, AgentSettings
from megascope.collectors.incidents import phases
from megascope.profiler.box.box import BoxLayout
from megascope.profiler.host import HOST_VARIABLE
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support.collecting import collective

STALL_S = 0.6
Hosts = Callable[[], tuple["Host", "Host"]]


class Host:
    """A host of one rank with its agent, which is polled by hand."""

    def __init__(self, folder: Path, rank: int, environment: pytest.MonkeyPatch) -> None:
        self.name, self._environment = f"node-{rank}", environment
        spool = folder / f"spool-{rank}"
        spool.mkdir()
        self._enter()
        layout = BoxLayout(slots=16, rings=1, ring_records=512, groups=4)
        made = open_recorder(
            RecorderSettings(run="run", attempt=0, rank=rank, world_size=2, spool=spool, layout=layout)
        )
        assert isinstance(made, Recorder)
        self.recorder = made
        settings = AgentSettings(spool=spool, store=folder / "store", stall_s=STALL_S)
        self.agent = Agent(settings, threading.Event())

    def _enter(self) -> None:
        self._environment.setenv(HOST_VARIABLE, self.name)

    def poll(self) -> None:
        self._enter()
        self.agent.poll()

    def incidents(self) -> list[str]:
        drains = [one for run in self.agent.runs.values() for one in run.attempts.values()]
        return [incident.kind for drain in drains for incident in drain.incidents]

    def close(self) -> None:
        self._enter()
        self.agent.close()
        self.recorder.close("finished")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, Host]]:
    """Two hosts of a job that is past its first steps."""
    for name in ("LOOK_S", "RENEW_S"):
        monkeypatch.setattr(phases, name, 0.05)
    found = Host(tmp_path, 0, monkeypatch), Host(tmp_path, 1, monkeypatch)
    for step in range(5):
        for host in found:
            host.recorder.step(step)
            host.poll()
    yield found
    for host in found:
        host.close()


def rest(hosts: tuple[Host, Host], seconds: float) -> list[list[str]]:
    """Let time pass; the incidents of both."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
        for host in hosts:
            host.poll()
    return [host.incidents() for host in hosts]


@pytest.mark.parametrize("kind", sorted(phases.TOLD_KINDS))
def test_who_waits_for_another_hosts_slow_work_is_given_its_time(hosts: tuple[Host, Host], kind: SegmentKind) -> None:
    busy, waits = hosts[0].recorder, hosts[1].recorder
    work = busy.begin(busy.segment("slow_work", kind))
    waits.begin(waits.segment("forward"))
    collective(waits, 1, wait=False)
    assert rest(hosts, 3 * STALL_S) == [[], []]
    busy.end(work)
    busy.begin(busy.segment("forward"))
    assert rest(hosts, 3 * STALL_S) == [["stalled"], ["stalled"]], "its time is over, and nothing moves"


def test_not_for_ever(hosts: tuple[Host, Host]) -> None:
    hosts[0].recorder.begin(hosts[0].recorder.segment("checkpoint_write", SegmentKind.CHECKPOINT))
    collective(hosts[1].recorder, 1, wait=False)
    assert rest(hosts, 7 * STALL_S) == [["stalled"], ["stalled"]]


@pytest.mark.parametrize("kind", [SegmentKind.COMPUTE, SegmentKind.DATA, SegmentKind.OPTIMIZER])
def test_other_work_of_another_host_gives_no_time(hosts: tuple[Host, Host], kind: SegmentKind) -> None:
    hosts[0].recorder.begin(hosts[0].recorder.segment("work", kind))
    collective(hosts[1].recorder, 1, wait=False)
    assert rest(hosts, 3 * STALL_S)[1] == ["stalled"]


def test_who_stands_in_its_own_work_is_not_excused_by_anothers_checkpoint(hosts: tuple[Host, Host]) -> None:
    hosts[0].recorder.begin(hosts[0].recorder.segment("checkpoint_write", SegmentKind.CHECKPOINT))
    hosts[1].recorder.begin(hosts[1].recorder.segment("forward"))
    assert rest(hosts, 3 * STALL_S) == [[], ["stalled"]]


def test_a_checkpoint_that_is_written_beside_training_excuses_nobody(hosts: tuple[Host, Host]) -> None:
    first, second = hosts[0].recorder, hosts[1].recorder
    first.begin(first.segment("checkpoint_write", SegmentKind.CHECKPOINT))
    collective(first, 1, wait=False)
    collective(second, 1, wait=False)
    assert rest(hosts, 3 * STALL_S)[1] == ["stalled"]


def test_who_waits_in_an_evaluation_excuses_nobody(hosts: tuple[Host, Host]) -> None:
    """Be it for an operation that was issued before the evaluation began."""
    first, second = hosts[0].recorder, hosts[1].recorder
    issued = collective(first, 1, wait=False)
    first.begin(first.segment("evaluate", SegmentKind.EVAL))
    first.wait_begin(issued)
    collective(second, 1, wait=False)
    assert rest(hosts, 3 * STALL_S) == [["stalled"], ["stalled"]]


def test_what_a_host_that_is_gone_told_runs_out(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "LEASE_S", 0.3)
    first, second = hosts[0].recorder, hosts[1].recorder
    first.begin(first.segment("checkpoint_write", SegmentKind.CHECKPOINT))
    rest(hosts, 0.3)
    collective(second, 1, wait=False)
    assert rest((hosts[1], hosts[1]), 3.5 * STALL_S)[0] == ["stalled"], "its agent tells it no more"


def test_a_wait_for_a_checkpoint_makes_nobody_patient_with_other_work(hosts: tuple[Host, Host]) -> None:
    first, second = hosts[0].recorder, hosts[1].recorder
    work = first.begin(first.segment("checkpoint_write", SegmentKind.CHECKPOINT))
    inside = second.begin(second.segment("forward"))
    waited = collective(second, 1, wait=False)
    rest(hosts, 3 * STALL_S)
    first.end(work)
    second.end_async(waited)
    second.end(inside)
    assert rest(hosts, 0.1) == [[], []]
    second.begin(second.segment("forward"))
    assert rest(hosts, 2 * STALL_S)[1] == ["stalled"]


def test_damaged_files_and_a_missing_folder_tell_nothing(tmp_path: Path) -> None:
    board = phases.PhaseBoard(tmp_path / "none", "run", 0, "here", 1.0)
    assert not board.elsewhere()
    folder = tmp_path / phases.FOLDER / "run=run" / "attempt=0"
    folder.mkdir(parents=True)
    for number, text in enumerate(("", "[]", "{", '{"segments": 1}', '{"segments": null}', '{"segments": ["a"]}')):
        (folder / f"{number}.json").write_text(text)
    (folder / "good.json").write_text('{"segments": {"eval": 2, "checkpoint": 0}}')
    (folder / "better.json").write_text('{"segments": {"eval": 1}}')
    (folder / "here.json").write_text('{"segments": {"own": 1}}')
    assert phases.PhaseBoard(tmp_path, "run", 0, "here", 1.0).elsewhere() == {"eval": 3, "checkpoint": 0}


def test_of_many_hosts_some_are_read_and_stand_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / phases.FOLDER / "run=run" / "attempt=0"
    folder.mkdir(parents=True)
    for number in range(10 * phases.MOST_READ):
        (folder / f"{number}.json").write_text('{"segments": {"eval": 8}}')
    read: list[str] = []
    real = Path.read_text

    def counted(path: Path, *given: Any, **named: Any) -> str:
        read.append(path.name)
        return real(path, *given, **named)

    monkeypatch.setattr(Path, "read_text", counted)
    board = phases.PhaseBoard(tmp_path, "run", 0, "here", 1.0)
    assert board.elsewhere() == {"eval": 80 * phases.MOST_READ}
    time.sleep(0.1)
    board.elsewhere()
    assert len(read) == phases.MOST_READ


def test_an_attempt_that_is_over_leaves_nothing(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    first = hosts[0].recorder
    first.begin(first.segment("checkpoint_write", SegmentKind.CHECKPOINT))
    rest(hosts, 0.4)
    assert [path.name for path in (tmp_path / "store" / phases.FOLDER).rglob("*.json")] == ["node-0.json"]
    for host in hosts:
        host.agent.close()
    assert not list((tmp_path / "store" / phases.FOLDER).rglob("*"))
