"""Committing without collectives: what counts as everybody's report, and pruning that cannot undo a commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from megascope.trainer.checkpoints import committing
from megascope.trainer.checkpoints.commit import write_commit
from megascope.trainer.checkpoints.committing import Committer
from megascope.trainer.checkpoints.files import commit_path, committed_steps, step_folder
from support.checkpoints import commit_of, new_writers, some_values, write_checkpoint, write_shards


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    store = HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    return store


def committers(folder: Path, keep: int = 2) -> list[Committer]:
    return [Committer(folder, "job", rank, 2, keep) for rank in range(2)]


def reporter(folder: Path, step: int) -> Callable[[Committer, int], None]:
    """Both ranks' shards of a step are on disk; what is returned reports one of them."""
    written = write_shards(new_writers(folder), step, some_values(step))
    return lambda committer, rank: committer.report(step, written[rank], lambda shards: commit_of(step, shards))


@pytest.mark.usefixtures("store")
def test_a_rank_that_reports_twice_is_not_two_ranks(tmp_path: Path) -> None:
    first, second = committers(tmp_path)
    report = reporter(tmp_path, 4)
    ended = threading.Event()

    def twice() -> None:
        report(first, 0)
        report(first, 0)
        ended.set()

    threading.Thread(target=twice, daemon=True).start()
    assert ended.wait(20), "it waits for what the other has not said"
    assert committed_steps(tmp_path) == []
    report(second, 1)
    assert committed_steps(tmp_path) == [4]
    assert first.wait(4, 0.0)
    assert not first.wait(8, 0.0)


@pytest.mark.usefixtures("store")
def test_one_rank_whose_state_is_not_to_count_stops_the_waiting_of_all(tmp_path: Path) -> None:
    first, second = committers(tmp_path)
    report = reporter(tmp_path, 4)
    report(first, 0)
    second.report(4, None, lambda shards: commit_of(4, shards))
    began = time.monotonic()
    assert not first.wait(4, 60.0)
    assert time.monotonic() - began < 30
    assert not step_folder(tmp_path, 4).exists()


@pytest.mark.usefixtures("store")
def test_what_is_saved_in_need_pushes_nothing_out(tmp_path: Path) -> None:
    first, second = committers(tmp_path, keep=1)
    for step in (2, 3):
        written = write_shards(new_writers(tmp_path), step, some_values(step))
        for committer, one in zip((first, second), written, strict=True):
            committer.report(step, one, lambda shards, step=step: commit_of(step, shards), prunes=step == 2)  # type: ignore[misc]
    assert committed_steps(tmp_path) == [3, 2]


@pytest.mark.usefixtures("store")
def test_what_cannot_be_removed_is_warned_of_and_the_new_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stale(*_: object) -> None:
        raise OSError(116, "Stale file handle")

    first, second = committers(tmp_path, keep=1)
    monkeypatch.setattr(committing, "remove_all_but", stale)
    for step in (2, 4):
        report = reporter(tmp_path, step)
        report(first, 0)
        report(second, 1)
    assert committed_steps(tmp_path) == [4, 2]
    wanted = f"Old checkpoints in {tmp_path} cannot be removed (Stale file handle): remove them yourself."
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, wanted)] * 2


@pytest.mark.usefixtures("store")
def test_a_checkpoint_of_another_version_keeps_all_that_it_may_build_upon(tmp_path: Path) -> None:
    first, second = committers(tmp_path, keep=2)
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, new_writers(tmp_path), step, some_values())
    other = write_commit(commit_of(3, write_shards(new_writers(tmp_path), 3, some_values())))
    commit_path(tmp_path, 3).write_bytes(
        other.replace(b'"version":2', b'"version":1').replace(b'"checksum"', b'"other"')
    )
    report = reporter(tmp_path, 4)
    report(first, 0)
    report(second, 1)
    assert committed_steps(tmp_path) == [4, 3, 2, 1]
