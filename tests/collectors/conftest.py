"""Fixtures of the collectors' tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.agent.agent import Agent, AgentSettings
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.box.box import BoxLayout
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from support.processes import Processes

Events = dict[str, list[Any]]


@pytest.fixture
def store_root(tmp_path: Path) -> Path:
    """Where a test writes its store."""
    return tmp_path / "store"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where a test's ranks leave their boxes."""
    return tmp_path / "spool"


@pytest.fixture
def writer(store_root: Path) -> Iterator[TableWriter]:
    """A writer whose replaced files may be deleted at the next commit."""
    with TableWriter(store_root, "writer", grace_s=0.0) as writer:
        yield writer


@pytest.fixture
def events() -> Callable[..., Events]:
    """Makes columns of ``events``: ``count`` spans of one rank and step, numbered by sequence."""

    def make(count: int, *, rank: int = 0, step: int = 0, first: int = 1) -> Events:
        return {
            "rank": [rank] * count,
            "step": [step] * count,
            "segment": [7] * count,
            "start_ns": [1000 * (step * 1000 + first + i) for i in range(count)],
            "duration_ns": [10] * count,
            "sequence": list(range(first, first + count)),
            "clock": ["host"] * count,
            "status": ["ok"] * count,
        }

    return make


@pytest.fixture
def recorder(spool: Path) -> Iterator[Callable[..., Recorder]]:
    """Opens recorders of ranks in this process; those left open are closed."""
    opened: list[Recorder] = []

    def make(
        rank: int = 0, world_size: int = 1, *, run: str = "run", attempt: int = 0, records: int = 4096
    ) -> Recorder:
        layout = BoxLayout(slots=64, rings=2, ring_records=records, groups=16)
        settings = RecorderSettings(
            run=run, attempt=attempt, rank=rank, world_size=world_size, spool=spool, layout=layout
        )
        opened.append(recorder := open_recorder(settings))  # type: ignore[arg-type]
        assert isinstance(recorder, Recorder)
        return recorder

    yield make
    for each in opened:
        each.close("finished")


@pytest.fixture
def agent(spool: Path, store_root: Path) -> Iterator[Callable[..., Agent]]:
    """Makes agents that are polled by hand."""
    made: list[Agent] = []

    def make(**settings: Any) -> Agent:
        spool.mkdir(exist_ok=True)
        made.append(Agent(AgentSettings(spool=spool, store=store_root, **settings), threading.Event()))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def processes(spool: Path, store_root: Path) -> Iterator[Processes]:
    """Starts ranks and agents as processes; whatever still runs at the end is killed."""
    started = Processes(spool, store_root)
    yield started
    started.end()
