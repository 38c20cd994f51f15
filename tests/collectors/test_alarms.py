"""The alarm hook: whom it tells, what it tells once only, when it is silent, and that it harms nobody."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from megascope.collectors.alarms import alarms
from megascope.collectors.alarms import targets as alarm_targets
from megascope.collectors.alarms.alarms import Alarm, AlarmHook, AlarmSettings, Silence
from megascope.collectors.alarms.delivery import Told
from megascope.collectors.alarms.memory import AlarmMemory
from megascope.profiler.errors import UsageError
from support.commands import wait_for

SECOND = 10**9
NOON_NS = 1_767_268_800 * SECOND  # 2026-01-01 12:00 UTC
ALARM = Alarm("hang", "high", "job", 0, (5,), ("node-1",), "Rank 5 on node-1 is stuck.", NOON_NS, {"verdict": "hang"})


def told(hook: AlarmHook, *alarms: Alarm) -> list[str]:
    outcomes = []
    for alarm in alarms:
        hook.raise_alarm(alarm)
        hook.finish()
        outcomes += [result.outcome for _, result in hook.take_results()]
    return outcomes


def quick(command: str | None = None, webhook: str | None = None, **more: float) -> AlarmSettings:
    """Settings with short pauses and without a wait for other alarms, unless told otherwise."""
    return AlarmSettings(command, webhook, **{"pause_s": 0.05, "gather_s": 0.0, **more})  # type: ignore[arg-type]


def death(host: str, *ranks: int, run: str = "job") -> Alarm:
    sentence = f"Ranks {ranks} on {host} ended without a goodbye."
    return Alarm("rank-died", "high", run, 0, ranks, (host,), sentence, NOON_NS, fate="ended without a goodbye")


class Listener:
    """A server that answers with the given codes, one after the other, and keeps what it got."""

    def __init__(self, codes: list[int]) -> None:
        got: list[bytes] = []
        self.got = got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(codes.pop(0) if codes else 200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alarm"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def codes() -> list[int]:
    """What the listener answers, before it says 200."""
    return []


@pytest.fixture
def listener(codes: list[int]) -> Iterator[Listener]:
    server = Listener(codes)
    yield server
    server.close()


def test_a_command_gets_the_alarm_on_stdin_and_in_short_variables(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f'cat > {out}; echo "$MEGASCOPE_ALARM_KIND $MEGASCOPE_ALARM_RANKS" > {out}.short'
    assert told(AlarmHook(AlarmSettings(command), tmp_path / "memory"), ALARM) == ["told"]
    value = json.loads(out.read_text())
    assert (value["kind"], value["ranks"], value["moment"]) == ("hang", [5], "2026-01-01T12:00:00Z")
    assert value["verdict"] == {"verdict": "hang"}
    assert Path(f"{out}.short").read_text() == "hang 5\n"


def test_the_same_alarm_is_told_once_by_all_agents_and_after_a_restart(tmp_path: Path) -> None:
    settings = AlarmSettings(f"echo told >> {tmp_path / 'out'}")
    first, second = (AlarmHook(settings, tmp_path / "memory") for _ in range(2))
    others = (replace(ALARM, ranks=(6,)), replace(ALARM, attempt=1), replace(ALARM, kind="slow"))
    assert told(first, ALARM, ALARM, replace(ALARM, moment_ns=NOON_NS + SECOND)) == ["told", "duplicate", "duplicate"]
    assert told(second, ALARM, *others) == ["duplicate", "told", "told", "told"]
    assert (tmp_path / "out").read_text().count("told") == 4


def test_after_the_window_it_is_told_again(tmp_path: Path) -> None:
    settings = AlarmSettings("true", window_s=100.0)
    assert told(AlarmHook(settings, tmp_path / "memory"), ALARM) == ["told"]
    (kept,) = (tmp_path / "memory").rglob("*.told")
    os.utime(kept, (time.time() - 101, time.time() - 101))
    assert told(AlarmHook(settings, tmp_path / "memory"), ALARM, ALARM) == ["told", "duplicate"]


def test_of_many_that_raise_it_at_once_one_tells(tmp_path: Path) -> None:
    hooks = [AlarmHook(quick("true"), tmp_path / "memory") for _ in range(8)]
    for hook in hooks:
        hook.raise_alarm(ALARM)
    for hook in hooks:
        hook.finish()
    results = [result.outcome for hook in hooks for _, result in hook.take_results()]
    assert sorted(results) == ["duplicate"] * 7 + ["told"]


@pytest.mark.parametrize(
    ("rule", "silent"),
    [
        ("kind=hang", True),
        ("kind=slow", False),
        ("host=node-*", True),
        ("host=other", False),
        ("run=job,kind=h*", True),
        ("kind=hang,until=2026-01-01T12:30Z", True),
        ("2026-01-01T11:59:00+00:00", False),
        ("until=2026-01-01T13:00:00+01:00", False),
    ],
)
def test_silence(rule: str, silent: bool) -> None:
    assert Silence.parse(rule).covers(ALARM, NOON_NS + SECOND) is silent


def test_a_silence_of_one_host_hides_no_other(tmp_path: Path) -> None:
    two = replace(ALARM, hosts=("node-1", "node-2"))
    assert not Silence.parse("host=node-1").covers(two, NOON_NS)
    settings = AlarmSettings("true", silences=(Silence.parse("host=node-1"),))
    assert told(AlarmHook(settings, tmp_path / "memory"), ALARM, two) == ["silenced", "told"]


@pytest.mark.parametrize("rule", ["", "colour=red", "kind=", "until=tomorrow", "soon"])
def test_a_rule_that_makes_no_sense_is_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="silence"):
        Silence.parse(rule)


def test_settings_of_the_environment() -> None:
    found = AlarmSettings.from_environment(
        {
            "MEGASCOPE_ALARM_COMMAND": "true",
            "MEGASCOPE_ALARM_WEBHOOK": "https://example.com/x",
            "MEGASCOPE_ALARM_SILENCE": "kind=slow; host=a",
            "MEGASCOPE_ALARM_WINDOW_S": "60",
        }
    )
    silences = (Silence(kind="slow"), Silence(host="a"))
    assert found == AlarmSettings("true", "https://example.com/x", silences, 60.0)
    assert not AlarmSettings.from_environment({}).tells_anybody
    for name, value in (("WEBHOOK", "file:///etc/passwd"), ("WINDOW_S", "long"), ("SILENCE", "x=y")):
        with pytest.raises(UsageError):
            AlarmSettings.from_environment({f"MEGASCOPE_ALARM_{name}": value})


def outcomes(hook: AlarmHook, least: int, timeout_s: float = 10) -> list[Told]:
    """What came of alarms, once there are so many results."""
    found: list[Told] = []

    def enough() -> bool:
        found.extend(told for _, told in hook.take_results())
        return len(found) >= least

    wait_for(enough, timeout_s, f"{least} results")
    return found


def test_a_target_that_is_down_is_tried_until_it_is_back(tmp_path: Path) -> None:
    """The alarm counts as told only then, and whoever raises it again meanwhile has not lost it."""
    up, out = tmp_path / "up", tmp_path / "out"
    settings = quick(f"test -e {up} || {{ echo 'no mail' >&2; exit 3; }}; cat >> {out}")
    hook, other = (AlarmHook(settings, tmp_path / "memory") for _ in range(2))
    hook.raise_alarm(ALARM)
    assert outcomes(hook, 1) == [Told("retrying", "the alarm command ended with 3: no mail")]
    other.raise_alarm(ALARM)
    assert not list(tmp_path.rglob("*.told"))
    up.touch()
    assert outcomes(hook, 1) == [Told("told")]
    assert outcomes(other, 1) == [Told("duplicate")]
    assert json.loads(out.read_text())["ranks"] == [5]


def test_it_is_given_up_at_last(tmp_path: Path) -> None:
    count = tmp_path / "count"
    hook = AlarmHook(quick(f"echo x >> {count}; exit 3", retry_for_s=0.5), tmp_path / "memory")
    hook.raise_alarm(ALARM)
    first, last = outcomes(hook, 2)
    assert (first.outcome, last) == ("retrying", Told("failed", "the alarm command ended with 3"))
    assert count.read_text().count("x") > 1
    assert not hook.pick_up()
    assert told(AlarmHook(quick("true"), tmp_path / "memory"), ALARM) == ["told"], "another one may try anew"


def test_of_two_targets_only_the_one_that_failed_is_tried_again(
    codes: list[int], listener: Listener, tmp_path: Path
) -> None:
    codes += [503, 404, 500]
    hook = AlarmHook(quick(f"echo x >> {tmp_path / 'count'}", listener.url), tmp_path / "memory")
    hook.raise_alarm(ALARM)
    assert [one.outcome for one in outcomes(hook, 2)] == ["retrying", "told"]
    assert (tmp_path / "count").read_text() == "x\n"
    assert len(listener.got) == 4


def test_what_a_process_leaves_another_one_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "LEFT_AFTER_S", 0.0)
    first = AlarmHook(quick("exit 3"), tmp_path / "memory")
    first.raise_alarm(ALARM)
    outcomes(first, 1)
    first.finish(0.0)
    assert [result.outcome for _, result in first.take_results()] == ["left"]
    silent = replace(quick("true"), silences=(Silence(kind="hang"),))
    assert AlarmHook(silent, tmp_path / "memory").pick_up() == 0
    second = AlarmHook(quick(f"cat > {tmp_path / 'out'}"), tmp_path / "memory")
    assert second.pick_up() == 1
    second.finish()
    assert [result.outcome for _, result in second.take_results()] == ["told"]
    assert json.loads((tmp_path / "out").read_text()) == json.loads(json.dumps(ALARM.as_json()))
    assert second.pick_up() == 0


def test_where_the_sender_dies_another_one_takes_over(tmp_path: Path) -> None:
    """A process is killed while it tells: its claim runs out, and a process that waits for it tells instead."""
    began, out = tmp_path / "began", tmp_path / "out"
    code = (
        "import sys; from pathlib import Path; from test_alarms import *\n"
        f"hook = AlarmHook(quick('touch {began}; sleep 60'), Path({str(tmp_path / 'memory')!r}))\n"
        "hook.raise_alarm(ALARM); hook.finish(60)"
    )
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent}"}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
    try:
        wait_for(began.exists, 30, "the first try")
        other = AlarmHook(quick(f"cat > {out}"), tmp_path / "memory")
        other._memory = AlarmMemory(tmp_path / "memory", 3600, lease_s=0.5)
        child.kill()
        other.raise_alarm(ALARM)
        assert outcomes(other, 1) == [Told("told")]
    finally:
        child.kill()
        child.wait(timeout=10)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[-1:] == [f"touch {began}; sleep 60"]:
                    os.killpg(process.pid, signal.SIGKILL)
    assert json.loads(out.read_text())["ranks"] == [5]


def test_deaths_on_many_hosts_within_seconds_are_one_alarm(tmp_path: Path) -> None:
    out = tmp_path / "out"
    hooks = [AlarmHook(quick(f"cat >> {out}; echo >> {out}", gather_s=0.5), tmp_path / "memory") for _ in range(6)]
    for number, hook in enumerate(hooks):
        hook.raise_alarm(death(f"node-{number}", *range(8 * number, 8 * number + 8)))
    other = death("node-9", 1, run="another job")
    hooks[0].raise_alarm(other)
    results = [result.outcome for hook in hooks for result in outcomes(hook, 2 if hook is hooks[0] else 1)]
    assert sorted(results) == ["duplicate"] * 5 + ["told"] * 2
    values = {value["run"]: value for value in map(json.loads, out.read_text().splitlines())}
    assert len(out.read_text().splitlines()) == 2
    assert values["another job"]["ranks"] == [1]
    assert values["job"]["ranks"] == list(range(48))
    assert values["job"]["hosts"] == [f"node-{number}" for number in range(6)]
    assert values["job"]["sentence"] == (
        "48 ranks on 6 hosts ended without a goodbye, run job, attempt 0: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 40 more on "
        "node-0, node-1, node-2, node-3, node-4, node-5."
    )


def test_a_host_that_died_with_others_is_not_told_again_after_a_restart(tmp_path: Path) -> None:
    first, second = death("a", 0, 1), death("b", 2)
    assert told(AlarmHook(quick("true"), tmp_path / "memory"), first) == ["told"]
    later = AlarmHook(quick("true"), tmp_path / "memory")
    assert told(later, replace(first, ranks=(0, 1, 3)), second) == ["duplicate", "told"]


def test_alarms_survive_the_store_and_damaged_ones_do_not(tmp_path: Path) -> None:
    memory = AlarmMemory(tmp_path, 100.0)
    for alarm in (ALARM, death("a", 1)):
        memory.keep(alarm)
    assert sorted(memory.left(0.0), key=lambda one: one.kind) == [ALARM, death("a", 1)]
    for path in tmp_path.rglob("*.alarm"):
        path.write_text('{"kind": "hang"}')
    assert list(memory.left(0.0)) == []
    memory.keep(ALARM)
    for path in tmp_path.rglob("*.alarm"):
        os.utime(path, (time.time() - 101,) * 2)
    assert list(memory.left(0.0)) == []
    assert len(list(tmp_path.rglob("*.alarm"))) == 1, "what is too old is removed, what is damaged is left"


def test_a_command_that_never_ends_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    problem = alarm_targets.call_command(f"sleep 60 & echo $! > {child}; wait", "{}", {}, timeout_s=0.5)
    assert problem == "the alarm command did not end within 0.5 s and was killed"
    pid = int(child.read_text())
    for _ in range(50):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    raise AssertionError("the command's child still runs")


def test_a_store_that_cannot_be_written_keeps_no_alarm_back(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file where the folder should be")
    assert told(AlarmHook(AlarmSettings("true"), tmp_path / "memory"), ALARM, ALARM) == ["told", "duplicate"]


def test_a_webhook_gets_the_object(listener: Listener, tmp_path: Path) -> None:
    assert told(AlarmHook(AlarmSettings(webhook=listener.url), tmp_path / "memory"), ALARM) == ["told"]
    (got,) = listener.got
    assert json.loads(got)["sentence"] == ALARM.sentence


def test_what_a_server_answers_is_a_problem_unless_it_is_well(codes: list[int], listener: Listener) -> None:
    codes += [503, 404, 302]
    found = [alarm_targets.call_webhook(listener.url, "{}") for _ in range(4)]
    assert found == [*(f"the webhook answered {code}" for code in (503, 404, 302)), None]


def test_a_webhook_that_nobody_serves() -> None:
    problem = alarm_targets.call_webhook("http://127.0.0.1:9/", "{}")
    assert problem is not None
    assert problem.startswith("the webhook cannot be reached")


def test_without_a_target_nobody_is_told(tmp_path: Path) -> None:
    assert told(AlarmHook(AlarmSettings(), tmp_path / "memory"), ALARM) == ["nobody"]
    assert not (tmp_path / "memory").exists()


def test_a_command_that_complains_without_end_costs_no_memory() -> None:
    told = alarm_targets.call_command("yes complaint >&2", "{}", {}, timeout_s=0.5)
    assert told == "the alarm command did not end within 0.5 s and was killed"
    assert alarm_targets.call_command("printf '\\377\\376 broken\\n' >&2; exit 0", "{}", {}) is None
    assert "broken" in (alarm_targets.call_command("printf '\\377 broken\\n' >&2; exit 3", "{}", {}) or "")
