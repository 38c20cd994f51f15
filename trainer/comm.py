"""The one funnel through which every byte leaves a rank: timed, numbered, counted, overlapped."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..profiler.box.box import ABSENT_I16, ABSENT_I32
from ..profiler.c10d.groups import ignore_group
from ..profiler.recorder import AnyRecorder
from ..profiler.vocabulary import SegmentKind
from .faults.alter import Call, altered
from .faults.late import LateIssuer
from .faults.switches import FaultSwitches
from .handle import Handle, explain
from .staging import HostStage, Operation

Launch = Callable[[bool], Any]
"""Issues an operation: with True it returns a Work, with False it runs on the current stream (or blocks); staged, it
returns the event of its results."""

# torch 2.13 renamed both; the old names warn there, the new ones do not exist before.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(slots=True)
class Traffic:
    """Operations issued so far, and their payload on this rank."""

    count: int = 0
    size_bytes: int = 0


class Channel:
    """One process group: its operations are numbered from 1 in the order in which they are issued.

    On a CPU one completion thread waits for the asynchronous ones, in order, and notes their true end; nobody
    else waits for the same Work (two waiters on one p2p Work hang in gloo). On CUDA an operation is enqueued on
    the group's own side stream, where two events around it time exactly it, and the compute stream waits for it.
    Staged (gloo, with tensors on CUDA), the completion thread runs it on copies in the host's memory.
    """

    def __init__(self, funnel: Funnel, kind: str, ranks: Sequence[int], group: dist.ProcessGroup) -> None:
        self.funnel, self.kind, self.ranks, self._group = funnel, kind, tuple(ranks), group
        self.size = len(self.ranks)
        self.index = self.ranks.index(funnel.rank)
        self._id = funnel.recorder.group(kind, self.ranks)
        ignore_group(group)  # or its operations would be recorded a second time where torch dispatches them
        self.issued = 0
        self._stream: Any = None
        if funnel.device.type == "cuda":
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stage = HostStage(self._stream and torch.cuda, self._stream) if funnel.is_staged else None
        self._late = LateIssuer(f"{kind}-late") if funnel.switches.slows_link(self.ranks) else None
        self._queue: queue.SimpleQueue[tuple[Launch | None, Any, Handle, float] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def all_gather(self, output: torch.Tensor, shard: torch.Tensor, *, wait: bool = True) -> Handle:
        """Gather equal shards along the first dimension; the payload is the whole output."""
        return self._run(
            f"{self.kind}_all_gather",
            lambda is_async, output, shard: _all_gather(output, shard, group=self._group, async_op=is_async),
            (output, shard),
            (output,),
            output,
            wait,
        )

    def reduce_scatter(self, shard: torch.Tensor, whole: torch.Tensor, *, wait: bool = True) -> Handle:
        """Sum over the group and keep this rank's shard; the payload is the whole input."""
        return self._run(
            f"{self.kind}_reduce_scatter",
            lambda is_async, shard, whole: _reduce_scatter(shard, whole, group=self._group, async_op=is_async),
            (shard, whole),
            (shard,),
            whole,
            wait,
        )

    def all_reduce(self, tensor: torch.Tensor, operation: Any = dist.ReduceOp.SUM) -> Handle:
        """Reduce in place over the group and wait."""
        return self._run(
            f"{self.kind}_all_reduce",
            lambda is_async, tensor: dist.all_reduce(tensor, operation, group=self._group, async_op=is_async),
            (tensor,),
            (tensor,),
            tensor,
            True,
        )

    def broadcast(self, tensor: torch.Tensor) -> Handle:
        """Send the tensor of the group's first rank to the others and wait."""
        return self._run(
            f"{self.kind}_broadcast",
            lambda is_async, tensor: dist.broadcast(tensor, self.ranks[0], group=self._group, async_op=is_async),
            (tensor,),
            (tensor,),
            tensor,
            True,
        )

    def send(self, segment: str, tensor: torch.Tensor, destination: int) -> Handle:
        """Send to a global rank, without waiting."""

        def operation(is_async: bool, tensor: torch.Tensor) -> Any:
            return (dist.isend if is_async else dist.send)(tensor, destination, group=self._group)

        return self._run(segment, operation, (tensor,), (), tensor, False, peer=destination, destination=destination)

    def recv(self, segment: str, tensor: torch.Tensor, source: int) -> Handle:
        """Receive from a global rank into ``tensor``, without waiting."""

        def operation(is_async: bool, tensor: torch.Tensor) -> Any:
            return (dist.irecv if is_async else dist.recv)(tensor, source, group=self._group)

        return self._run(
            segment, operation, (tensor,), (tensor,), tensor, False, peer=source, destination=self.funnel.rank
        )

    def _run(
        self,
        segment: str,
        operation: Operation,
        tensors: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
        payload: torch.Tensor,
        wait: bool,
        *,
        peer: int = ABSENT_I32,
        destination: int | None = None,
    ) -> Handle:
        funnel = self.funnel
        if funnel.switches.active:
            funnel.switches.pause()
            if funnel.switches.skips(segment):
                return Handle(self, None, None, None)
            wrong = funnel.switches.alters(segment)
            if wrong is not None:
                call = altered(wrong, Call(segment, operation, tensors, written, payload), self.kind, self._group)
                segment, operation, tensors = call.segment, call.operation, call.tensors
                written, payload = call.written, call.payload
        self.issued += 1
        size_bytes = payload.numel() * payload.element_size()
        funnel.count(segment, size_bytes)
        if self._stream is not None:  # before the span begins: it is timed from when its input is there
            self._stream.wait_stream(torch.cuda.current_stream())
        span = funnel.recorder.begin_async(
            funnel.segment(segment, self.kind),
            group=self._id,
            sequence=self.issued,
            peer=peer,
            size_bytes=size_bytes,
            microbatch=funnel.microbatch,
            chunk=funnel.chunk,
            cuda_stream=self._stream,
        )
        delay_s = 0.0 if self._late is None else funnel.switches.link_delay_s(self.ranks, destination)
        if self._stage is not None:
            handle = self._submit(self._stage.prepare(operation, tensors, written), None, span, tensors, delay_s)
        elif self._stream is not None:
            handle = self._enqueue(lambda is_async: operation(is_async, *tensors), span, tensors)
        elif self._late is not None and destination != funnel.rank:  # what is received is late where it is sent
            work = self._late.submit(lambda: operation(True, *tensors), delay_s)
            handle = self._submit(None, work, span, tensors, 0.0)
        elif wait:
            return self._block(lambda is_async: operation(is_async, *tensors), span)
        else:
            handle = self._submit(None, self._issue(operation, tensors), span, tensors, 0.0)
        if wait:
            handle.wait()
        return handle

    def _issue(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> Any:
        try:
            return operation(True, *tensors)
        except RuntimeError as error:
            raise explain(error, self) from error

    def _block(self, launch: Launch, span: Any) -> Handle:
        recorder, switches = self.funnel.recorder, self.funnel.switches
        recorder.wait_begin(span)
        try:
            launch(False)
        except RuntimeError as error:
            raise explain(error, self) from error
        recorder.end_async(span)
        recorder.wait_end(span)
        if switches.active:
            switches.resume()
        return Handle(self, None, None, None)

    def _enqueue(self, launch: Launch, span: Any, kept: object) -> Handle:
        with torch.cuda.stream(self._stream):
            launch(False)
            self.funnel.recorder.end_async(span)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        handle = Handle(self, span, kept, None)
        handle.event = event
        return handle

    def _submit(self, launch: Launch | None, work: Any, span: Any, kept: object, delay_s: float) -> Handle:
        """Leave the operation to the completion thread, which issues it itself, after a delay, where it is staged."""
        if self._thread is None:
            name = f"{self.kind}-completion"
            self._thread = threading.Thread(target=self._complete, name=name, daemon=True)
            self._thread.start()
        handle = Handle(self, span, kept, threading.Event())
        self._queue.put((launch, work, handle, delay_s))
        return handle

    def _complete(self) -> None:
        failure: BaseException | None = None
        while (entry := self._queue.get()) is not None:
            launch, work, handle, delay_s = entry
            if failure is None:
                try:
                    if launch is not None:
                        time.sleep(delay_s)
                        with torch.no_grad():  # the caller's mode is its thread's own
                            event = launch(False)
                        if self._stage is not None:
                            handle.event = event
                    else:
                        work.wait()
                    self.funnel.recorder.end_async(handle.span)
                except BaseException as error:  # its waiter raises it; what follows in this group cannot complete
                    failure = error
            handle.finish(failure)

    def close(self) -> None:
        """End the completion thread once all that was submitted is complete."""
        if self._late is not None:
            self._late.close()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=5)


