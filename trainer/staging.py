"""Communication through the host's memory: what gloo needs where several ranks share a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Operation = Callable[..., Any]
"""Issues an operation on tensors: with True first it returns a Work, with False it blocks."""


class HostStage:
    """Takes an operation's tensors to the host and its results back, on a stream of its own.

    ``cuda`` is `torch.cuda`; None stages between host tensors, as tests do.
    """

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._cuda, self._stream = cuda, stream

    def prepare(self, operation: Operation, tensors: Sequence[Tensor], written: Sequence[Tensor]) -> Operation:
        """Begin the way down; what is returned runs the operation and begins the way back, on any thread.

        It returns the event after which ``written`` may be read on the device, or None. All of ``tensors`` are copied
        down, also those that are only written: a receive or a gather of unequal parts may leave some of it as it was.
        """
        with self._on_stream():
            hosts = [self._down(tensor) for tensor in tensors]
            ready = self._mark()

        def run(_: bool) -> Any:
            if ready is not None:
                ready.synchronize()
            operation(False, *hosts)
            with self._on_stream():
                for tensor, host in zip(tensors, hosts, strict=True):
                    if any(tensor is result for result in written):
                        tensor.copy_(host, non_blocking=self._cuda is not None)
                return self._mark()

        return run

    def _on_stream(self) -> Any:
        return torch.no_grad() if self._cuda is None else self._cuda.stream(self._stream)

    def _down(self, tensor: Tensor) -> Tensor:
        is_device = self._cuda is not None
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_device)
        return host.copy_(tensor.detach(), non_blocking=is_device)

    def _mark(self) -> Any:
        if self._cuda is None:
            return None
        event = self._cuda.Event()
        event.record(self._stream)
        return event
