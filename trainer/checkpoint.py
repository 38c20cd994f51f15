"""Checkpoints: each rank writes its shard beside training, and the last one to finish commits through the store."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..collectors.durable import make_folders, write_durably
from ..profiler.errors import MegascopeError
from .checkpoint_files import (
    COMMIT,
    VERSION,
    DamagedError,
    check_unused,
    checksum_of,
    committed_steps,
    layout_of,
    read_commit,
    read_shard,
    remove_uncommitted,
    shard_path,
    step_folder,
)
from .comm import Channel
from .config import TrainConfig
from .flat import ShardSlice
from .optim import ShardedAdamW
from .probe import Probe
from .topology import Mesh

log = logging.getLogger(__name__)

STATES = ("master", "first_moment", "second_moment")


class Checkpointer:
    """Saves and restores one rank. Training waits only for the copy to the host; one write is under way at most."""

    def __init__(self, config: TrainConfig, mesh: Mesh, optimizer: ShardedAdamW, world: Channel, probe: Probe) -> None:
        assert config.checkpoint.folder is not None
        self._settings = config.checkpoint
        self._folder, self._keep = config.checkpoint.folder, config.checkpoint.keep
        self._mesh, self._optimizer, self._world, self._probe = mesh, optimizer, world, probe
        self._layout = layout_of(config)
        # A store may outlive a torchrun restart: the counters of two incarnations must not meet.
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._key = f"megascope/checkpoint/{config.attempt(os.environ)}/{restart}"
        self._host: Tensor | None = None
        self._thread: threading.Thread | None = None
        self._failure: OSError | RuntimeError | None = None

    # -- saving -------------------------------------------------------------------------------------------------

    def save(self, step: int) -> None:
        """Take a checkpoint after ``step`` updates; it is written and committed in the background.

        Raises MegascopeError where the write before this one failed.
        """
        self.finish()
        with self._probe.span("checkpoint_snapshot"):
            host, ready = self._stage()
        self._thread = threading.Thread(target=self._write, args=(step, host, ready), name="checkpoint")
        self._thread.start()

    def finish(self) -> None:
        """Wait for the write that is under way. MegascopeError where it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            raise MegascopeError(
                f"Cannot write a checkpoint to {self._folder} ({_reason(self._failure)}): "
                "make room, or change checkpoint.folder."
            ) from self._failure

    def _stage(self) -> tuple[Tensor, Any]:
        """Copy the state to the host; on a device without waiting for it (the event tells when it is there)."""
        parts = [state for bucket in self._optimizer.buckets for state in bucket.state()]
        if self._host is None:
            is_device = parts[0].is_cuda
            size = sum(part.numel() for part in parts)
            self._host = torch.empty(size, dtype=parts[0].dtype, pin_memory=is_device)
        for target, part in zip(torch.split(self._host, [part.numel() for part in parts]), parts, strict=True):
            target.copy_(part, non_blocking=True)
        if not parts[0].is_cuda:
            return self._host, None
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return self._host, ready

    def _write(self, step: int, host: Tensor, ready: Any) -> None:
        try:
            with self._probe.span("checkpoint_save"):
                if ready is not None:
                    ready.synchronize()
                path = shard_path(self._folder, step, self._mesh.rank)
                make_folders(path.parent)
                content = memoryview(host.view(torch.uint8).numpy().data)
                description = self._describe(step, content)
                write_durably(path, lambda file: _fill(file, content), stage=self._stage_span)
                described = json.dumps(description).encode()
                write_durably(path.with_suffix(".json"), lambda file: _fill(file, described), stage=self._stage_span)
                self._commit(step, {name: description[name] for name in ("size_bytes", "checksum")})
        except (OSError, RuntimeError) as error:  # torch reports a lost store as a RuntimeError
            self._failure = error

    def _stage_span(self, stage: str) -> AbstractContextManager[Any]:
        return self._probe.span(f"checkpoint_{stage}")

    def _commit(self, step: int, shard: Mapping[str, Any]) -> None:
        """Tell the store that this shard is on disk; the last rank to do so lists them all in the commit file."""
        store = dist.distributed_c10d._get_default_store()
        key, ranks = f"{self._key}/{step}", range(self._mesh.topology.world_size)
        store.set(f"{key}/{self._mesh.rank}", json.dumps(shard))
        if store.add(key, 1) < len(ranks):
            return
        shards = [json.loads(store.get(f"{key}/{rank}")) for rank in ranks]
        commit = {"version": VERSION, "step": step, "layout": self._layout, "shards": shards}
        write_durably(step_folder(self._folder, step) / COMMIT, lambda file: _fill(file, json.dumps(commit).encode()))
        for old in committed_steps(self._folder)[self._keep :]:
            (step_folder(self._folder, old) / COMMIT).unlink(missing_ok=True)
            shutil.rmtree(step_folder(self._folder, old), ignore_errors=True)

    def _describe(self, step: int, content: memoryview) -> dict[str, Any]:
        """What a shard holds, with the place of every piece in the whole model, for any later layout to read."""
        pieces: list[dict[str, Any]] = []
        place = 0
        for bucket in self._optimizer.buckets:
            for state in STATES:
                pieces += [_describe_piece(piece, state, place * bucket.master.itemsize) for piece in bucket.slices]
                place += bucket.shard_size
        return {
            "version": VERSION,
            "step": step,
            "rank": self._mesh.rank,
            "coordinates": dict(self._mesh.coordinates),
            "dtype": str(self._optimizer.buckets[0].master.dtype).removeprefix("torch."),
            "size_bytes": len(content),
            "checksum": checksum_of(content),
            "pieces": pieces,
        }

    # -- restoring ----------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Resume as configured, and return the step at which to go on; what was left half written is removed.

        No rank can save before rank 0 has come back from here: a step needs the gradient norm of all.
        """
        step = 0
        if self._settings.resume:
            with self._probe.span("checkpoint_load"):
                step = self.restore()
        else:
            check_unused(self._folder)
        if self._settings.every and self._mesh.rank == 0:
            remove_uncommitted(self._folder)
        return step

    def restore(self) -> int:
        """Load the newest checkpoint that is intact on all ranks; returns its step, 0 where there is none at all.

        A shard that is missing, torn or altered is named in a warning, and the checkpoint before it is taken.
        Raises UsageError for another layout, MegascopeError where checkpoints exist and none can be used.
        """
        committed = committed_steps(self._folder)
        newest = committed[0] if committed else -1
        while True:
            step, content = self._newest_intact([step for step in committed if step <= newest])
            lowest, highest = self._agree(step)
            if lowest < 0:
                if highest >= 0 or committed:
                    raise MegascopeError(
                        f"No checkpoint in {self._folder} is intact on all ranks: remove them to start anew."
                    )
                return 0
            if lowest == highest:
                assert content is not None
                self._load(content)
                self._optimizer.updates = lowest
                return lowest
            newest = lowest

    def _agree(self, step: int) -> tuple[int, int]:
        """The lowest and the highest of all ranks' steps."""
        if self._world.size == 1:
            return step, step
        both = torch.tensor([step, -step], dtype=torch.int64, device=self._world.funnel.device)
        self._world.all_reduce(both, dist.ReduceOp.MIN)
        lowest, highest = both.tolist()
        return lowest, -highest

    def _newest_intact(self, steps: list[int]) -> tuple[int, bytes | None]:
        for step in steps:
            try:
                commit, rank = read_commit(self._folder, step, self._layout), self._mesh.rank
                content = read_shard(shard_path(self._folder, step, rank), commit["shards"][rank])
            except DamagedError as error:
                log.warning("Checkpoint %d is not used: %s", step, error)
                continue
            return step, content
        return -1, None

    def _load(self, content: bytes) -> None:
        buckets = self._optimizer.buckets
        flat = torch.frombuffer(bytearray(content), dtype=buckets[0].master.dtype)
        parts = [state for bucket in buckets for state in bucket.state()]
        for target, part in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
            target.copy_(part)
        for chunk in self._optimizer.flats:
            chunk.gather()
            chunk.finish_gather()


def _fill(path: Path, content: bytes | memoryview) -> None:
    path.write_bytes(content)


def _reason(error: OSError | RuntimeError) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.partition("\n")[0].rstrip(".")


def _describe_piece(piece: ShardSlice, state: str, shard_byte: int) -> dict[str, Any]:
    """One parameter's part of one state: elements ``part_offset`` and on of the flattened tensor-parallel part."""
    return {
        "parameter": piece.spec.name,
        "state": state,
        "shape": piece.spec.shape,
        "tp_dimension": piece.spec.tp_dimension,
        "part_shape": piece.shape,
        "part_offset": piece.offset,
        "length": piece.end - piece.start,
        "shard_byte": shard_byte,
        "shard_offset": piece.start,
    }
