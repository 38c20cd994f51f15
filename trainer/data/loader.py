"""Gives each rank its replica's part of a batch: read once in a tensor-parallel group, ahead of time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..comm import Channel
from ..config import TrainConfig
from ..probe import Probe
from ..skipping import batch_after
from ..topology import Mesh
from .batches import Batches, Position, Split
from .prefetch import Prefetch
from .uploads import Uploads


class Loader:
    """One tensor-parallel rank reads, its group gets the batch by broadcast.

    Only the first pipeline stage (inputs) and the last (targets) take part; on other ranks `load` returns None.
    Batches to train on are drawn ahead (``data.prefetch``), and the next one is copied to the device ahead.
    """

    def __init__(self, config: TrainConfig, mesh: Mesh, tp: Channel, probe: Probe, batches: Batches | None) -> None:
        self._mesh, self._tp, self._probe, self._batches = mesh, tp, probe, batches
        self._sequences = config.train.batch // config.parallel.dp
        self._length = config.model.sequence + 1
        self.position = Position(batch=config.train.batch)
        self._device = tp.funnel.device
        self._uploads = Uploads(self._device, torch.cuda if self._device.type == "cuda" else None)
        self._ahead = Prefetch(
            lambda number: self._draw(Split.TRAIN, number),
            lambda number: batch_after(number, config.data.skip),
            config.data.prefetch if batches is not None else 0,
        )

    def go_on(self, number: int, position: Position) -> None:
        """Continue at a checkpoint's position, with the batch of that number."""
        self._ahead.forget()
        self._uploads.forget()
        self.position = position.going_on(number, self.position.batch)
        if self._batches is not None:
            self._batches.position = self.position

    @staticmethod
    def takes_part(mesh: Mesh) -> bool:
        """Whether a rank needs data at all."""
        return mesh.index("pp") in (0, mesh.size("pp") - 1)

    @classmethod
    def reads(cls, mesh: Mesh) -> bool:
        """Whether a rank reads data itself."""
        return cls.takes_part(mesh) and mesh.index("tp") == 0

    def load(self, split: Split, number: int) -> Tensor | None:
        """[sequences of this replica, sequence + 1] token ids, on the device."""
        if not self.takes_part(self._mesh):
            return None
        with self._probe.span("data"):
            if self._batches is not None:
                with self._probe.span("data_read"):
                    batch = self._read(split, number)
            else:
                batch = torch.empty((self._sequences, self._length), dtype=torch.int64, device=self._device)
            if self._tp.size > 1:
                self._tp.broadcast(batch)
        return batch

    def close(self) -> None:
        """Nothing is drawn any more."""
        self._ahead.close()

    def _read(self, split: Split, number: int) -> Tensor:
        if split is not Split.TRAIN:
            return self._draw(split, number).to(self._device, non_blocking=True)
        batch = self._uploads.take(number, self._ahead.take(number))
        if (following := self._ahead.next_one()) is not None:
            self._uploads.begin(*following)
        return batch

    def _draw(self, split: Split, number: int) -> Tensor:
        """This replica's rows of a batch, in host memory."""
        assert self._batches is not None
        first = self._mesh.index("dp") * self._sequences
        rows = torch.from_numpy(self._batches.rows(split, number, first, first + self._sequences))
        return self._uploads.host(rows)
