"""Heartbeats are sampled from outside: no rank can hold them up, and they tell why one makes no progress."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.agent.agent import Agent
from megascope.profiler import opening
from megascope.profiler.errors import MegascopeError
from megascope.profiler.recorder import Recorder
from support import stuck_rank
from support.collecting import collective, drain_all, read_table
from support.processes import Processes

REASONS = ("gil-sleep", "gil-spin", "stopped", "killed", "collective")
EVERY_S = 0.25
LIVING = ("gil-sleep", "gil-spin", "stopped", "collective")


@pytest.fixture
def ranks(spool: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """One rank for each of `REASONS`, in that order, all of them stuck."""
    started = [stuck_rank.start(spool, rank, len(REASONS), reason) for rank, reason in enumerate(REASONS)]
    try:
        for rank in started:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        yield started
    finally:
        for rank in started:
            rank.kill()
            rank.wait(timeout=10)
            assert rank.stdout is not None
            rank.stdout.close()


def _beats(store_root: Path) -> dict[str, list[dict[str, Any]]]:
    """Heartbeats so far by the rank's reason, the oldest first."""
    beats: dict[str, list[dict[str, Any]]] = {reason: [] for reason in REASONS}
    with contextlib.suppress(MegascopeError):  # there is no store yet
        for row in read_table(store_root, "heartbeats"):
            beats[REASONS[row["rank"]]].append(row)
    return beats


@pytest.mark.timeout(120)
def test_dead_stopped_and_stuck_ranks_are_told_apart(
    ranks: list[subprocess.Popen[str]], processes: Processes, store_root: Path
) -> None:
    agent = processes.agent(heartbeat_s=EVERY_S, stall_s=60.0, idle_exit_s=None)
    ranks[2].send_signal(signal.SIGSTOP)
    ranks[3].kill()
    deadline = time.monotonic() + 60
    while min(len(_beats(store_root)[reason]) for reason in LIVING) < 6:
        assert time.monotonic() < deadline, "some rank has too few heartbeats"
        time.sleep(0.3)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=30) == 0
    beats = _beats(store_root)

    last = {reason: rows[-1] for reason, rows in beats.items()}
    states = {reason: row["process_state"] for reason, row in last.items()}
    assert states["killed"] in {"zombie", "gone"}
    assert states["stopped"] == "stopped"
    assert states["gil-sleep"] == states["collective"] == "sleeping"
    for reason in LIVING:
        rows = [row for row in beats[reason] if row["process_state"] == states[reason]]
        assert len(rows) >= 3, f"{reason} holds its heartbeats up"
        assert {row["step"] for row in rows} == {3}
        (begun_ns,) = {row["in_flight"][0]["begun_ns"] for row in rows}
        ages = [row["moment_ns"] - begun_ns for row in rows]
        assert all(a < b for a, b in itertools.pairwise(ages))
        assert ages[-1] - ages[0] > 0.3e9
    used_ns = {reason: rows[-1]["cpu_ns"] - rows[1]["cpu_ns"] for reason, rows in beats.items() if reason != "killed"}
    assert used_ns["gil-spin"] > 3 * max(used_ns["gil-sleep"], used_ns["collective"], used_ns["stopped"], 10**7)
    assert [flight["segment"] for flight in last["collective"]["in_flight"]] == ["collective", "dp_all_reduce"]


def test_a_box_from_before_a_reboot_is_dated_by_its_own_clock(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], spool: Path, store_root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A spool on disk outlives the monotonic clock that its boxes were dated by."""
    monkeypatch.setattr("megascope.collectors.spool.rank_drain.QUIET_NS", 20_000_000)
    day_ns = 86_400 * 10**9
    with monkeypatch.context() as before:
        before.setattr(opening, "boot_id", lambda: "the boot before")
        real = time.time_ns
        before.setattr(time, "time_ns", lambda: real() - day_ns)
        old = recorder(rank=0, world_size=2)
        collective(old, 1)
        old.begin(old.segment("forward"))
    new = recorder(rank=1, world_size=2)
    collective(new, 1)
    watcher = agent(heartbeat_s=0.0)
    for _ in range(3):
        watcher.poll(flush=True)
        time.sleep(0.03)
    now_ns = time.time_ns()
    starts = {row["rank"]: row["start_ns"] for row in read_table(store_root, "events")}
    assert abs(starts[0] + day_ns - now_ns) < 60 * 10**9
    assert abs(starts[1] - now_ns) < 60 * 10**9
    beats = read_table(store_root, "heartbeats")
    assert all(abs(row["moment_ns"] - now_ns) < 60 * 10**9 for row in beats)
    assert {row["process_state"] for row in beats if row["rank"] == 0} == {None, "gone"}
    (incident,) = read_table(store_root, "incidents")
    assert incident["kind"] == "rank-died"
    assert abs(incident["opened_ns"] - now_ns) < 60 * 10**9
    new.close("finished")
    drain_all(watcher)
    assert not any(spool.rglob("clock*"))


def test_ranks_of_one_boot_share_a_base_also_after_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(opening, "boot_id", lambda: "the boot before")
        first = opening.clock_base_ns(tmp_path)
        assert opening.clock_base_ns(tmp_path) == first
    bases = {opening.clock_base_ns(tmp_path) for _ in range(5)}
    assert len(bases) == 1
    assert len(list(tmp_path.iterdir())) == 2
