"""How ranks' processes ended: what the kernel tells an agent of them, and what their launcher noted in the spool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.agent.agent import Agent
from megascope.collectors.alarms.rules import AlarmSettings
from megascope.collectors.incidents.endings import Endings
from megascope.collectors.incidents.incidents import Incident
from megascope.collectors.incidents.responding import Responder
from megascope.collectors.spool.exit_codes import ExitCode, code_of_zombie
from megascope.collectors.spool.rank_drain import RankDrain
from megascope.profiler.exits import EXITS, Exit, ExitNotes, exit_words, notes_on, read_exits
from support import stuck_rank
from support.collecting import read_table
from support.commands import wait_for

SLEEPS = "import time; print('up', flush=True); time.sleep(60)"


def deaths(watcher: Agent) -> list[dict[str, Any]]:
    """The deaths that an agent has noted so far; of an attempt that is over already, as the store has them."""
    watcher.poll()
    incidents = [one for run in watcher.runs.values() for each in run.attempts.values() for one in each.incidents]
    noted = [one.actions for one in incidents]
    if not noted and not watcher.runs:
        noted = [json.loads(row["actions"]) for row in read_table(watcher.settings.store, "incidents")]
    return [action for actions in noted for action in actions if action["action"] == "noticed-death"]


def kernel_tells() -> bool:
    """Whether this kernel tells exit codes of processes that were waited for (since Linux 6.15)."""
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE) as process:
        followed = ExitCode(process.pid)
        process.kill()
        process.wait()
        code = followed.read()
        followed.close()
    return code is not None


@pytest.fixture
def killed(spool: Path, agent: Callable[..., Agent]) -> Callable[..., dict[str, Any]]:
    """Kills a rank that an agent watches; what the agent noted of it. ``notes`` is called before and after."""

    def kill(number: int, notes: ExitNotes | None = None, *, asked: bool = False) -> dict[str, Any]:
        with stuck_rank.start(spool, 0, 2, "idle") as rank:
            try:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "ready\n"
                watcher = agent()
                watcher.poll()
                if notes is not None and asked:
                    notes.asked(0, rank.pid, number)
                time.sleep(0.25)  # a box that was still for so long makes a dead rank
                rank.send_signal(number)
                code = rank.wait(timeout=20)
                if notes is not None:
                    notes.ended(0, rank.pid, code)
            finally:
                rank.kill()
        found: dict[str, Any] = wait_for(lambda: next(iter(deaths(watcher)), None), 20, "a death")
        return found

    return kill


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_an_agent_tells_by_what_signal_a_rank_was_killed(
    killed: Callable[..., dict[str, Any]], spool: Path, number: signal.Signals
) -> None:
    """Without any launcher that says so, where the kernel does; else by what the launcher noted."""
    death = killed(number, None if kernel_tells() else notes_on(spool, "run", 0))
    assert (death["rank"], death["state"], death["exit_code"]) == (0, "gone", -number)
    assert "asked_signal" not in death


@pytest.mark.timeout(60)
def test_a_rank_that_its_launcher_ended_is_noted_so(killed: Callable[..., dict[str, Any]], spool: Path) -> None:
    death = killed(signal.SIGKILL, notes_on(spool, "run", 0), asked=True)
    assert (death["exit_code"], death["asked_signal"]) == (-signal.SIGKILL, signal.SIGKILL)
    assert 0 <= time.time_ns() - death["asked_ns"] < 60 * 10**9


@pytest.mark.timeout(30)
def test_a_zombie_tells_its_code_to_who_is_not_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert code_of_zombie(_fields(process.pid)) is None
        process.send_signal(signal.SIGABRT)
        fields = wait_for(lambda: (now := _fields(process.pid))[0] == b"Z" and now, 10, "a zombie")
        assert code_of_zombie(fields) == -signal.SIGABRT
        assert process.wait() == -signal.SIGABRT


def _fields(pid: int) -> list[bytes]:
    text = Path(f"/proc/{pid}/stat").read_bytes()
    return text[text.rfind(b")") + 1 :].split()


def test_the_end_of_a_process_that_is_not_there_is_not_known() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait()
    gone = ExitCode(process.pid)
    assert gone.read() is None
    running = ExitCode(os.getpid())
    assert running.read() is None
    running.close()
    assert running.read() is None


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from(["asked", "ended"]), st.integers(-20, 200)),
        max_size=12,
    ),
    st.binary(max_size=40),
)
def test_notes_come_back_whatever_stands_between(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[int, int, str, int]], junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("notes")
    expected: dict[tuple[int, int], Exit] = {}
    notes = ExitNotes([folder, folder / "absent"])
    for rank, pid, what, value in told:
        getattr(notes, what)(rank, pid, value)
        known = expected.get((rank, pid), Exit())
        expected[rank, pid] = Exit(known.code, value) if what == "asked" else Exit(value, known.asked)
        with (folder / EXITS).open("ab") as file:
            file.write(b"{" + junk.replace(b"\n", b"") + b"\n")
    found = read_exits(folder)
    assert {key: replace(one, asked_ns=None) for key, one in found.items()} == expected
    assert all((one.asked is None) == (one.asked_ns is None) for one in found.values())
    assert not (folder / "absent").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (1, "ended with exit code 1"),
        (137, "ended with exit code 137 (as for SIGKILL)"),
    ],
)
def test_codes_in_words(code: int, words: str) -> None:
    assert exit_words(code) == words


@pytest.mark.parametrize(
    ("ending", "on_request"),
    [
        (Exit(-9, None), False),
        (Exit(-9, 15), True),
        (Exit(130, 15), True),
        (Exit(None, 15), True),
        (Exit(-11, 15), False),
        (Exit(1, 15), False),
        (Exit(), False),
    ],
)
def test_only_what_a_request_leads_to_is_on_request(ending: Exit, on_request: bool) -> None:
    assert ending.was_on_request == on_request


def told_of(folder: Path, run: str, deaths_of: list[dict[str, Any]]) -> str:
    """The sentence of the alarm that deaths of one host come to; empty where none is raised."""
    out = folder / run
    responder = Responder(folder / "store", run, 0, AlarmSettings(f"cat > {out}", gather_s=0.0))
    same = {"action": "noticed-death", "moment_ns": 1, "rank": 3, "state": "gone", "pid": 5}
    actions = [{**same, **more} for more in deaths_of]
    responder.poll([Incident(f"{run}/0/a/rank-died/0", "rank-died", 1, actions=actions)], [], 10**10)
    responder.close()
    return str(json.loads(out.read_text())["sentence"]) if out.exists() else ""


def test_the_alarm_of_a_death_says_how_it_ended_and_none_is_raised_of_ranks_that_were_told_to_end(
    tmp_path: Path,
) -> None:
    """Two hosts: on one a rank crashed, on the other the launcher ended those that were left."""
    raised = {"rank": 4, "state": "exception"}
    cases: dict[str, list[dict[str, Any]]] = {
        "own": [{"exit_code": -11}],
        "told": [{"exit_code": -9, "asked_signal": 9}],
        "both": [{"exit_code": -11}, raised, {**raised, "state": "gone", "exit_code": 1}],
    }
    sentences = {name: told_of(tmp_path, name, deaths_of) for name, deaths_of in cases.items()}
    assert sentences["told"] == ""
    assert "(was killed by signal 11 (SIGSEGV))" in sentences["own"]
    assert "(3 was killed by signal 11 (SIGSEGV), 4 with an exception)" in sentences["both"]


@pytest.mark.parametrize(
    ("told_ns", "code", "is_alarm"),
    [(0, 1, False), (0, -15, False), (2, 1, True), (2, -15, True)],
    ids=["told, then raised", "told, raised and killed", "raised, then told", "raised, told and killed"],
)
def test_an_exception_makes_an_alarm_unless_the_rank_had_been_told_to_end(
    tmp_path: Path, told_ns: int, code: int, is_alarm: bool
) -> None:
    """As the verdict has it: the exception, at 1 ns, explains the death that follows it, whatever its exit code."""
    ending = {"exit_code": code, "asked_signal": 15, "asked_ns": told_ns}
    gone = {**ending, "state": "gone", "moment_ns": 3}
    sentence = told_of(tmp_path, "job", [{**ending, "state": "exception"}, gone])
    assert ("Rank 3 on " in sentence and "(with an exception)" in sentence) if is_alarm else sentence == ""


def test_a_death_that_is_noted_after_its_code_was_known_has_it_too(tmp_path: Path) -> None:
    """A rank raised, its launcher ended and reaped it, and only then its agent finds it gone."""
    notes = ExitNotes([tmp_path])
    notes.asked(3, 77, 15)
    notes.ended(3, 77, 1)
    reader = SimpleNamespace(pid=77)
    rank = SimpleNamespace(path=tmp_path / "rank-00003.box", rank=3, exit_code=None, reader=reader)
    endings, same = Endings(), {"action": "noticed-death", "rank": 3, "pid": 77}
    actions: list[dict[str, Any]] = []
    for state in ("exception", "gone"):
        actions.append({**same, "state": state})
        endings.add_to(cast(RankDrain, rank), actions)
    assert [(one["exit_code"], one["asked_signal"]) for one in actions] == [(1, 15)] * 2
    assert actions[0]["asked_ns"] == actions[1]["asked_ns"]
