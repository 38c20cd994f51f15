"""Commits a checkpoint once every rank's shard is on disk, without a collective: through the rendezvous store."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...collectors.storage.durable import write_durably
from ...profiler.errors import UsageError
from .commit import Commit, read_commit, write_commit
from .files import DamagedError, commit_path, committed_steps, remove_all_but, remove_uncommitted, step_folder
from .writing import Written

log = logging.getLogger(__name__)

MakeCommit = Callable[[Sequence[Written]], Commit]


class Committer:
    """Of all ranks that report a step, the last commits it, and removes what is no longer kept.

    ``key`` must differ between incarnations of a job: the store may outlive one.
    """

    def __init__(self, folder: Path, key: str, rank: int, world_size: int, keep: int) -> None:
        self._folder, self._key, self._keep = folder, key, keep
        self._rank, self._world_size = rank, world_size
        self._reports = 0

    def report(self, step: int, written: Written | None, make: MakeCommit, *, prunes: bool = True) -> None:
        """Say that this rank's shard is on disk, or (None) that it could not be written; commit if all others have.

        A step that one rank could not write is removed by the last. Raises OSError, and RuntimeError where the store
        is lost. The reports of a rank are numbered: its second one of a step is never counted as another rank's.
        ``prunes``: what is no longer kept is removed.
        """
        store: Any = dist.distributed_c10d._get_default_store()
        self._reports += 1
        key = f"{self._key}/{step}/{self._reports}"
        store.set(f"{key}/{self._rank}", json.dumps(None if written is None else asdict(written)))
        if store.add(key, 1) < self._world_size:
            return
        names = [f"{key}/{rank}" for rank in range(self._world_size)]
        reports = [json.loads(store.get(name)) for name in names]
        if None in reports:
            store.set(self._failed(step), "")
        for name in (key, *names):
            store.delete_key(name)
        try:
            if None not in reports:
                content = write_commit(make([Written(**report) for report in reports]))
                write_durably(commit_path(self._folder, step), lambda file: _fill(file, content))
        finally:
            if not self.is_committed(step):
                shutil.rmtree(step_folder(self._folder, step), ignore_errors=True)
        if prunes and None not in reports:
            self._prune(step)

    def _failed(self, step: int) -> str:
        """The key that is there once a rank could not write its shard of a step."""
        return f"{self._key}/{step}/failed"

    def is_committed(self, step: int) -> bool:
        """Whether the checkpoint of a step counts."""
        return commit_path(self._folder, step).exists()

    def wait(self, step: int, patience_s: float) -> bool:
        """Wait until a checkpoint counts, or cannot any more, for so long at most; whether it does.

        Raises RuntimeError where the rendezvous store is lost.
        """
        store: Any = dist.distributed_c10d._get_default_store()
        deadline = time.monotonic() + patience_s
        while not self.is_committed(step):
            if time.monotonic() > deadline or store.check([self._failed(step)]):
                return self.is_committed(step)
            time.sleep(0.05)
        return True

    def _prune(self, step: int) -> None:
        """Remove what is no longer kept. What cannot be removed is left, with a warning: ``step`` is committed."""
        try:
            remove_uncommitted(self._folder, before=step)  # no rank comes here before it is done with those
            remove_all_but(self._folder, self._needed())
        except OSError as error:
            log.warning(
                "Old checkpoints in %s cannot be removed (%s): remove them yourself.", self._folder, error.strerror
            )

    def _needed(self) -> set[int]:
        """The newest that are kept, and those that they build upon."""
        newest = committed_steps(self._folder)[: self._keep]
        return set(newest).union(*(_bases(self._folder, step) for step in newest))


def _bases(folder: Path, step: int) -> set[int]:
    """What a checkpoint builds upon; where it cannot be told, all that are older, as of one of another version."""
    try:
        return set(read_commit(folder, step).bases)
    except (DamagedError, UsageError):
        return {older for older in committed_steps(folder) if older < step}


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
