"""Errors of hardware that an agent sees are alarms of its own, the same as those of who reads them in the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from megascope.collectors.agent.agent import Agent
from megascope.collectors.alarms.rules import Alarm
from megascope.collectors.hardware import telling
from megascope.collectors.hardware.news import hardware_news
from megascope.collectors.hardware.telling import MOST_AT_ONCE, HardwareTeller, Job
from megascope.collectors.hardware.watch import Sources
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.host import HOST_VARIABLE
from megascope.profiler.recorder import Recorder
from support.commands import wait_for

XID = {"kind": "xid", "severity": "error", "code": 79, "device": "GPU-1", "text": "Xid 79 (fallen off the bus)"}
OOM = {"kind": "oom-kill", "severity": "error", "text": "Killed process 5 (python)"}
NOTE = {"kind": "not-sampled", "severity": "note", "text": "No GPU is sampled."}


def job() -> Job:
    ranks = [SimpleNamespace(rank=rank, header=SimpleNamespace(device=f"GPU-{rank % 2}")) for rank in range(4)]
    unknown = SimpleNamespace(rank=9, header=None)
    return cast(Job, SimpleNamespace(run="job", attempt=2, ranks=[*ranks, unknown], now_ns=7))


def told(*events: dict[str, Any], teller: HardwareTeller | None = None) -> list[Alarm]:
    found: list[Alarm] = []
    (teller or HardwareTeller(found.append)).tell(job(), events)
    return found


def test_an_agent_tells_what_a_watch_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the hook, which knows alarms by their key, tells one of them."""
    monkeypatch.setenv(HOST_VARIABLE, "node-7")
    own = told(XID, OOM, NOTE)
    assert [(one.kind, one.ranks, one.hosts) for one in own] == [
        ("hardware-xid-79", (1, 3), ("node-7",)),
        ("hardware-oom-kill", (), ("node-7",)),
    ]
    now = time.time_ns()
    rows = [{"device": None, "code": None, **one, "host": "node-7", "moment_ns": now} for one in (XID, OOM, NOTE)]
    with TableWriter(tmp_path / "store", "w") as writer:
        ranks = {"rank": [0, 1, 2, 3], "host": ["node-7"] * 4, "device": [f"GPU-{rank % 2}" for rank in range(4)]}
        writer.write("ranks", "job", 2, ranks)
        writer.write("runs", "job", 2, {"world_size": [4]})
        writer.write("hardware_events", "job", 2, {name: [row[name] for row in rows] for name in rows[0]})
        writer.commit()
    with Store(tmp_path / "store") as store:
        news = list(hardware_news(store, store.attempt(), {}, now))
    assert sorted(one.alarm.key for one in news if one.alarm) == sorted(one.key for one in own)


def test_the_same_error_is_told_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Alarm] = []
    teller = HardwareTeller(found.append)
    for _ in range(3):
        teller.tell(job(), [XID, {**XID, "code": 48}])
    assert [one.kind for one in found] == ["hardware-xid-79", "hardware-xid-48"]
    monkeypatch.setattr(telling, "AGAIN_S", 0.0)
    teller.tell(job(), [XID])
    assert len(found) == 3


def test_a_flood_is_told_by_its_first_errors() -> None:
    assert len(told(*[{**XID, "code": code} for code in range(MOST_AT_ONCE + 5)])) == MOST_AT_ONCE


@pytest.mark.timeout(60)
def test_an_agents_hook_gets_what_the_kernel_logs(
    recorder: Callable[..., Recorder],
    agent: Callable[..., Agent],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, out = tmp_path / "kmsg", tmp_path / "alarm"
    kernel.touch()
    monkeypatch.setenv("MEGASCOPE_ALARM_COMMAND", f"cat > {out}.tmp && mv {out}.tmp {out}")
    monkeypatch.setattr(
        "megascope.collectors.agent.agent.Sources",
        lambda **_: Sources(has_gpus=False, ports=tmp_path / "none", kernel_log=kernel),
    )
    recorder()
    watcher = agent(health_s=0.05)
    watcher.poll()
    age_us = time.monotonic_ns() // 1000
    with kernel.open("a") as file:
        file.write(f"3,1,{age_us},-;Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB\n")

    def alarm() -> str | None:
        watcher.poll()
        return out.read_text() if out.exists() else None

    assert '"kind": "hardware-oom-kill"' in wait_for(alarm, 20, "an alarm")
