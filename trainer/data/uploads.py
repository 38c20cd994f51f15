"""Brings batches to a device: the next one travels on a stream of its own while this one is trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Uploads:
    """Copies of host batches on a device. ``cuda`` is `torch.cuda`, or None on a CPU, where they are there already."""

    def __init__(self, device: torch.device, cuda: Any = None) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device) if cuda is not None else None
        self._coming: tuple[int, Tensor] | None = None

    def host(self, rows: Tensor) -> Tensor:
        """A batch as it is best kept in host memory: pinned where a device copies from it."""
        return rows if self._cuda is None else rows.pin_memory()

    def begin(self, number: int, rows: Tensor) -> None:
        """Start to copy a batch that will be asked for."""
        if self._cuda is None or (self._coming is not None and self._coming[0] == number):
            return
        with self._cuda.stream(self._stream):
            self._coming = number, rows.to(self._device, non_blocking=True)

    def take(self, number: int, rows: Tensor) -> Tensor:
        """A batch on the device, for the current stream: the copy that was begun, or one that begins now."""
        if self._cuda is None:
            return rows
        if self._coming is None or self._coming[0] != number:
            self._coming = None
            return rows.to(self._device, non_blocking=True)
        copy, self._coming = self._coming[1], None
        current = self._cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        copy.record_stream(current)  # its memory was allocated for the other stream
        return copy

    def forget(self) -> None:
        """What was begun is not asked for any more."""
        self._coming = None
