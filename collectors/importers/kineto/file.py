"""One Kineto trace as columns: spans of the host and of the device, launches, steps, and what tells the rank."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from ....profiler.topology import stable_id
from ..chrome_json import LARGEST_NS, ChromeTrace, NoTraceError, ns_of
from ..columns import ABSENT, IntArray
from ..hostile import INT32, whole

MOST_SPANS = 4_000_000
"""Spans of one file that are kept, at about 0.4 GiB of memory a million. What comes behind is counted and left out."""

MOST_NAMES = 20_000
"""Distinct names of one file; all further ones share a name."""

LONGEST_NAME = 1_000
OTHER_NAMES = "(other names)"

LONGEST_NS = 86_400 * 10**9
"""No span takes longer than a day: profilers' counters that overflow claim centuries."""

MOST_COMMUNICATORS = 1_000


class Where(IntEnum):
    """What kind of row of a trace a span was."""

    KERNEL = 0
    COPY = 1
    ANNOTATION = 2
    OPERATOR = 3


_CATEGORIES = {
    "kernel": Where.KERNEL, "gpu_memcpy": Where.COPY, "memcpy": Where.COPY, "gpu_memset": Where.COPY,
    "memset": Where.COPY, "user_annotation": Where.ANNOTATION, "cpu_op": Where.OPERATOR, "operator": Where.OPERATOR,
}  # fmt: skip
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime"})
_LEFT_OUT = frozenset(
    {"gpu_user_annotation", "trace", "python_function", "ac2g", "fwdbwd", "overhead", "cpu_instant_event"}
)
_STEP = re.compile(r"ProfilerStep#?\s*(\d+)$")


@dataclass(slots=True)
class Columns:
    """Spans as they come; `ABSENT` for what is not known. ``open`` marks those that began and never ended."""

    start: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))
    where: array[int] = field(default_factory=lambda: array("b"))
    name: array[int] = field(default_factory=lambda: array("i"))
    lane: array[int] = field(default_factory=lambda: array("i"))
    correlation: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.start)

    def add(self, start: int, duration: int, where: Where, name: int, lane: int, correlation: int) -> None:
        """Take one span."""
        self.start.append(start)
        self.duration.append(duration)
        self.where.append(where)
        self.name.append(name)
        self.lane.append(lane)
        self.correlation.append(correlation)


@dataclass(frozen=True, slots=True)
class Collective:
    """What the arguments of a communication kernel tell."""

    name: str | None
    group: str | None
    description: str | None
    ranks: tuple[int, ...]
    size_bytes: int | None


@dataclass(slots=True)
class KinetoFile:
    """What one file holds. Times are ns; ``aborted`` and ``rejected`` are indices of spans."""

    name: str
    spans: Columns = field(default_factory=Columns)
    names: dict[str, int] = field(default_factory=dict)
    lanes: dict[tuple[bool, str, str], int] = field(default_factory=dict)
    collectives: dict[int, Collective] = field(default_factory=dict)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    communicators: dict[str, None] = field(default_factory=dict)
    launch_ids: array[int] = field(default_factory=lambda: array("q"))
    launch_ns: array[int] = field(default_factory=lambda: array("q"))
    header: dict[str, Any] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    unreadable: int = 0
    left_out: int = 0
    has_other_names: bool = False
    pid: int | None = None
    devices: set[int] = field(default_factory=set)
    lost: str | None = None

    @property
    def has_device(self) -> bool:
        """Whether anything ran on a device."""
        return any(is_device for is_device, *_ in self.lanes)

    def forget_spans(self) -> None:
        """Give the memory of all that grows with the file free."""
        self.spans, self.names, self.collectives = Columns(), {}, {}
        self.launch_ids, self.launch_ns = array("q"), array("q")
        self.aborted, self.rejected = set(), set()

    def launches(self) -> IntArray:
        """Host moment at which each span was launched, `ABSENT` where that was not recorded, [N]."""
        ids = np.array(self.launch_ids, np.int64)
        wanted = np.array(self.spans.correlation, np.int64)
        result = np.full(len(wanted), ABSENT, np.int64)
        if len(ids):
            by = np.argsort(ids, kind="stable")
            at = np.minimum(np.searchsorted(ids[by], wanted), len(ids) - 1)
            found = (ids[by][at] == wanted) & (wanted != ABSENT)
            result[found] = np.array(self.launch_ns, np.int64)[by][at[found]]
        return result


EVENTS_A_LOOK = 1 << 15


def read_kineto(trace: ChromeTrace, name: str, look: Callable[[], None] = lambda: None) -> KinetoFile:
    """Read one trace; ``look`` is called now and then. Raises FormatError for what is no Chrome trace."""
    file = KinetoFile(name)
    begun: dict[int, list[int]] = {}
    is_trace = False
    for event in trace:
        is_trace |= "ph" in event
        if trace.events % EVENTS_A_LOOK == 0:
            look()
        phase = event.get("ph")
        if phase == "X":
            _complete(file, event)
        elif phase in ("B", "E"):
            _half(file, event, begun, is_end=phase == "E")
    file.aborted.update(index for stack in begun.values() for index in stack)
    if not trace.is_trace or (trace.events and not is_trace):
        raise NoTraceError(f"{name} is no Chrome trace: it has no list of events.")
    file.header, file.lost = trace.header, trace.lost
    return file


