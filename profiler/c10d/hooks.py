"""Sees every collective through the pre and post hooks of a process group, where torch has them (2.14 and later)."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..patching import Undo
from .backward import Backwards, is_native_broadcast
from .functional import is_functional
from .groups import GroupTrack
from .spans import OperationSpans
from .tensors import is_on_device, size_of

log = logging.getLogger(__name__)

HOOK_ID = 0x6D656761
"""Ours among the hooks of a group."""

NAMES = {
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
"""Beginnings of the names that torch gives, without underscores, and the segment's name."""


def has_hooks(process_group: Any) -> bool:
    """Whether the class has the hooks."""
    return hasattr(process_group, "register_pre_hook") and hasattr(process_group, "register_post_hook")


def segment_name(hooked: Any) -> str:
    """The segment of what a hook names, such as HookOpName.ALL_REDUCE, all_gather_single or recv_any_source."""
    name = str(getattr(hooked, "name", hooked)).rpartition(".")[2].replace("_", "").lower()
    fitting = [known for known in NAMES if name.startswith(known) or name.startswith(f"monitored{known}")]
    return NAMES[max(fitting, key=len)] if fitting else name


def install_hooks(
    spans: OperationSpans, c10d: Any, cuda: Any = None, fall_back: Callable[[], None] = lambda: None
) -> Undo:
    """Hook all groups that there are, and each that is made later. ``c10d`` is `torch.distributed.distributed_c10d`.

    ``fall_back`` is called once if the hooks turn out not to be as expected; they do nothing from then on. The function
    that is returned unhooks them all.
    """
    hooks = _Hooks(spans, cuda, fall_back)
    for group in list(c10d._world.pg_group_ranks):
        hooks.register(group)
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        group = made[0] if isinstance(made, tuple) else made
        if isinstance(group, c10d.ProcessGroup):
            hooks.register(group)
        return made

    c10d._new_process_group_helper = new_group

    def undo() -> None:
        if c10d._new_process_group_helper is new_group:
            c10d._new_process_group_helper = make
        hooks.unregister()

    return undo


@dataclass(frozen=True, slots=True)
class _Begun:
    """An operation that is about to be issued. ``results`` are the tensors that it fills."""

    span: Any
    is_p2p: bool
    waits_at_once: bool
    is_native: bool
    probe: Any
    on_device: bool
    results: Any


class _Hooks:
    """The two hooks of every group. A hook that fails is a warning once, and never an error of the collective."""

    def __init__(self, spans: OperationSpans, cuda: Any, fall_back: Callable[[], None]) -> None:
        self._spans, self._cuda, self._fall_back = spans, cuda, fall_back
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()
        self._backwards = Backwards(spans)
        self._begun: dict[tuple[int, Any], _Begun] = {}
        self._has_failed = False

    def register(self, group: Any) -> None:
        """Hook one group."""
        own = weakref.ref(group)
        group.register_pre_hook(HOOK_ID, lambda args: self._guarded(self._before, own(), args))
        group.register_post_hook(HOOK_ID, lambda args: self._guarded(self._after, own(), args))
        self._groups.add(group)

    def unregister(self) -> None:
        """Unhook all groups."""
        for group in list(self._groups):
            group.unregister_pre_hook(HOOK_ID)
            group.unregister_post_hook(HOOK_ID)
        self._groups.clear()

    def _guarded(self, hook: Callable[[Any, Any], None], group: Any, args: Any) -> None:
        if self._has_failed or group is None:
            return
        try:
            hook(group, args)
        except Exception as error:
            self._has_failed = True
            log.warning("torch's hooks of process groups are not as expected (%s): they are not used.", error)
            for begun in self._begun.values():
                self._spans.failed(begun.span)
            self._begun.clear()
            self._fall_back()

    def _before(self, group: Any, args: Any) -> None:
        track = self._spans.groups.of(group)
        if track is None:
            return
        tensors = (args.input_tensors, args.output_tensors)
        on_device = self._cuda is not None and is_on_device(tensors)
        if on_device and self._cuda.is_current_stream_capturing():
            return
        name = segment_name(args.name)
        is_p2p = name in {"send", "recv"}
        size = None if name == "barrier" else max(size_of(list(part)) for part in tensors)
        probe = self._spans.probe(track) if on_device and self._spans.times_device else None
        span = self._spans.begin(track, name, size, peer=_peer(args, track) if is_p2p else None, probe=probe)
        is_native = name == "broadcast" and is_native_broadcast()
        waits = is_native or (not args.async_op and not is_p2p)
        results = next(filter(None, reversed(tensors)), ())
        self._begun[id(group), args.op_id] = _Begun(span, is_p2p, waits, is_native, probe, on_device, results)

    def _after(self, group: Any, args: Any) -> None:
        begun = self._begun.pop((id(group), args.op_id), None)
        if begun is None:
            return
        spans, work = self._spans, getattr(args, "work", None)
        if work is None:
            spans.failed(begun.span)
            return
        entry = spans.launched(
            begun.span,
            work,
            is_p2p=begun.is_p2p,
            waits_at_once=begun.waits_at_once,
            probe=begun.probe,
            on_device=begun.on_device,
        )
        if entry is not None and begun.is_native:
            spans.wait_at_once(entry)
        elif entry is not None and not begun.waits_at_once and not self._backwards.note(entry) and is_functional():
            spans.note_native_wait(entry, begun.results)


def _peer(args: Any, track: GroupTrack) -> int | None:
    """The rank in the group at the other end; None where any may send."""
    peer = getattr(args, "peer", None)
    root = getattr(args, "root", None) if peer is None else peer
    return int(root) if root is not None and 0 <= int(root) < len(track.ranks) else None
