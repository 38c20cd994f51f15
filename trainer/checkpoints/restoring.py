"""Loading: rank 0 finds a checkpoint, one rank of each data-parallel group reads, and all agree or try an older one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...profiler.errors import MegascopeError, UsageError
from ..comm import Channel
from ..config import TrainConfig
from ..data.batches import Position
from ..flat import Bucket
from ..optim import ShardedOptimizer
from ..probe import Probe
from ..topology import Mesh
from .commit import check_model, check_text, layout_of
from .files import DamagedError, commit_path, committed_steps
from .generators import seed_generators, set_generators
from .reading import BITS, Assembler, BlockReader, Saved, parse_saved, read_files
from .regions import Bits, Grid, Span, whole
from .state import SMALL, STATES, format_of, group_spans, own_spans, small_state

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """What was loaded: the step to go on at, and where in the text. ``size_bytes``: what this rank read of shards."""

    step: int
    position: Position
    size_bytes: int


class Restorer:
    """Loads one rank's state, whatever the layout that saved it. All ranks call `restore` together."""

    def __init__(
        self, config: TrainConfig, mesh: Mesh, optimizer: ShardedOptimizer, world: Channel, probe: Probe
    ) -> None:
        assert config.checkpoint.folder is not None
        self._config, self._mesh, self._optimizer, self._probe = config, mesh, optimizer, probe
        self._world = world
        self._folder: Path = config.checkpoint.folder

    def restore(self, text: Mapping[str, Any] | None = None) -> Restored | None:
        """Load the newest checkpoint that is intact for all ranks; None where there is none at all.

        What is missing, torn, altered or not finite is named in a warning, and the one before it is taken. Raises
        UsageError for another model or another ``text``, MegascopeError where checkpoints exist and none can be used.
        """
        candidates = self._candidates(text)
        while True:
            with self._probe.span("checkpoint_find"):
                saved = self._next(candidates)
            if saved is None:
                return None
            size_bytes, failure = self._load(saved)
            if failure is not None:
                log.warning("Checkpoint %d is not used: %s", saved.commit.step, failure)
            if self._all_have(failure is None):
                return self._finished(saved, size_bytes)

    def _candidates(self, text: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
        """On rank 0, what it tells the others: the checkpoints, the newest first, and then why there is none."""
        steps = committed_steps(self._folder)
        for step in steps:
            try:
                contents = read_files(self._folder, step)
                saved = parse_saved(self._folder, step, contents)
                path, may_differ = commit_path(self._folder, step), self._config.checkpoint.other_text
                check_model(path, saved.commit, self._config.model)
                check_text(path, saved.commit, text, may_differ=may_differ)
            except DamagedError as error:
                log.warning("Checkpoint %d is not used: %s", step, error)
            except UsageError as error:
                yield {"refused": str(error)}
            else:
                yield {"step": step, "contents": [content.decode() for content in contents]}
        yield {"found": bool(steps)}

    def _next(self, candidates: Iterator[dict[str, Any]]) -> Saved | None:
        """The next checkpoint to try, on all ranks alike."""
        said = json.dumps(next(candidates)).encode() if self._world.index == 0 else b""
        answer = json.loads(share_bytes(self._world, said))
        if "refused" in answer:
            raise UsageError(answer["refused"])
        if answer.get("found"):
            raise MegascopeError(f"No checkpoint in {self._folder} is intact on all ranks: remove them to start anew.")
        if "found" in answer:
            return None
        return parse_saved(self._folder, answer["step"], [content.encode() for content in answer["contents"]])

    def _load(self, saved: Saved) -> tuple[int, DamagedError | None]:
        """Read all of this rank's state; the bytes read, and why it is not all there.

        After a failure it goes on taking part in its group's broadcasts, and reads no more.
        """
        failure: DamagedError | None = None
        with BlockReader(self._folder, torch.get_num_threads()) as reader:
            assembler = Assembler(saved, reader)
            for name, target in small_state(self._optimizer).items():
                try:
                    self._fill_small(assembler, name, target)
                except DamagedError as error:
                    failure = error
            for bucket in self._optimizer.buckets:
                for state, target in zip(STATES, bucket.state(), strict=True):
                    try:
                        self._fill(assembler, bucket, state, target, failure is None)
                    except DamagedError as error:
                        failure = error
        states = (part for bucket in self._optimizer.buckets for part in bucket.state())
        if failure is None and not all(bool(part.isfinite().all()) for part in states):
            failure = DamagedError(f"what rank {self._mesh.rank} has of it is not finite (NaN or infinite)")
        return reader.size_bytes, failure

    def _fill(self, assembler: Assembler, bucket: Bucket, state: str, target: Tensor, is_reading: bool) -> None:
        """One state of a bucket's shard: read by this rank for itself, or by the first of its group for all."""
        dp, split = bucket.channel, (self._mesh.index("tp"), self._mesh.size("tp"))
        shared = self._config.checkpoint.read_once and dp.size > 1
        size = bucket.shard_size * dp.size if shared else bucket.shard_size
        values = torch.zeros(size, dtype=target.dtype)
        failure: DamagedError | None = None
        if is_reading and (not shared or dp.index == 0):
            with self._probe.span("checkpoint_read"):
                spans = group_spans(bucket, *split) if shared else own_spans(bucket, *split)
                try:
                    _read(assembler, state, spans, format_of(target), values)
                except DamagedError as error:
                    failure = error
        values = values.to(target.device)
        if shared:
            with self._probe.span("checkpoint_share"):
                dp.broadcast(values)
            values = values[dp.index * bucket.shard_size :][: bucket.shard_size]
        target.copy_(values)
        if failure is not None:
            raise failure

    def _fill_small(self, assembler: Assembler, name: str, target: Tensor) -> None:
        """What all ranks have alike: rank 0 reads it. Where a checkpoint lacks it, as an imported one, it is zero."""
        if assembler.any_piece(name, SMALL) is None:
            target.zero_()  # a checkpoint that was then refused may have left something
            return
        values, failure = target.cpu(), None
        if self._world.index == 0:
            spans = [(name, slice(None), whole(Grid(tuple(target.shape), None)))]
            try:
                _read(assembler, SMALL, spans, format_of(target), values)
            except DamagedError as error:
                failure = error
        values = values.to(target.device)
        if self._world.size > 1:
            self._world.broadcast(values)
        target.copy_(values)
        if failure is not None:
            raise failure

    def _all_have(self, is_intact: bool) -> bool:
        if self._world.size == 1:
            return is_intact
        agreed = torch.tensor([int(is_intact)], device=self._world.funnel.device)
        self._world.all_reduce(agreed, dist.ReduceOp.MIN)
        return bool(agreed.item())

    def _finished(self, saved: Saved, size_bytes: int) -> Restored:
        """Make the weights from the masters, and set what is not in tensors."""
        commit, rank, seed = saved.commit, self._mesh.rank, self._config.train.seed
        with self._probe.span("checkpoint_gather"):
            for flat in self._optimizer.flats:
                flat.gather()
                flat.finish_gather()
                flat.release()
        self._optimizer.updates = commit.updates
        if commit.layout == layout_of(self._config):
            set_generators(saved.descriptions[rank].generators, self._world.funnel.device)
        else:
            seed_generators(seed, commit.step, rank)
        if commit.seed not in (None, seed) and rank == 0:
            log.warning(
                "Checkpoint %d was trained with train.seed %d, now %d: the data are drawn in another order.",
                commit.step,
                commit.seed,
                seed,
            )
        position = Position(**commit.position) if commit.position else Position(batch=self._config.train.batch)
        return Restored(commit.step, position, size_bytes)


def share_bytes(channel: Channel, content: bytes) -> bytes:
    """What the channel's first rank has, on all of its ranks."""
    if channel.size == 1:
        return content
    device = channel.funnel.device
    size = torch.tensor([len(content)], device=device)
    channel.broadcast(size)
    values = torch.zeros(int(size.item()), dtype=torch.uint8, device=device)
    if channel.index == 0:
        values.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    channel.broadcast(values)
    return values.cpu().numpy().tobytes()


def _read(
    assembler: Assembler, state: str, spans: list[tuple[str, slice, Span]], number_format: str, values: Tensor
) -> None:
    bits: Bits = values.numpy().view(BITS[number_format])
    for parameter, where, span in spans:
        assembler.fill(parameter, state, span, number_format, bits[where])
