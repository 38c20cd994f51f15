"""Rollups that the agent makes: the sums of the events whatever is killed, one row a window where nothing was."""

from __future__ import annotations

import errno
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megascope.collectors.agent.agent import Agent
from megascope.collectors.reading.store import Store
from megascope.collectors.rollups import drain as rollup_drain
from megascope.collectors.tables.schemas import is_open_block
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.recorder import Recorder
from support.collecting import collective, drain_all
from support.processes import Processes
from support.rollup_checks import check_rollups, windows_of_store

pytestmark = pytest.mark.timeout(180)


def check_store(root: Path) -> None:
    with Store(root) as store:
        assert store.damaged == []
        check_rollups(store, store.attempt())


def record(recorder: Recorder, steps: range, *, per_step: int = 3) -> None:
    for step in steps:
        recorder.step(step)
        with_child = recorder.begin(recorder.segment("forward"))
        for number in range(per_step):
            collective(recorder, step * per_step + number + 1)
        recorder.end(with_child)


def test_windows_are_written_once_complete_and_shown_before(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], store_root: Path
) -> None:
    mine, drain = recorder(), agent()
    for steps in (range(4), range(4, 10), range(10, 11), range(11, 23), range(23, 40)):
        record(mine, steps)
        drain.poll(flush=True)
        check_store(store_root)
    with Store(store_root) as store:
        rows = store.query(
            "SELECT filename LIKE '%-open%' AS open, window_steps, first_step FROM read_parquet(?, filename = true)",
            [[str(path) for path in store.files("rank_windows")]],
        ).to_pylist()
    assert {row["first_step"] for row in rows if not row["open"]} == {0, 10, 20}
    assert {(row["window_steps"], row["first_step"]) for row in rows if row["open"]} == {(10, 30), (100, 0), (1000, 0)}
    mine.close("finished")
    drain_all(drain)
    check_store(store_root)
    with Store(store_root) as store:
        entries = store.entries("rank_windows")
        assert not any(is_open_block(entry.block) for entry in entries)
        # 2 segments, 4 + 1 + 1 windows: nothing came late, so no window has a second row.
        assert sum(entry.rows for entry in entries) == 12
        assert len(windows_of_store(store, store.attempt())) == 12


def test_a_new_agent_goes_on_with_the_windows_that_still_grow(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], store_root: Path
) -> None:
    mine = recorder()
    for steps in (range(4), range(4, 15), range(15, 18)):
        drain = agent()
        record(mine, steps)
        drain.poll(flush=True)
        drain.close()
        check_store(store_root)
    mine.close("finished")
    drain_all(agent())
    check_store(store_root)
    with Store(store_root) as store:
        assert sum(entry.rows for entry in store.entries("rank_windows")) == 2 * (2 + 1 + 1)


