"""What a supervised run leaves behind: rows that could not be written at once, processes, folders, open ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.exits import EXITS, ExitNotes
from megascope.trainer.children import Children
from megascope.trainer.stopping import CONTROL_VARIABLE, StopRequest
from megascope.trainer.supervisor import local, node
from megascope.trainer.supervisor.hub import Hub, open_listener
from megascope.trainer.supervisor.journal import Journal
from megascope.trainer.supervisor.local import remove_left, spool_folder
from megascope.trainer.supervisor.node import NodeAgent, NodeSettings
from megascope.trainer.supervisor.ranks import Start, remove_control, write_control


def test_rows_that_could_not_be_written_come_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, "run")
    journal.open(0, "recovery-exited", 1_000, 9)
    commit = TableWriter.commit

    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TableWriter, "commit", full)
    journal.write(0)
    journal.write(0)
    monkeypatch.setattr(TableWriter, "commit", commit)
    journal.open(1, "recovery-exited", 2_000, 9)
    journal.write(1)
    journal.close()
    with Store(tmp_path) as store:
        rows = store.query("SELECT attempt, opened_ns FROM incidents ORDER BY attempt").to_pylist()
    assert [(row["attempt"], row["opened_ns"]) for row in rows] == [(0, 1_000), (1, 2_000)]


def test_rows_that_are_left_are_written_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "store", "run")
    journal.open(0, "recovery-exited", 1_000, 9)
    (tmp_path / "store").write_text("in the way")
    journal.write(0)
    (tmp_path / "store").unlink()
    journal.close()
    with Store(tmp_path / "store") as store:
        assert store.query("SELECT count(*) AS n FROM incidents").to_pylist() == [{"n": 1}]


def test_another_supervisor_s_rows_of_the_same_run_stay(tmp_path: Path) -> None:
    for attempt in (0, 1):
        journal = Journal(tmp_path, "run")
        journal.open(attempt, "recovery-exited", 1_000, 9)
        journal.write(attempt)
        journal.close()
    with Store(tmp_path) as store:
        assert store.query("SELECT count(*) AS n FROM incidents").to_pylist() == [{"n": 2}]


def test_a_killed_child_is_reaped() -> None:
    children = Children()
    children.fork(0, lambda: signal.pause() or 0)  # type: ignore[func-returns-value]
    (pid,) = children.pids.values()
    children.kill()
    assert len(children) == 0
    assert not psutil.pid_exists(pid)


def test_a_child_that_is_told_to_end_again_and_again_is_noted_once_for_each_signal(tmp_path: Path) -> None:
    children = Children(ExitNotes([tmp_path]))
    children.fork(0, _stay)
    for number in (signal.SIGCONT, signal.SIGCONT, signal.SIGURG, signal.SIGURG, signal.SIGKILL, signal.SIGKILL):
        children.send(number)
    children.kill()
    lines = [json.loads(line) for line in (tmp_path / EXITS).read_bytes().splitlines()]
    assert [line["asked"] for line in lines if "asked" in line] == [signal.SIGCONT, signal.SIGURG, signal.SIGKILL]
    assert [line["code"] for line in lines if "code" in line] == [-signal.SIGKILL]


def _stay() -> int:
    signal.pause()
    return 0


def test_folders_of_a_run_that_was_killed_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_SHARED_MEMORY", tmp_path)
    me = psutil.Process()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    began = f"{psutil.Process(gone.pid).create_time():.0f}"
    gone.wait()
    left, fresh = tmp_path / f"megascope-hosts-{gone.pid}-{began}-aaaa", tmp_path / "megascope-hosts-1-5-bbbb"
    reused = tmp_path / f"megascope-hosts-{me.pid}-{me.create_time() - 5000:.0f}-cccc"
    alive = tmp_path / f"megascope-hosts-{me.pid}-{me.create_time():.0f}-dddd"
    other = tmp_path / "megascope-hosts-mine"
    for folder in (left, fresh, reused, alive, other):
        folder.mkdir()
        (folder / "box").write_text("")
    for folder in (left, reused, alive, other):
        for path in (folder / "box", folder):
            os.utime(path, (1, 1))
    with spool_folder() as own:
        assert own.name.startswith(f"megascope-hosts-{me.pid}-")
        assert sorted(tmp_path.iterdir()) == sorted([fresh, alive, other, own])
    assert not own.exists()
    remove_left(tmp_path / "none")


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(open_listener("127.0.0.1", 0), "secret")
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            list(hub.turn(0.02))

    thread = threading.Thread(target=serve)
    thread.start()
    yield hub
    is_over.set()
    thread.join()
    hub.close()


@pytest.mark.parametrize(("address", "bound"), [(None, "127.0.0.1"), ("10.0.0.7", "0.0.0.0")])
def test_the_rendezvous_of_hosts_on_one_machine_is_open_to_that_machine_alone(
    hub: Hub, address: str | None, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "preload", lambda: None)
    monkeypatch.setenv("MEGASCOPE_HOST", "node-0")
    agent = NodeAgent(NodeSettings(supervisor=("127.0.0.1", hub.port), token="secret", slots=1, address=address))
    with agent._listener() as listening:
        assert listening.family == socket.AF_INET
        assert listening.getsockname()[0] == bound
    agent._wire.close()


def test_a_request_to_stop_lies_on_the_host_and_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGASCOPE_SPOOL", str(tmp_path / "spool"))
    start = Start(
        run="a/b", attempt=3, config=tmp_path, overrides=(), first_rank=0, local_ranks=1, world_size=1,
        master=("127.0.0.1", 1), log=tmp_path / "store" / "log", store=tmp_path / "store",
    )  # fmt: skip
    assert start.control.is_relative_to(tmp_path / "spool")
    write_control(start.control, 7)
    request = StopRequest({CONTROL_VARIABLE: str(start.control)})
    assert request.is_seen(7)
    remove_control(start.control)
    remove_control(start.control)
    assert not StopRequest({CONTROL_VARIABLE: str(start.control)}).is_seen(7)
