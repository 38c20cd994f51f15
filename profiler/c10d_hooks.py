"""Sees every collective through the pre and post hooks of a process group, where torch has them (2.14 and later)."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from .c10d_backward import Backwards
from .c10d_groups import GroupTrack
from .c10d_spans import OperationSpans
from .c10d_tensors import is_on_device, size_of

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

Undo = Callable[[], None]


def has_hooks(process_group: Any) -> bool:
    """Whether the class has the hooks."""
    return hasattr(process_group, "register_pre_hook") and hasattr(process_group, "register_post_hook")


def segment_name(hooked: Any) -> str:
    """The segment of what a hook names, such as HookOpName.ALL_REDUCE, all_gather_single or recv_any_source."""
    name = str(getattr(hooked, "name", hooked)).rpartition(".")[2].replace("_", "").lower()
    fitting = [known for known in NAMES if name.startswith(known) or name.startswith(f"monitored{known}")]
    return NAMES[max(fitting, key=len)] if fitting else name


def install_hooks(spans: OperationSpans, c10d: Any, cuda: Any = None) -> Undo:
    """Hook all groups that there are, and each that is made later. ``c10d`` is `torch.distributed.distributed_c10d`.

    The function that is returned unhooks them all.
    """
    hooks = _Hooks(spans, cuda)
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


class _Hooks:
    """The two hooks of every group. A hook that fails is a warning once, and never an error of the collective."""

    def __init__(self, spans: OperationSpans, cuda: Any) -> None:
        self._spans, self._cuda = spans, cuda
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()
        self._backwards = Backwards(spans)
        self._begun: dict[tuple[int, Any], tuple[Any, bool, bool, Any]] = {}
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
            log.warning("Collectives are not recorded any more: torch's hooks are not as expected (%s).", error)

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
        if on_device and probe is None:
            self._spans.unmeasured(span)
            return
        self._begun[id(group), args.op_id] = (span, is_p2p, not args.async_op and not is_p2p, probe)

    def _after(self, group: Any, args: Any) -> None:
        begun = self._begun.pop((id(group), args.op_id), None)
        if begun is None:
            return
        span, is_p2p, waits_at_once, probe = begun
        work = getattr(args, "work", None)
        if work is None:
            self._spans.failed(span)
            return
        entry = self._spans.launched(span, work, is_p2p=is_p2p, waits_at_once=waits_at_once, probe=probe)
        if entry is not None and not waits_at_once:
            self._backwards.note(entry)


def _peer(args: Any, track: GroupTrack) -> int | None:
    """The rank in the group at the other end; None where any may send."""
    peer = getattr(args, "peer", None)
    root = getattr(args, "root", None) if peer is None else peer
    return int(root) if root is not None and 0 <= int(root) < len(track.ranks) else None
