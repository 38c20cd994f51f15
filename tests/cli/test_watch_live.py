"""The agent and `megascope watch` beside a real training: silent while it is well, one alarm when a rank stops."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.incidents.incidents import SNAPSHOT_GAP_S
from megascope.collectors.reading.store import Store
from megascope.profiler.errors import MegascopeError
from support.commands import MEGASCOPE, environment, finished, started, wait_for

pytestmark = pytest.mark.alone

FAULT_STEP = 14
CONFIG = """
[model]
layers = 4
width = 32
heads = 2
sequence = 32
[parallel]
tp = 2
dp = 2
timeout_s = 600
[train]
steps = 1000000
batch = 8
microbatches = 2
log_every = 1000
eval_every = 4
[data]
limit_bytes = 200000
[checkpoint]
folder = "checkpoints"
every = 3
[record]
run = "live"
store = "store"
"""


class Webhook:
    """Keeps what is POSTed to it; the first answer is that it is down."""

    def __init__(self) -> None:
        got: list[dict[str, Any]] = []
        answers = [503]
        self.got = got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                code = answers.pop() if answers else 200
                if code == 200:
                    got.append(json.loads(content))
                self.send_response(code)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """A local server for alarms."""
    server = Webhook()
    yield server
    server.close()


def rows(folder: Path, sql: str) -> list[dict[str, Any]]:
    with Store(folder / "store") as store:
        return list(store.query(sql, attempt=store.attempt()).to_pylist())


def judged(folder: Path) -> dict[str, Any] | None:
    found = rows(folder, "SELECT * FROM incidents WHERE verdict LIKE '%\"hang\"%'")
    return found[0] if found else None


def has_begun(folder: Path) -> bool:
    with suppress(MegascopeError):
        return bool(rows(folder, "SELECT * FROM runs"))
    return False


@pytest.mark.timeout(240)
def test_a_rank_that_stops_is_one_incident_one_verdict_and_one_alarm(tmp_path: Path, webhook: Webhook) -> None:
    """Four processes evaluate and save checkpoints without an incident; then rank 1 stops within its forward."""
    (tmp_path / "small.toml").write_text(CONFIG)
    told = tmp_path / "told"
    alarms = {"MEGASCOPE_ALARM_COMMAND": f"cat >> {told}; echo >> {told}", "MEGASCOPE_ALARM_WEBHOOK": webhook.url}
    fault = f"stop rank=1 step={FAULT_STEP} segment=forward"
    with started(tmp_path, "train", "small.toml", "--fault", fault, **alarms):
        wait_for(lambda: has_begun(tmp_path), 90, "a store")
        with (tmp_path / "watch.jsonl").open("wb") as out:
            watch = subprocess.Popen(
                [*MEGASCOPE, "watch", "store", "--json", "--interval", "0.5"],
                cwd=tmp_path, env=environment(tmp_path, **alarms), stdout=out, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            incident = wait_for(lambda: judged(tmp_path), 120, "a verdict")
            wait_for(lambda: webhook.got and told.exists(), 30, "the alarm")
            wait_for(lambda: '"hang"' in (tmp_path / "watch.jsonl").read_text(), 30, "the line of the watch")
        finally:
            watch.terminate()
            watch.wait(timeout=30)
        incidents = rows(tmp_path, "SELECT * FROM incidents")
        (fault_row,) = rows(tmp_path, "SELECT first_ns FROM faults")
        looks = rows(tmp_path, "SELECT DISTINCT rank, snapshot FROM in_flight")
    done = {
        one["segment"]
        for one in rows(tmp_path, "SELECT DISTINCT s.name AS segment FROM events JOIN segments s USING (segment)")
    }
    assert {"eval", "checkpoint_save"} <= done, "the healthy part had both"
    assert [one["kind"] for one in incidents] == ["stalled"]
    assert 6 * 10**9 <= incident["opened_ns"] - fault_row["first_ns"] < 20 * 10**9, "long before any timeout"
    actions = json.loads(incident["actions"])
    snapshots = {one["snapshot"]: one["moment_ns"] for one in actions if one["action"] == "snapshot"}
    assert snapshots[2] - snapshots[1] >= SNAPSHOT_GAP_S * 10**9
    assert {(one["rank"], one["snapshot"]) for one in looks} == {(rank, look) for rank in range(4) for look in (1, 2)}
    verdict = json.loads(incident["verdict"])
    assert [(one["kind"], one["ranks"]) for one in verdict["culprits"]] == [("host-stuck", [1])]
    command = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(one["kind"], one["ranks"]) for one in command] == [("hang", [1])]
    assert webhook.got == command
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert [one["what"] for one in lines] == ["watched", "incident", "hang"]


@pytest.mark.timeout(240)
def test_a_rank_that_is_only_slow_opens_no_incident(tmp_path: Path) -> None:
    """Four processes, one of which becomes far slower than the others for longer than a stall lasts."""
    config = CONFIG.replace("steps = 1000000", "steps = 24").replace("eval_every = 4", "eval_every = 100")
    (tmp_path / "small.toml").write_text(config.replace("every = 3", "every = 100"))
    fault = f"slow rank=1 factor=80 from={FAULT_STEP}"
    done = finished(tmp_path, "train", "small.toml", "--fault", fault)
    assert done.returncode == 0, done.stdout
    wait_for(lambda: has_ended(tmp_path), 60, "the end of the run in the store")
    [times] = rows(
        tmp_path,
        f"""SELECT median(duration_ns) FILTER (step BETWEEN 4 AND {FAULT_STEP - 1}) AS usual_ns,
                median(duration_ns) FILTER (step > {FAULT_STEP}) AS slow_ns,
                sum(duration_ns) FILTER (step > {FAULT_STEP}) AS all_ns FROM steps WHERE rank = 0""",
    )
    assert times["slow_ns"] > 3 * times["usual_ns"]
    assert times["all_ns"] > 7 * 10**9, "it was slow for longer than what makes a stall"
    assert rows(tmp_path, "SELECT * FROM incidents") == []


def has_ended(folder: Path) -> bool:
    with suppress(MegascopeError), Store(folder / "store") as store:
        return store.attempt().exit_reason is not None
    return False