def test_windows_whose_file_is_damaged_begin_anew_and_it_is_said(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine, drain = recorder(), agent()
    record(mine, range(4))
    drain.poll(flush=True)
    drain.close()
    [path] = store_root.glob("rank_windows/*/*/block=*-open/*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    record(mine, range(4, 6))
    mine.close("finished")
    drain_all(agent())
    assert "windows that were not complete begin anew" in caplog.text
    with Store(store_root) as store:
        rows = store.read("windows", store.attempt(), where="window_steps = 10 AND segment_name = 'forward'")
        assert rows["duration_count"].to_pylist() == [2]


def test_windows_whose_file_cannot_be_read_for_a_moment_are_not_cut_short(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, drain = recorder(), agent()
    record(mine, range(50))
    drain.poll(flush=True)
    drain.close()
    record(mine, range(50, 60))

    def refuse(_: Path) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    drain = agent()
    with monkeypatch.context() as patch:
        patch.setattr(rollup_drain, "read_parquet", refuse)
        drain.poll(flush=True)
        check_store(store_root)
    mine.close("finished")
    drain_all(drain)
    check_store(store_root)


def test_beyond_the_quota_windows_go_on_and_count_every_span_once(
    recorder: Callable[..., Recorder],
    agent: Callable[..., Agent],
    store_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("full")

    mine, drain = recorder(), agent(quota_bytes=0, heartbeat_s=0.0)
    record(mine, range(50))
    with monkeypatch.context() as patch:
        patch.setattr(TableWriter, "publish", refuse)
        drain.poll(flush=True)
    for _ in range(2):
        drain.poll(flush=True)
    mine.close("finished")
    drain_all(drain)
    assert f"rank_windows, steps and heartbeats go on. Make room with `megascope prune {store_root}`" in caplog.text
    with Store(store_root) as store:
        assert store.entries("events") == []
        counted = store.query(
            "SELECT window_steps, sum(duration_count) AS n FROM rank_windows GROUP BY 1 ORDER BY 1"
        ).to_pylist()
        lost = store.query("SELECT max(lost_spans) AS n FROM heartbeats")["n"][0].as_py()
    assert counted == [{"window_steps": length, "n": 200} for length in (10, 100, 1000)]
    assert lost >= 200


def test_spans_that_are_not_to_be_trusted_or_have_no_step_are_in_no_window(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], store_root: Path
) -> None:
    mine, drain = recorder(), agent()
    collective(mine, 1)  # before the first step
    record(mine, range(3))
    failed = mine.segment("fails")
    span = mine.begin(failed)
    mine.end(span, status=1)
    mine.close("finished")
    drain_all(drain)
    check_store(store_root)
    with Store(store_root) as store:
        counted = store.query("SELECT sum(duration_count) AS n FROM rank_windows WHERE window_steps = 10")["n"][0]
        assert counted.as_py() == 12


def test_a_span_that_comes_late_adds_a_row(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], store_root: Path
) -> None:
    mine, drain = recorder(), agent()
    record(mine, range(30))
    drain.poll(flush=True)
    record(mine, range(2, 3))
    drain.poll(flush=True)
    record(mine, range(30, 31))
    mine.close("finished")
    drain_all(drain)
    check_store(store_root)
    with Store(store_root) as store:
        where = "window_steps = 10 AND first_step = 0"
        rows, added = (store.read(name, store.attempt(), where=where) for name in ("rank_windows", "windows"))
    assert (rows.num_rows, added.num_rows) == (4, 2)
    assert sum(added["duration_count"].to_pylist()) == sum(rows["duration_count"].to_pylist()) == 11 * 4
    assert set(added["segment_name"].to_pylist()) == {"forward", "dp_all_reduce"}


def test_a_store_that_cannot_be_written_for_a_while_gets_every_window_once(
    recorder: Callable[..., Recorder],
    agent: Callable[..., Agent],
    store_root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("full")

    mine, drain = recorder(), agent()
    record(mine, range(5))
    drain.poll(flush=True)
    for first in (5, 12):
        with monkeypatch.context() as patch:
            patch.setattr(TableWriter, "publish", refuse)
            record(mine, range(first, first + 7))
            drain.poll(flush=True)
        drain.poll(flush=True)
        check_store(store_root)
    mine.close("finished")
    drain_all(drain)
    check_store(store_root)


def test_agents_killed_again_and_again_count_every_span_once(processes: Processes, store_root: Path) -> None:
    chance = random.Random(11)
    ranks = [processes.rank(rank=rank, world_size=2, spans=2400, pause_s=0.001) for rank in range(2)]
    for _ in range(4):
        agent = processes.agent(idle_exit_s=None)
        time.sleep(0.6 + 0.8 * chance.random())
        agent.kill()
        assert agent.wait(timeout=10) == -signal.SIGKILL
    assert processes.agent(idle_exit_s=0.2).wait(timeout=90) == 0
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    check_store(store_root)


@pytest.mark.parametrize(("write", "after_rename"), [(2, False), (5, True), (8, False), (13, True)])
def test_an_agent_that_dies_in_any_write_counts_every_span_once(
    processes: Processes, store_root: Path, write: int, after_rename: bool
) -> None:
    spans = 200 + 60 * write
    rank = processes.rank(spans=spans, pause_s=0.001)
    assert processes.agent(die_at_write=write, after_rename=after_rename).wait(timeout=60) == 9
    assert processes.agent(idle_exit_s=0.2).wait(timeout=60) == 0
    assert rank.wait(timeout=60) == 0
    check_store(store_root)
    with Store(store_root) as store:
        assert not any(is_open_block(entry.block) for entry in store.entries("rank_windows"))
