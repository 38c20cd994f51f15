"""Checkpoints of one rank: copied to the host while training waits, written and committed while it goes on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch.distributed as dist

from ...profiler.errors import MegascopeError
from ..comm import Channel
from ..config import OnFailure, TrainConfig
from ..data.batches import Position
from ..data.corpus import TEXT_KEY
from ..finite import NotFiniteError, state_not_finite
from ..optim import ShardedOptimizer
from ..probe import Probe
from ..topology import Mesh
from .commit import Commit, layout_of, model_of
from .committing import Committer, MakeCommit
from .description import Piece
from .files import check_unused, remove_uncommitted, set_aside
from .generators import states_of_generators
from .restoring import Restored, Restorer
from .state import HostCopy
from .writing import ShardWriter, Written

log = logging.getLogger(__name__)


class Checkpointer:
    """Saves and restores one rank. Training waits only for the copy to the host; one write is under way at most."""

    def __init__(
        self, config: TrainConfig, mesh: Mesh, optimizer: ShardedOptimizer, world: Channel, probe: Probe
    ) -> None:
        assert config.checkpoint.folder is not None
        settings, folder = config.checkpoint, config.checkpoint.folder
        self._config, self._folder, self._settings = config, folder, settings
        self._mesh, self._rank, self._optimizer, self._probe = mesh, mesh.rank, optimizer, probe
        self._device = world.funnel.device
        # A store may outlive an incarnation: the counters of two must not meet.
        key = f"megascope/checkpoint/{config.incarnation(os.environ)}"
        self._committer = Committer(folder, key, mesh.rank, mesh.topology.world_size, settings.keep)
        self._writer = ShardWriter(folder, mesh.rank, whole_every=settings.whole_every)
        self._restorer = Restorer(config, mesh, optimizer, world, probe)
        self._host: HostCopy | None = None
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._newest: int | None = None
        self._text: Mapping[str, Any] | None = None

    def begin(self) -> Restored:
        """Resume as configured; where there is nothing to resume from, at step 0. What was half written is removed.

        No rank can save before rank 0 has come back from here: a step needs the gradient norm of all.
        """
        restored: Restored | None = None
        self._text = json.loads(dist.distributed_c10d._get_default_store().get(TEXT_KEY))
        if self._settings.resume:
            with self._probe.span("checkpoint_load"):
                restored = self._restorer.restore(self._text)
        else:
            check_unused(self._folder)
        restored = restored or Restored(0, Position(batch=self._config.train.batch), 0)
        self._newest = restored.step
        if self._settings.every:
            self._host = HostCopy(self._optimizer, self._mesh)
        if self._rank == 0:  # also where none are due: one may be asked for
            remove_uncommitted(self._folder)
            for path in set_aside(self._folder, restored.step):
                log.warning("A checkpoint that is not used is kept as %s.", path)
        return restored

    def save(self, step: int, position: Position, *, prunes: bool = True) -> None:
        """Take a checkpoint after ``step`` updates, to go on at ``position``; it is written in the background.

        One of the same step as the last one, or as what training went on from, is not taken again: its folder may be
        committed. Raises MegascopeError where the write before this one failed, if that is to end the training: no
        rank's state of this step counts then. ``prunes``: older ones that are no longer kept are removed.
        """
        if step == self._newest:
            return
        self._newest = step
        make = self._commit_of(step, position)
        with self._probe.span("checkpoint_stage"):
            try:
                self.finish()
            except MegascopeError:
                with contextlib.suppress(RuntimeError, OSError):
                    self._committer.report(step, None, make)  # the others need not wait for it
                raise
            if self._host is None:
                self._host = HostCopy(self._optimizer, self._mesh)
            with self._probe.span("checkpoint_snapshot"):
                ready = self._host.take()
            generators = states_of_generators(self._device)
        work = (step, ready, self._host.pieces(), generators, make, prunes)
        self._thread = threading.Thread(target=self._write, args=work, name="checkpoint")
        self._thread.start()

    def finish(self, *, required: bool = False) -> None:
        """Wait for the write that is under way. MegascopeError where it failed, if that is to end the training.

        ``required``: it does so however ``checkpoint.on_failure`` is set. So does a state that is not finite: it is
        never written, and training on from it is of no use.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if isinstance(failure, NotFiniteError):
            raise failure
        sentence = (
            f"Cannot write a checkpoint to {self._folder} ({_reason(failure)}): make room, or change checkpoint.folder."
        )
        if required or self._settings.on_failure is OnFailure.STOP:
            raise MegascopeError(sentence) from failure
        log.warning("Rank %d: %s Training goes on; the checkpoint before stays the newest.", self._rank, sentence)

    def wait(self, step: int, patience_s: float) -> bool:
        """Wait until the checkpoint of a step is committed, by whichever rank is the last; for so long at most."""
        return self._committer.wait(step, patience_s)

    def _write(
        self,
        step: int,
        ready: Any,
        pieces: Sequence[tuple[Piece, memoryview]],
        generators: dict[str, str],
        make: MakeCommit,
        prunes: bool,
    ) -> None:
        written: Written | None = None
        try:
            with self._probe.span("checkpoint_save"):
                if ready is not None:
                    ready.synchronize()
                try:
                    if self._host is not None and not self._host.is_finite():
                        raise state_not_finite(self._rank, step)
                    written = self._writer.write(step, pieces, generators, self._stage_span)
                finally:  # the others learn of a failure, too
                    with self._probe.span("checkpoint_commit"):
                        self._committer.report(step, written, make, prunes=prunes)
        except Exception as error:  # whatever it is, nobody else sees what ends this thread
            self._failure = error

    def _stage_span(self, stage: str) -> AbstractContextManager[Any]:
        return self._probe.span(f"checkpoint_{stage}")

    def _commit_of(self, step: int, position: Position) -> MakeCommit:
        """What makes the commit of this moment's state from what all ranks report."""
        config, updates, text = self._config, self._optimizer.updates, self._text

        def make(shards: Sequence[Written]) -> Commit:
            return Commit(
                step=step,
                updates=updates,
                position=asdict(position),
                seed=config.train.seed,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                model=model_of(config.model),
                layout=layout_of(config),
                bases=sorted(set().union(*(shard.bases for shard in shards))),
                size_bytes=sum(shard.size_bytes for shard in shards),
                state_bytes=sum(shard.state_bytes for shard in shards),
                descriptions=[shard.checksum for shard in shards],
                text=text,
            )

        return make


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text.partition("\n")[0].rstrip(".")
