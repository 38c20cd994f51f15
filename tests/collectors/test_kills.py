"""Kills of real ranks and real agents: every span that the box held is in the store, exactly once."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Store
from support.churn import Actor
from support.processes import Processes
from support.rollup_checks import check_rollups

pytestmark = pytest.mark.timeout(180)


def _check_complete(store_root: Path, ranks: int, spans: int, per_step: int) -> None:
    """Every span of every rank once, every step once with its loss."""
    with Store(store_root) as store:
        attempt = store.attempt()
        assert store.damaged == []
        rows = store.query('SELECT rank, "sequence" FROM events', attempt=attempt).to_pylist()
        steps = store.query("SELECT rank, step, loss, duration_ns FROM steps", attempt=attempt).to_pylist()
        raw_steps = store.query("SELECT count(*) AS n FROM steps_all", attempt=attempt)["n"][0].as_py()
        lost = store.query("SELECT max(lost_spans) AS lost FROM heartbeats", attempt=attempt)["lost"][0].as_py()
    counts = Counter((row["rank"], row["sequence"]) for row in rows)
    assert counts == Counter((rank, number) for rank in range(ranks) for number in range(1, spans + 1))
    expected = {(rank, step, 1.0 / (step + 1)) for rank in range(ranks) for step in range(spans // per_step)}
    assert {(row["rank"], row["step"], row["loss"]) for row in steps} == expected
    assert raw_steps == len(expected)
    assert all(row["duration_ns"] is not None for row in steps)
    assert not lost


def test_a_killed_rank_leaves_all_that_it_recorded(processes: Processes, store_root: Path, spool: Path) -> None:
    agent = processes.agent(idle_exit_s=3.0)
    killed = processes.rank(rank=0, world_size=2, spans=300, ending="kill")
    hanging = processes.rank(rank=1, world_size=2, spans=200, ending="hang")
    assert killed.wait(timeout=60) == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _incidents(store_root):
        time.sleep(0.1)
    (incident,) = _incidents(store_root)
    hanging.kill()
    hanging.wait(timeout=10)
    assert agent.wait(timeout=60) == 0
    with Store(store_root) as store:
        attempt = store.attempt()
        assert attempt.exit_reason == "crashed"
        assert attempt.end_ns is not None
        spans = store.read("spans", attempt).to_pylist()
        flights = store.read("in_flight", attempt).to_pylist()
        beats = store.read("heartbeats", attempt, where="process_state IN ('gone', 'zombie')").to_pylist()
    assert Counter(span["rank"] for span in spans) == {0: 301, 1: 201}
    # The operation that was done but not waited for is a span: nobody knows how long it would have been waited for.
    (done,) = [span for span in spans if span["rank"] == 0 and span["sequence"] == 301]
    assert done["exposed_ns"] is None
    assert done["duration_ns"] >= 0
    assert all(span["exposed_ns"] is not None for span in spans if span["sequence"] <= 200)
    assert incident["kind"] == "rank-died"
    assert json.loads(incident["actions"])[0]["rank"] == 0
    first = [flight for flight in flights if flight["snapshot"] == 1]
    assert {(f["rank"], f["segment"], f["sequence"], f["microbatch"], f["peer"]) for f in first} == {
        (rank, *what) for rank, last in ((0, 302), (1, 202)) for what in (
            ("forward", None, 3, None), ("dp_all_reduce", last, 3, 0),
        )
    }  # fmt: skip
    assert {flight["source"] for flight in flights} == {"own"}
    assert {beat["rank"] for beat in beats} == {0, 1}
    assert not spool.exists()


def _incidents(store_root: Path) -> list[dict[str, Any]]:
    if not (store_root / "_manifests").is_dir():
        return []
    try:
        with Store(store_root) as store:
            return list(store.read("incidents", store.attempt()).to_pylist())
    except Exception:
        return []


def test_what_a_dead_job_left_is_saved_later(processes: Processes, store_root: Path) -> None:
    """No agent was there: the ranks were killed, or left without a word, and an agent comes afterwards."""
    ranks = [processes.rank(rank=rank, world_size=2, spans=100, ending=e) for rank, e in enumerate(("kill", "leave"))]
    for rank in ranks:
        rank.wait(timeout=60)
    assert processes.agent(idle_exit_s=0.2).wait(timeout=60) == 0
    with Store(store_root) as store:
        attempt = store.attempt()
        assert Counter(store.read("events", attempt)["rank"].to_pylist()) == {0: 101, 1: 100}
        assert attempt.exit_reason == "crashed"
        assert store.read("in_flight", attempt, where="rank = 0").num_rows == 2


@pytest.mark.parametrize("after_rename", [False, True])
@pytest.mark.parametrize("write", [1, 4, 9, 14, 19])
def test_an_agent_that_dies_in_any_write_is_succeeded(
    processes: Processes, store_root: Path, spool: Path, write: int, after_rename: bool
) -> None:
    """The N-th durable write, of a table or of a manifest, is the last thing that the first agent does."""
    spans = 200 + 60 * write
    rank = processes.rank(spans=spans, pause_s=0.001)
    first = processes.agent(die_at_write=write, after_rename=after_rename)
    assert first.wait(timeout=60) == 9
    assert processes.agent(idle_exit_s=0.2).wait(timeout=60) == 0
    assert rank.wait(timeout=60) == 0
    _check_complete(store_root, ranks=1, spans=spans, per_step=10)
    assert not list(store_root.rglob("*.tmp"))
    assert not list(spool.rglob("*.box"))


def test_agents_killed_again_and_again_lose_and_double_nothing(
    processes: Processes, store_root: Path, spool: Path
) -> None:
    """Nor do their rollups, while a compactor takes over what they leave."""
    chance = random.Random(7)
    compactor = Actor("compactor", store_root, pause_s=0.1, min_files=2).start()
    ranks = [processes.rank(rank=rank, world_size=2, spans=4000, pause_s=0.001) for rank in range(2)]
    try:
        for at in range(24):
            agent = processes.agent(idle_exit_s=None, free_above_bytes=1)
            time.sleep(0.6 + chance.random())
            agent.kill()
            agent.wait(timeout=10)
            time.sleep(at % 2)  # a writer that is back at once leaves the compactor no turn
            if at >= 7 and any((store_root / "_manifests").glob("compactor*/*.json")):
                break
        for _ in range(300):  # on a busy machine it had no turn so far: now it has
            if any((store_root / "_manifests").glob("compactor*/*.json")):
                break
            time.sleep(0.1)
        assert processes.agent(idle_exit_s=0.2).wait(timeout=90) == 0
    finally:
        compactor.kill()
        compactor.join(timeout=10)
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    _check_complete(store_root, ranks=2, spans=4000, per_step=10)
    with Store(store_root) as store:
        check_rollups(store, store.attempt())
        assert any(name.startswith("compactor/") for name, _ in store.version())
    assert not list(spool.rglob("*.box"))


def test_a_second_agent_says_so_and_ends(processes: Processes, spool: Path, store_root: Path) -> None:
    first = processes.agent(idle_exit_s=None)
    _wait_for(spool / "agent.lock")
    assert processes.agent(idle_exit_s=None).wait(timeout=30) == 0
    assert first.poll() is None
    rank = processes.rank(spans=50)
    assert rank.wait(timeout=30) == 0
    # The first agent holds the run, or has just finished it: either way there is nothing for this one to do.
    assert processes.agent(run="run", idle_exit_s=0.2).wait(timeout=30) == 0
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 0
    _check_complete(store_root, ranks=1, spans=50, per_step=10)


def _wait_for(path: Path) -> None:
    """A lock that exists tells that an agent has begun, and minds signals."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not path.exists():
        time.sleep(0.02)
    assert path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_agent_drains_first_and_a_new_one_goes_on(
    processes: Processes, spool: Path, store_root: Path, number: signal.Signals
) -> None:
    rank = processes.rank(spans=2500, pause_s=0.001)
    agent = processes.agent(idle_exit_s=None, flush_s=1000.0, stop_grace_s=0.2)
    _wait_for(spool / "run.run.lock")
    time.sleep(0.3)
    agent.send_signal(number)
    assert agent.wait(timeout=30) == 0
    with Store(store_root) as store:
        assert store.read("events", store.attempt()).num_rows > 0
        assert store.attempt().exit_reason is None
    assert processes.agent(idle_exit_s=0.2).wait(timeout=60) == 0
    assert rank.wait(timeout=30) == 0
    _check_complete(store_root, ranks=1, spans=2500, per_step=10)


def test_ranks_that_end_with_the_agent_still_say_goodbye(processes: Processes, spool: Path, store_root: Path) -> None:
    """Ctrl-C reaches ranks and agent at once: the agent waits a little for them."""
    rank = processes.rank(spans=1500, pause_s=0.001)
    agent = processes.agent(idle_exit_s=None, stop_grace_s=60.0)
    _wait_for(spool / "run.run.lock")
    agent.send_signal(signal.SIGINT)
    assert agent.wait(timeout=60) == 0
    assert rank.wait(timeout=10) == 0
    with Store(store_root) as store:
        assert store.attempt().exit_reason == "finished"
    _check_complete(store_root, ranks=1, spans=1500, per_step=10)