def _complete(file: KinetoFile, event: dict[str, Any]) -> None:
    category = str(event.get("cat", "")).lower()
    start, duration = ns_of(event.get("ts")), ns_of(event.get("dur", 0))
    if category in _LEFT_OUT:
        return
    if start is None or start < 0:
        file.unreadable += 1
        return
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if category in _LAUNCHES:
        correlation = whole(args.get("correlation"))
        if correlation is not None and len(file.launch_ids) < MOST_SPANS:
            file.launch_ids.append(correlation)
            file.launch_ns.append(start)
        return
    _remember_communicator(file, args)
    text = str(event.get("name", "(no name)"))
    marker = _STEP.match(text)
    is_sound = duration is not None and 0 <= duration <= LONGEST_NS and start + duration < LARGEST_NS
    if marker is not None:
        if is_sound and duration is not None and (step := whole(marker[1])) is not None:
            file.steps.append((step, start, duration))
        return
    index = _add(file, event, text, _CATEGORIES.get(category, Where.ANNOTATION), start, duration if is_sound else None)
    if index is None:
        return
    if not is_sound:
        file.rejected.add(index)
    if file.spans.where[index] == Where.KERNEL and "nccl" in text.lower():
        file.collectives[index] = _collective(args)


def _half(file: KinetoFile, event: dict[str, Any], begun: dict[int, list[int]], *, is_end: bool) -> None:
    """A begin, or the end of the last one that is open on its thread."""
    moment = ns_of(event.get("ts"))
    if moment is None or moment < 0:
        file.unreadable += 1
        return
    stack = begun.setdefault(_lane(file, event, is_device=False), [])
    if not is_end:
        index = _add(file, event, str(event.get("name", "(no name)")), Where.ANNOTATION, moment, None)
        if index is not None:
            stack.append(index)
    elif stack:
        index = stack.pop()
        duration = moment - file.spans.start[index]
        if 0 <= duration <= LONGEST_NS:
            file.spans.duration[index] = duration
        else:
            file.rejected.add(index)


def _add(
    file: KinetoFile, event: dict[str, Any], text: str, where: Where, start: int, duration: int | None
) -> int | None:
    """Take a span and return its index; None where the file has too many."""
    if len(file.spans) >= MOST_SPANS:
        file.left_out += 1
        return None
    is_device = where in (Where.KERNEL, Where.COPY)
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    correlation = whole(args.get("correlation")) if is_device else None
    if is_device:
        device = whole(args.get("device"))
        if device is not None and len(file.devices) < MOST_COMMUNICATORS:
            file.devices.add(device)
    elif file.pid is None:
        file.pid = whole(event.get("pid"))
    lane = _lane(file, event, is_device=is_device)
    known = ABSENT if correlation is None else correlation
    file.spans.add(start, ABSENT if duration is None else duration, where, _name(file, text), lane, known)
    return len(file.spans) - 1


def _name(file: KinetoFile, text: str) -> int:
    if len(text) > LONGEST_NAME:
        text = f"{text[:LONGEST_NAME]}... #{stable_id(text):016x}"
    code = file.names.get(text)
    if code is None:
        if len(file.names) >= MOST_NAMES:
            file.has_other_names, text = True, OTHER_NAMES
        code = file.names.setdefault(text, len(file.names))
    return code


def _lane(file: KinetoFile, event: dict[str, Any], *, is_device: bool) -> int:
    key = (is_device, str(event.get("pid")), str(event.get("tid")))
    return file.lanes.setdefault(key, len(file.lanes))


def _remember_communicator(file: KinetoFile, args: dict[str, Any]) -> None:
    """Identities of communicators, as text: they may be beyond any integer column."""
    if "Comms Id" in args and len(file.communicators) < MOST_COMMUNICATORS:
        file.communicators[str(args["Comms Id"])] = None


_BYTES = {
    "double": 8, "long": 8, "int64": 8, "float": 4, "int": 4, "int32": 4, "half": 2, "bfloat16": 2, "short": 2,
    "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def _collective(args: dict[str, Any]) -> Collective:
    elements, each = whole(args.get("In msg nelems")), _BYTES.get(str(args.get("dtype", "")).lower())

    def text(key: str) -> str | None:
        value = args.get(key)
        return None if value is None or value == "" else str(value)

    return Collective(
        text("Collective name"),
        text("Process Group Name"),
        text("Process Group Description"),
        tuple(ranks_of(args.get("Process Group Ranks"), whole(args.get("Group size")))),
        None if elements is None or each is None else elements * each,
    )


def ranks_of(value: Any, size: int | None = None) -> Iterator[int]:
    """Global ranks from ``"[0, 1]"`` or a list; none where it was shortened, or is not as long as it says."""
    if isinstance(value, str):
        parts = value.strip().strip("[]").split(",")
        value = parts if parts != [""] and "..." not in value else []
    if not isinstance(value, list):
        return
    ranks = [whole(one.strip() if isinstance(one, str) else one, INT32) for one in value]
    found = [one for one in ranks if one is not None]
    if len(found) == len(value) and (size is None or len(value) == size):
        yield from found
