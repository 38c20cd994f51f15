"""The file of steps: read once, freed once it is in the store, taken up where an earlier agent had come to."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.agent.agent import Agent
from megascope.collectors.spool import rank_metadata
from megascope.collectors.spool.holes import first_data, free_until
from megascope.profiler.recorder import Recorder
from support.collecting import drain_all, read_table

Open = Callable[..., Recorder]


def _has_holes(folder: Path) -> bool:
    path = folder / "probe"
    path.write_bytes(b"x" * 65536)
    return free_until(path, 8192)


def _run_steps(rank: Recorder, steps: range) -> None:
    for step in steps:
        rank.step(step)
        rank.step_metrics(step, loss=step / 2)


def _check(store_root: Path, steps: int) -> None:
    rows = read_table(store_root, "steps")
    assert [(row["step"], row["loss"]) for row in rows] == [(step, step / 2) for step in range(steps)]


def test_what_is_in_the_store_is_freed_and_a_new_agent_goes_on_behind_it(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not _has_holes(tmp_path):
        pytest.skip("the file system has no holes")
    monkeypatch.setattr(rank_metadata, "FREE_ABOVE_BYTES", 4096)
    rank = recorder()
    path = spool / "run" / "0" / "rank-00000.steps.jsonl"
    for part in range(4):
        watcher = agent()
        _run_steps(rank, range(500 * part, 500 * (part + 1)))
        watcher.poll(flush=True)
        status = path.stat()
        assert status.st_blocks * 512 <= 2 * 4096 < status.st_size
        watcher.close()
    rank.close("finished")
    drain_all(agent())
    _check(store_root, 2000)
    assert not list(spool.rglob("*.jsonl"))


def test_an_agent_that_knows_nothing_reads_what_was_not_freed(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, tmp_path: Path
) -> None:
    if not _has_holes(tmp_path):
        pytest.skip("the file system has no holes")
    rank = recorder()
    _run_steps(rank, range(1000))
    path = spool / "run" / "0" / "rank-00000.steps.jsonl"
    lines = path.read_bytes().split(b"\n")
    free_until(path, sum(len(line) + 1 for line in lines[:1500]))
    rank.close("finished")
    drain_all(agent())
    steps = [row["step"] for row in read_table(store_root, "steps")]
    assert steps == list(range(steps[0], 1000))
    assert 740 <= steps[0] <= 760


def test_without_holes_the_file_stays_as_it_is(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_metadata, "FREE_ABOVE_BYTES", 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: object())
    rank = recorder()
    _run_steps(rank, range(200))
    watcher = agent()
    watcher.poll(flush=True)
    assert b"\0" not in (spool / "run" / "0" / "rank-00000.steps.jsonl").read_bytes()
    _run_steps(rank, range(200, 300))
    rank.close("finished")
    drain_all(watcher)
    _check(store_root, 300)


def test_steps_in_the_other_file_count_too(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path
) -> None:
    """Recorders once wrote all lines into one file; a new agent takes none of them twice."""
    rank = recorder()
    path = spool / "run" / "0" / "rank-00000.meta.jsonl"
    for part in range(3):
        watcher = agent()
        with path.open("a") as file:
            for step in range(10 * part, 10 * (part + 1)):
                file.write(f'{{"kind": "step", "step": {step}, "start_ns": {step}, "duration_ns": 1}}\n')
                file.write(f'{{"kind": "metrics", "step": {step}, "loss": {step / 2}}}\n')
        watcher.poll(flush=True)
        watcher.close()
    rank.close("finished")
    drain_all(agent())
    _check(store_root, 30)


@given(st.integers(0, 30_000), st.integers(0, 30_000))
def test_the_first_byte_behind_a_hole_is_found(
    tmp_path_factory: pytest.TempPathFactory, zeros: int, freed: int
) -> None:
    path = tmp_path_factory.mktemp("holes") / "file"
    path.write_bytes(b"\0" * zeros + b"text" * 100)
    if freed:
        free_until(path, min(freed, zeros))
    assert first_data(path) == zeros
    assert path.stat().st_size == zeros + 400


def test_a_file_without_data_ends_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert first_data(path) == 0
    os.truncate(path, 10_000)
    assert first_data(path) == 10_000
