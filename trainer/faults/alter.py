"""A collective that a rank calls in another way than its peers: another operation, another length, another type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .kinds import FaultKind

_HALF_AS_WIDE = {
    torch.float64: torch.float32,
    torch.float32: torch.float16,
    torch.bfloat16: torch.float32,
    torch.int64: torch.int32,
}
"""Types of another width: gloo counts bytes, so that one of the same width passes through it unnoticed."""


@dataclass(frozen=True, slots=True)
class Call:
    """A collective as it is about to be issued. ``operation`` takes whether to be asynchronous, and the tensors."""

    segment: str
    operation: Callable[..., Any]
    tensors: Sequence[torch.Tensor]
    written: Sequence[torch.Tensor]
    payload: torch.Tensor


def altered(kind: FaultKind, call: Call, axis: str, group: dist.ProcessGroup) -> Call:
    """The call as a rank with a fault of one of the kinds in `kinds.ALTERING` makes it, on copies of the tensors."""
    if kind is FaultKind.WRONG_COLLECTIVE:
        return _other_operation(call, axis, group)
    change = _twice_as_long if kind is FaultKind.WRONG_SIZE else _another_type
    copies = {id(tensor): change(tensor) for tensor in (*call.tensors, *call.written, call.payload)}
    return Call(
        call.segment,
        call.operation,
        [copies[id(tensor)] for tensor in call.tensors],
        [copies[id(tensor)] for tensor in call.written],
        copies[id(call.payload)],
    )


def _other_operation(call: Call, axis: str, group: dist.ProcessGroup) -> Call:
    """A broadcast from the group's first rank in place of an all-reduce; an all-reduce in place of any other."""
    tensor = call.payload.detach().clone()
    if call.segment.endswith("_all_reduce"):
        first = dist.get_global_rank(group, 0)

        def operation(is_async: bool, tensor: torch.Tensor) -> Any:
            return dist.broadcast(tensor, first, group=group, async_op=is_async)

        return Call(f"{axis}_broadcast", operation, (tensor,), (tensor,), tensor)

    def reduction(is_async: bool, tensor: torch.Tensor) -> Any:
        return dist.all_reduce(tensor, group=group, async_op=is_async)

    return Call(f"{axis}_all_reduce", reduction, (tensor,), (tensor,), tensor)


def _twice_as_long(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor.detach()] * 2)


def _another_type(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(_HALF_AS_WIDE.get(tensor.dtype, torch.float32))
