"""Spans of torch's own collectives and p2p operations, from their issue to the moment at which they were waited for."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..box.box import ABSENT_I64, ABSENT_INDEX
from ..null import NullRecorder
from ..recorder import Recorder
from ..vocabulary import SegmentKind
from .groups import Groups, GroupTrack
from .tensors import flat
from .work import OpenWork, is_held_elsewhere, references_of_one_holder

PROMPT_NS = 100_000
"""A p2p operation that was waited for late, and at once, ended at some moment in between: nobody knows which."""

Wait = Callable[..., Any]


class OperationSpans:
    """The operations that are under way. ``wait`` is ``Work.wait`` as torch has it; ``cuda`` is `torch.cuda` or None.

    On a CPU one thread waits for the asynchronous collectives, in the order of their issue, and notes their true end;
    a p2p Work may have one waiter only, so its end is noted when somebody waits for it. On CUDA an operation is timed
    on a probe stream of its group, which carries no work: it waits for what the operation waits for, and for its end.
    What cannot be timed there is in flight until somebody has waited for it, or holds it no more.
    """

    def __init__(self, recorder: Recorder | NullRecorder, groups: Groups, wait: Wait, cuda: Any = None) -> None:
        self._recorder, self.groups, self._wait, self._cuda = recorder, groups, wait, cuda
        self._open: dict[int, OpenWork] = {}
        self._work_of: dict[int, int] = {}
        self._local = threading.local()
        self._queue: queue.SimpleQueue[OpenWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._probes: dict[int, Any] = {}
        self._one_holder = references_of_one_holder()

    # -- issuing ------------------------------------------------------------------------------------------------

    def begin(
        self, track: GroupTrack, name: str, size_bytes: int | None, *, peer: int | None = None, probe: Any = None
    ) -> Any:
        """Begin the span of an operation that is about to be issued. ``peer`` is its rank in the group.

        ``probe`` is what `probe` gave, where the operation runs on a device.
        """
        recorder, groups = self._recorder, self.groups
        if self._open:
            self._sweep()
        elif self._work_of:
            self._work_of.clear()
        size = ABSENT_I64 if size_bytes is None else size_bytes
        if peer is None and name not in {"send", "recv"}:
            track.issued += 1
            segment = groups.segment(track, name, SegmentKind.COLLECTIVE)
            return recorder.begin_async(
                segment, group=track.index, sequence=track.issued, size_bytes=size, cuda_stream=probe
            )
        segment = groups.segment(track, name, SegmentKind.P2P)
        if peer is None:  # received from whoever sends first
            return recorder.begin_async(segment, group=ABSENT_INDEX, size_bytes=size, cuda_stream=probe)
        edge = groups.edge(track, peer, sends=name == "send")
        edge.issued += 1
        return recorder.begin_async(
            segment, group=edge.index, sequence=edge.issued, peer=edge.peer, size_bytes=size, cuda_stream=probe
        )

    def launched(
        self,
        span: Any,
        work: Any,
        *,
        is_p2p: bool = False,
        waits_at_once: bool = False,
        probe: Any = None,
        on_device: bool = False,
    ) -> OpenWork | None:
        """The operation was issued and has given its Work; None where it is part of a coalesced one.

        ``waits_at_once`` tells that the caller goes on to wait; ``probe`` is the stream that `begin` was given, None
        where the operation runs on the host or (``on_device``) nobody can time it.
        """
        batch = getattr(self._local, "batch", None)
        if batch is not None:
            batch.append((span, is_p2p, probe, on_device))
            return None
        entry = OpenWork(work, (span,), is_p2p=is_p2p)
        self._register(entry, watched=not waits_at_once, probe=probe, on_device=on_device)
        return entry

    @property
    def times_device(self) -> bool:
        """Whether the recorder has found the device by now."""
        return self._cuda is not None and getattr(self._recorder, "device", None) is not None

    def wait_begins(self, span: Any) -> None:
        """The operation gives no Work: its caller waits from here on until `complete`."""
        self._recorder.wait_begin(span)

    def complete(self, span: Any) -> None:
        """An operation without a Work is done."""
        self._recorder.end_async(span)
        self._recorder.wait_end(span)

    def failed(self, span: Any) -> None:
        """The operation could not be issued."""
        self._recorder.wait_over(span)
        self._recorder.abandon(span)

    def _abandon(self, spans: Sequence[Any]) -> None:
        for span in spans:
            self._recorder.abandon(span)

    def _unmeasured(self, spans: Sequence[Any]) -> None:
        """The operations are over, and nobody can tell since when."""
        for span in spans:
            self._recorder.completed(span)  # type: ignore[union-attr]
            self._recorder.give_up(span)  # type: ignore[union-attr]

    def _register(self, entry: OpenWork, *, watched: bool, probe: Any, on_device: bool) -> None:
        if probe is not None:
            self._end_on_probe(entry, probe)
        else:
            entry.is_blind = on_device
        self._open[id(entry.work)] = entry
        if probe is None and not on_device and not entry.is_p2p and watched:
            self._watch(entry)

    # -- coalescing ---------------------------------------------------------------------------------------------

    def start_batch(self) -> None:
        """Operations that this thread issues now will be ended by one Work."""
        self._local.batch = []

    def end_batch(self, work: Any) -> None:
        """The Work of all operations since `start_batch`; None where the library gives none."""
        batch: list[tuple[Any, bool, Any, bool]] = getattr(self._local, "batch", None) or []
        self._local.batch = None
        spans = [span for span, *_ in batch]
        if spans and work is not None:
            entry = OpenWork(work, spans, is_p2p=any(is_p2p for _, is_p2p, *_ in batch))
            _, _, probe, on_device = batch[0]
            self._register(entry, watched=True, probe=probe, on_device=on_device)
        elif work is None:
            self._abandon(spans)

    # -- waiting ------------------------------------------------------------------------------------------------

    def wait(self, work: Any, *arguments: Any, **named: Any) -> Any:
        """What ``Work.wait`` does, with the wait timed as the exposed time of the operation's span."""
        entry = self._open.pop(id(work), None)
        if entry is None:
            return self._wait(work, *arguments, **named)
        return self._timed(entry, lambda: self._wait(work, *arguments, **named))

    def wait_at_once(self, entry: OpenWork) -> None:
        """Wait for an operation in the stead of C++, which is about to; that gets the error, if there is one."""
        with contextlib.suppress(RuntimeError):
            self.wait(entry.work)

    def note_native_wait(self, entry: OpenWork, tensors: Any = ()) -> None:
        """Somebody waits who holds no Work in Python: DDP's reducer, or who waits for the tensors of the results."""
        entry.waits_in_native = True
        for tensor in flat(tensors):
            storage = tensor.untyped_storage().data_ptr()
            before = self._open.get(self._work_of.get(storage, 0))
            if before is not None:  # nobody can wait for that one any more
                before.waits_in_native = False
            self._work_of[storage] = id(entry.work)

    def wait_for_tensor(self, tensor: Any, wait: Callable[[], Any]) -> Any:
        """What ``wait`` does, timed as the wait for the operation that fills ``tensor``."""
        work = self._work_of.pop(tensor.untyped_storage().data_ptr(), None)
        entry = None if work is None else self._open.pop(work, None)
        return wait() if entry is None else self._timed(entry, wait)

    def _timed(self, entry: OpenWork, wait: Callable[[], Any]) -> Any:
        span = entry.spans[0]
        began_ns = time.monotonic_ns()
        self._recorder.wait_begin(span)
        try:
            result = wait()
        except BaseException:
            self._open[id(entry.work)] = entry  # still under way, or lost: in flight, for whoever reads the box
            raise
        else:
            self._end(entry, began_ns)
        finally:
            self._recorder.wait_over(span)
        return result

    def _end(self, entry: OpenWork, began_ns: int) -> None:
        recorder = self._recorder
        if entry.is_blind or (entry.is_p2p and not entry.has_ended and self._is_vague(entry, began_ns)):
            self._unmeasured(entry.spans)
            return
        self._note_end(entry)
        first, *others = entry.spans
        recorder.wait_end(first)
        self._abandon(others)  # the same wait must not count twice

    @staticmethod
    def _is_vague(entry: OpenWork, began_ns: int) -> bool:
        return began_ns - entry.issued_ns > PROMPT_NS and time.monotonic_ns() - began_ns < PROMPT_NS

    def _note_end(self, entry: OpenWork) -> None:
        with entry.lock:
            if not entry.has_ended:
                for span in entry.spans:
                    self._recorder.end_async(span)
                entry.has_ended = True

    def wait_for_reducer(self, entries: Sequence[OpenWork]) -> None:
        """Wait for the buckets of a backward in their order, as DDP's reducer does right afterwards."""
        for entry in entries:
            self.wait(entry.work)

    def _sweep(self) -> None:
        """Complete the records of operations that this thread issued and that nobody can wait for any more."""
        own = threading.get_ident()
        for key, entry in list(self._open.items()):
            if entry.thread != own or entry.waits_in_native or is_held_elsewhere(entry, self._one_holder):
                continue
            if entry.has_ended:
                self._abandon(entry.spans)
            elif entry.is_p2p or entry.is_blind:
                self._unmeasured(entry.spans)
            else:
                continue
            self._open.pop(key, None)

    # -- ends on a CPU ------------------------------------------------------------------------------------------

    def _watch(self, entry: OpenWork) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="megascope-c10d", daemon=True)
            self._thread.start()
        self._queue.put(entry)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            try:
                self._wait(entry.work)
            except BaseException:
                continue  # its span stays in flight; who waits for the Work gets the error
            self._note_end(entry)
            del entry

    def close(self) -> None:
        """Complete what nobody waits for any more; what has not ended stays in flight."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=1)
        for entry in self._open.values():
            if entry.has_ended:
                self._abandon(entry.spans)
        self._open.clear()

    # -- ends on a device ---------------------------------------------------------------------------------------

    def probe(self, track: GroupTrack) -> Any:
        """The group's probe stream, behind everything that the current stream has to do."""
        probe = self._probes.get(track.index)
        if probe is None:
            probe = self._probes[track.index] = self._cuda.Stream()
        probe.wait_stream(self._cuda.current_stream())
        return probe

    def _end_on_probe(self, entry: OpenWork, probe: Any) -> None:
        """Mark the end on the probe stream. Its future is waited for, not the Work, which would free its tensors."""
        try:
            with self._cuda.stream(probe):
                future = entry.work.get_future()
                is_enqueued = future.done()  # or its wait would hold up the host, as that of gloo does
                if is_enqueued:
                    future.wait()
        except RuntimeError:  # no future
            is_enqueued = False
        entry.is_blind, entry.has_ended = not is_enqueued, is_enqueued
        for span in entry.spans if is_enqueued else ():
            self._recorder.end_async(span)
