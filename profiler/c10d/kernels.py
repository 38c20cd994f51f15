"""Sees every collective where torch dispatches it: public functions, DDP's reducer and compiled code alike."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ..patching import Undo
from .backward import Backwards, is_native_broadcast
from .functional import install_functional, is_functional
from .spans import OperationSpans
from .tensors import is_on_device, size_of

NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
"""What torch's dispatcher calls an operation, and its segment (behind the group's kind)."""

KEY = "ADInplaceOrView"
"""The dispatch key of the wrappers: below autograd, so that what autograd's own kernels issue is seen as well, and
above the backends, so that torch lets go of the interpreter's lock before it calls them. gloo takes a lock that its
threads hold while they wait for the interpreter's. Tensors made in inference mode do not have the key."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Operation:
    """Where an operation's arguments stand. ``first`` is how many come before the group: the tensors."""

    name: str
    first: int
    peer: int | None
    is_async: int | None
    has_work: bool

    @classmethod
    def of(cls, dispatched: str, arguments: list[str], *, has_work: bool) -> Operation:
        """From the names of the arguments in the operation's schema, and whether it returns anything."""
        peer = next((arguments.index(name) for name in ("dst", "src") if name in arguments), None)
        is_async = arguments.index("async_op") if "async_op" in arguments else None
        return cls(NAMES[dispatched], arguments.index("process_group"), peer, is_async, has_work)

    @property
    def is_p2p(self) -> bool:
        """Whether it has one other end, and not a group of them."""
        return self.name in {"send", "recv"}

    def size_bytes(self, args: tuple[Any, ...]) -> int | None:
        """The payload on this rank: the larger of input and output."""
        if self.name == "barrier":
            return None
        return max(size_of(value) for value in args[: self.first])

    def waits_at_once(self, args: tuple[Any, ...]) -> bool:
        """Whether the caller asked for a synchronous operation. The dispatcher leaves out what has its default."""
        return self.is_async is not None and len(args) > self.is_async and not args[self.is_async]


def install_kernels(spans: OperationSpans, cuda: Any = None) -> Undo:
    """Wrap all operations; the function that is returned takes the wrappers off again.

    ``cuda`` is `torch.cuda` where there is a device that times spans.
    """
    import torch  # noqa: PLC0415  (only where it is used)

    watch = _Watch(spans, cuda)
    library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    for dispatched, operation in _operations():
        wrapper = functools.partial(watch.run, operation, _below(getattr(torch.ops.c10d, dispatched).default))
        library.impl(dispatched, wrapper, KEY, with_keyset=True)
    functional = install_functional(spans, KEY)

    def undo() -> None:
        library._destroy()
        functional()

    return undo


def _below(operation: Any) -> Callable[..., Any]:
    """What calls an operation's kernel below the wrapper, without the interpreter's lock."""
    import torch  # noqa: PLC0415

    after, redispatch = torch._C._after_ADInplaceOrView_keyset, operation.redispatch
    return lambda keyset, *args: redispatch(keyset & after, *args)


def _operations() -> Iterator[tuple[str, Operation]]:
    """(dispatcher's name, operation) of everything that this torch has."""
    import torch  # noqa: PLC0415

    known = set(torch._C._dispatch_get_all_op_names())
    for dispatched in NAMES:
        if f"c10d::{dispatched}" in known:
            schema = torch._C._get_schema(f"c10d::{dispatched}", "")
            names = [argument.name for argument in schema.arguments]
            yield dispatched, Operation.of(dispatched, names, has_work=bool(schema.returns))


@dataclass(frozen=True, slots=True)
class _Begun:
    """An operation that is about to be issued. Without a probe, one on a device has no times."""

    span: Any
    probe: Any
    on_device: bool


class _Watch:
    """Runs an operation's own kernel with a span around it."""

    def __init__(self, spans: OperationSpans, cuda: Any) -> None:
        from torch._C import _distributed_c10d as c10d  # noqa: PLC0415

        self._spans, self._cuda = spans, cuda
        self._unbox_group, self._unbox_work = c10d.ProcessGroup.unbox, c10d.Work.unbox
        self._backwards = Backwards(spans)
        self._has_failed = False

    def run(self, operation: Operation, kernel: Callable[..., Any], keyset: Any, *args: Any) -> Any:
        """The wrapper of all kernels: same arguments, same result, same errors, and none of ours."""
        begun = self._guarded(self._begin, operation, args)
        if begun is None:
            return kernel(keyset, *args)
        try:
            result = kernel(keyset, *args)
        except BaseException:
            self._guarded(self._spans.failed, begun.span)
            raise
        self._guarded(self._issued, begun, operation, args, result)
        return result

    def _guarded(self, function: Callable[..., T], *args: Any) -> T | None:
        """None where something of ours fails; then nothing is recorded any more, with one warning."""
        if self._has_failed:
            return None
        try:
            return function(*args)
        except Exception as error:
            self._has_failed = True
            log.warning("Collectives are not recorded any more: %s: %s.", type(error).__name__, error)
            return None

    def _begin(self, operation: Operation, args: tuple[Any, ...]) -> _Begun | None:
        spans = self._spans
        track = spans.groups.of(self._unbox_group(args[operation.first]))
        on_device = self._cuda is not None and is_on_device(args[0])
        if track is None or (on_device and self._cuda.is_current_stream_capturing()):
            return None
        peer = None if operation.peer is None else args[operation.peer]
        if peer is not None and not 0 <= peer < len(track.ranks):
            return None  # there is no such rank, as torch is about to say
        probe = spans.probe(track) if on_device and spans.times_device else None
        span = spans.begin(track, operation.name, operation.size_bytes(args), peer=peer, probe=probe)
        if not operation.has_work:
            spans.wait_begins(span)
        return _Begun(span, probe, on_device)

    def _issued(self, begun: _Begun, operation: Operation, args: tuple[Any, ...], result: Any) -> None:
        spans = self._spans
        if not operation.has_work:
            spans.complete(begun.span)
            return
        work = self._unbox_work(result[-1] if isinstance(result, tuple) else result)
        is_native = operation.name == "broadcast" and is_native_broadcast()
        waits = is_native or operation.waits_at_once(args)
        entry = spans.launched(
            begun.span,
            work,
            is_p2p=operation.is_p2p,
            waits_at_once=waits,
            probe=begun.probe,
            on_device=begun.on_device,
        )
        if entry is not None and is_native:
            spans.wait_at_once(entry)
        elif entry is not None and not waits and not self._backwards.note(entry) and is_functional():
            spans.note_native_wait(entry, args[0])
