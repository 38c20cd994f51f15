"""Python stacks of ranks that stand still, also of one whose C code holds the interpreter's lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.agent.agent import Agent, AgentSettings
from megascope.collectors.incidents import stacks
from megascope.collectors.spool.rank_drain import RankDrain
from megascope.profiler import stack_signal
from support.collecting import read_table
from support.commands import wait_for

RANK = """
import ctypes, sys, time
from pathlib import Path
import megascope
megascope.init(store=sys.argv[1], spool=sys.argv[2], run="run", attempt=0, agent=False, automatic="none")
for step in range(5):
    megascope.step(step)
    time.sleep(0.3)
def read_the_shard(how):
    if how == "gil":
        ctypes.PyDLL(None).sleep(100)
    time.sleep(100)
print("ready", flush=True)
with megascope.segment("data", kind="host"):
    read_the_shard(sys.argv[3])
"""


@pytest.fixture
def ranks(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """One rank that sleeps, in Python or in C code with the lock held."""
    how, known = request.param
    environment = {**os.environ, "MEGASCOPE_STACKS": known, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    command = [sys.executable, "-c", RANK, str(tmp_path / "store"), str(tmp_path / "spool"), how]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    yield child
    child.kill()
    child.wait(timeout=10)
    child.stdout.close()


def drain(spool: Path) -> RankDrain:
    (box,) = spool.rglob("*.box")
    rank = RankDrain(box)
    rank.sample()
    return rank


def taken(taker: stacks.StackTaker) -> Any:
    return wait_for(taker.take, 15, "a stack")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ranks", [("sleep", "1"), ("gil", "1")], indirect=True)
def test_a_stack_of_a_rank_that_stands_still(ranks: subprocess.Popen[str], tmp_path: Path) -> None:
    rank, taker = drain(tmp_path / "spool"), stacks.StackTaker(py_spy="/does/not/exist")
    taker.ask([rank])
    ((number, method, text),) = taken(taker)
    rank.close()
    assert (number, method) == (0, "faulthandler")
    calls = text.splitlines()
    assert calls[0].startswith("read_the_shard() at ")
    assert calls[1].startswith("<module>() at ")
    assert ranks.poll() is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ranks", [("sleep", "0")], indirect=True)
def test_a_rank_that_was_not_asked_to_answer_gets_no_signal(ranks: subprocess.Popen[str], tmp_path: Path) -> None:
    rank, taker = drain(tmp_path / "spool"), stacks.StackTaker(py_spy="/does/not/exist")
    taker.ask([rank])
    ((number, method, text),) = taken(taker)
    rank.close()
    assert (number, method) == (0, "py-spy")
    assert text.startswith("(no stack: py-spy failed")
    time.sleep(0.2)
    assert ranks.poll() is None


@pytest.mark.timeout(90)
@pytest.mark.parametrize("ranks", [("gil", "1")], indirect=True)
def test_the_agent_puts_the_stack_beside_the_incident(ranks: subprocess.Popen[str], tmp_path: Path) -> None:
    import threading

    settings = AgentSettings(spool=tmp_path / "spool", store=tmp_path / "store", stall_s=0.3)
    agent = Agent(settings, threading.Event())

    def found() -> Any:
        agent.poll(flush=True)
        rows = read_table(tmp_path / "store", "incidents")
        return [one for row in rows for one in json.loads(row["actions"]) if one["action"] == "stack"]

    try:
        (action,) = wait_for(found, 20, "an incident with a stack")
    finally:
        agent.close()
    assert action["stack"].startswith("read_the_shard() at ")
    assert (action["rank"], action["method"]) == (0, "faulthandler")


def test_the_main_thread_is_what_faulthandler_lists_last() -> None:
    text = (
        "Thread 0x1 (most recent call first):\n  File \"/a/pool.py\", line 3 in work\n\n"
        "Current thread 0x2 (most recent call first):\n  File \"/a/data.py\", line 88 in read\n"
        "  File \"/a/train.py\", line 5 in <module>\n\nExtension modules: x, y (total: 2)\n"
    )  # fmt: skip
    assert stacks.read_faulthandler(text) == "read() at /a/data.py:88\n<module>() at /a/train.py:5"
    for nothing in ("", "Thread 0x1 (most recent call first):\n", "no stack at all\n" * 3):
        assert stacks.read_faulthandler(nothing).startswith("(no stack")


def test_what_py_spy_writes() -> None:
    frames = [{"name": "read", "filename": "/a/data.py", "line": 88}]
    threads = [{"thread_name": "pool", "frames": []}, {"thread_name": "MainThread", "frames": frames}]
    assert stacks.read_py_spy(json.dumps(threads)) == "read() at /a/data.py:88"
    for damaged in ("", "[]", "{}", "[1]", '[{"thread_name": "MainThread"}]'):
        assert stacks.read_py_spy(damaged).startswith("(no stack")


def test_py_spy_that_may_not_ptrace_is_told(tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    program.chmod(0o755)
    assert "right to ptrace" in stacks._spied(str(program), 1)
    assert "Permission Denied" in stacks._spied(str(program), 1)


def test_it_is_opt_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stack_signal.VARIABLE, raising=False)
    assert stack_signal.StackOnSignal.register(tmp_path, 0) is None
    assert not list(tmp_path.iterdir())


def test_a_closed_rank_survives_a_late_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    monkeypatch.setenv(stack_signal.VARIABLE, "1")
    registered = stack_signal.StackOnSignal.register(tmp_path, 3)
    assert registered is not None
    path = stack_signal.stack_file(tmp_path, 3, os.getpid())
    os.kill(os.getpid(), stack_signal.NUMBER)
    wait_for(lambda: "most recent call first" in path.read_text(), 5, "a stack")
    registered.close()
    os.kill(os.getpid(), stack_signal.NUMBER)
    assert not path.exists()
    signal.signal(stack_signal.NUMBER, signal.SIG_DFL)
