"""The alarm hook: whom it tells, what it tells once only, when it is silent, and that it harms nobody."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from megascope.collectors import alarm_targets
from megascope.collectors.alarms import Alarm, AlarmHook, AlarmSettings, Silence
from megascope.profiler.errors import UsageError

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
    (kept,) = (tmp_path / "memory").iterdir()
    os.utime(kept, (time.time() - 101, time.time() - 101))
    assert told(AlarmHook(settings, tmp_path / "memory"), ALARM, ALARM) == ["told", "duplicate"]


def test_of_many_that_raise_it_at_once_one_tells(tmp_path: Path) -> None:
    hooks = [AlarmHook(AlarmSettings("true"), tmp_path / "memory") for _ in range(8)]
    for hook in hooks:
        hook.raise_alarm(ALARM)
    for hook in hooks:
        hook.finish()
    outcomes = [result.outcome for hook in hooks for _, result in hook.take_results()]
    assert sorted(outcomes) == ["duplicate"] * 7 + ["told"]


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


def test_a_command_that_fails_is_recorded_and_may_be_tried_again(tmp_path: Path) -> None:
    hook = AlarmHook(AlarmSettings("echo 'no mail' >&2; exit 3"), tmp_path / "memory")
    hook.raise_alarm(ALARM)
    hook.finish()
    ((_, result),) = hook.take_results()
    assert (result.outcome, result.detail) == ("failed", "the alarm command ended with 3: no mail")
    assert told(AlarmHook(AlarmSettings("true"), tmp_path / "memory"), ALARM) == ["told"]


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


def test_what_a_server_may_cure_is_tried_again(codes: list[int], listener: Listener) -> None:
    codes += [503, 500]
    assert alarm_targets.call_webhook(listener.url, "{}", retry_after_s=0.01) is None
    assert len(listener.got) == 3


def test_what_it_refuses_is_not(codes: list[int], listener: Listener) -> None:
    codes.append(404)
    assert alarm_targets.call_webhook(listener.url, "{}", retry_after_s=0.01) == "the webhook answered 404"
    assert len(listener.got) == 1


def test_a_webhook_that_nobody_serves(tmp_path: Path) -> None:
    problem = alarm_targets.call_webhook("http://127.0.0.1:9/", "{}", retry_after_s=0.01)
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