class Funnel:
    """All channels of a rank, and what they share.

    ``microbatch`` and ``chunk`` are the schedule action that runs now; they are plain attributes because a CUDA
    backward issues its collectives on another thread, which does not see context variables. ``is_staged`` sends all
    tensors through the host's memory.
    """

    def __init__(
        self,
        recorder: AnyRecorder,
        switches: FaultSwitches,
        device: torch.device,
        rank: int,
        *,
        is_staged: bool = False,
    ) -> None:
        self.recorder, self.switches, self.device, self.rank = recorder, switches, device, rank
        self.is_staged = is_staged
        self.microbatch, self.chunk = ABSENT_I32, ABSENT_I16
        self.traffic: dict[str, Traffic] = {}
        self._segments: dict[str, int] = {}
        self._channels: list[Channel] = []

    def channel(self, kind: str, ranks: Sequence[int], group: dist.ProcessGroup) -> Channel:
        """Open the channel of a process group; ``ranks`` are global, in the group's own order."""
        channel = Channel(self, kind, ranks, group)
        self._channels.append(channel)
        return channel

    def segment(self, name: str, kind: str) -> int:
        """Index of a communication segment in the recorder."""
        index = self._segments.get(name)
        if index is None:
            axis = kind.partition("_")[0]
            segment_kind = SegmentKind.P2P if name.startswith(("send_", "recv_")) else SegmentKind.COLLECTIVE
            index = self._segments[name] = self.recorder.segment(name, segment_kind, axis)
        return index

    def count(self, name: str, size_bytes: int) -> None:
        """Add one operation to the traffic of its segment."""
        traffic = self.traffic.setdefault(name, Traffic())
        traffic.count += 1
        traffic.size_bytes += size_bytes

    def close(self) -> None:
        """End all completion threads."""
        for channel in self._channels:
            channel.close()
