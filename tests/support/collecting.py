"""What the tests of the agent share: operations of a rank in this process, and a look into the store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from megascope.collectors.agent.agent import Agent
from megascope.collectors.reading.store import Attempt, Store
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind


def collective(recorder: Recorder, sequence: int, *, wait: bool = True) -> Any:
    segment = recorder.segment("dp_all_reduce", SegmentKind.COLLECTIVE, "dp")
    span = recorder.begin_async(segment, group=recorder.group("dp", (0, 1)), sequence=sequence, size_bytes=64)
    if wait:
        recorder.end_async(span)
        recorder.wait_begin(span)
        recorder.wait_end(span)
    return span


def read_table(store_root: Path, table: str, **keywords: Any) -> list[dict[str, Any]]:
    with Store(store_root) as store:
        rows = list(store.read(table, store.attempt(), **keywords).to_pylist())
    keys = [name for name in ("moment_ns", "start_ns", "rank") if rows and name in rows[0]]
    return sorted(rows, key=lambda row: [row[name] for name in keys])


def newest_attempt(store_root: Path) -> Attempt:
    with Store(store_root) as store:
        return store.attempt()


def drain_all(agent: Agent) -> None:
    """Poll until nothing is left."""
    deadline = time.monotonic() + 20
    agent.poll(flush=True)
    while agent.runs and time.monotonic() < deadline:
        time.sleep(0.02)
        agent.poll(flush=True)
    assert not agent.runs
