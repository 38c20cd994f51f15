"""Follows a rank's metadata file: who the rank is, what its indices stand for, its steps, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...profiler.box.metadata import MetadataKind, read_metadata
from ...profiler.host import host_name
from ...profiler.opening import boot_id
from ...profiler.topology import Topology
from ..tables.schemas import TABLES
from .holes import first_data, free_until
from .rows import Group, Names, Segment
from .step_rows import StepRows

FREE_ABOVE_BYTES = 64 * 1024
"""Lines of steps that are in the store are given back to the spool in pieces of that size."""

_MOST_CLOCK_BASE_NS = 2**62

_FAULT_COLUMNS = frozenset(column.name for column in TABLES["faults"].columns) - {"run", "attempt", "kind"}


@dataclass(frozen=True, slots=True)
class Header:
    """Who a rank is, from the first line of its metadata."""

    rank: int
    world_size: int
    host: str
    local_rank: int | None
    pid: int
    pid_namespace: int | None
    device: str | None
    clock_base_ns: int
    boot: str | None
    versions: Mapping[str, Any]
    recorder_span_ns: float | None = None

    @property
    def is_of_this_host(self) -> bool:
        """Whether the rank runs, or ran, on this host."""
        return self.host == host_name()

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the clock that dated the box still runs: it starts anew when the host does."""
        return self.boot in (None, boot_id())

    @property
    def now_ns(self) -> int:
        """UTC, by the host's monotonic clock and the rank's base; by the wall clock where that base holds no more."""
        return self.clock_base_ns + time.monotonic_ns() if self.is_of_this_boot else time.time_ns()


@dataclass(frozen=True, slots=True)
class RankException:
    """An exception that ended a rank; the moment is UTC."""

    type: str
    message: str
    moment_ns: int


class RankMetadata:
    """What is known of a rank so far, from two files: who it is and what its indices stand for, and its steps.

    A new agent reads the first file from its start again (there it counts steps only behind the ``state`` of an
    earlier agent), and the file of steps from where that one had come to: what lies before is freed.
    """

    def __init__(self, box: Path, state: Mapping[str, Any] | None = None) -> None:
        known = state or {}
        self.path, self.steps_path = box.with_suffix(".meta.jsonl"), box.with_suffix(".steps.jsonl")
        self.header: Header | None = None
        self.axes: dict[str, int] = {}
        self.coordinates: dict[str, int] = {}
        self.names = Names()
        self.configuration: Mapping[str, Any] | None = None
        self.schedule: list[Mapping[str, Any]] = []
        self.faults: dict[str, dict[str, Any]] = {}
        self.clock: dict[str, Any] | None = None
        self.exception: RankException | None = None
        self.exit_reason: str | None = None
        self.exit_ns: int | None = None
        self.version = 0
        self.steps: StepRows | None = None
        self._steps_state = known.get("steps")
        self._counted_until = int(known.get("offset", 0))
        self._steps_offset: int | None = known.get("steps_offset")
        self._freed_until = 0
        self._rejected, self._rejected_steps = 0, int(known.get("rejected", 0))
        self.offset = 0

    def state(self) -> dict[str, Any]:
        """Positions and unfinished rows, for a later agent."""
        return {
            "offset": self.offset,
            "steps_offset": self._steps_offset,
            "steps": None if self.steps is None else self.steps.state(),
            "rejected": self._rejected_steps,
        }

    @property
    def rejected(self) -> int:
        """Lines and values that do not fit the tables: they are left out."""
        steps = 0 if self.steps is None else self.steps.rejected
        return self._rejected + self._rejected_steps + steps

    def read(self) -> None:
        """Take in the whole lines that were added to the first file. A line that does not fit is left out."""
        if not self.path.exists():
            return
        for offset, line in read_metadata(self.path, self.offset):
            self.offset = offset
            handler = _HANDLERS.get(str(line.get("kind")))
            if handler is None or (self.header is None and handler is not RankMetadata._on_header):
                continue
            is_of_steps = handler in (RankMetadata._on_step, RankMetadata._on_metrics)
            if is_of_steps and self.offset <= self._counted_until:
                continue
            if not self._take(handler, line):
                self._rejected += 1
            self.version += not is_of_steps

    def read_steps(self) -> None:
        """Take in the whole lines that were added to the file of steps; the header has to be known."""
        if not self.steps_path.exists():
            return
        if self._steps_offset is None:
            self._steps_offset = first_data(self.steps_path)
        for offset, line in read_metadata(self.steps_path, self._steps_offset):
            self._steps_offset = offset
            handler = _STEP_HANDLERS.get(str(line.get("kind")))
            if handler is not None and not self._take(handler, line):
                self._rejected_steps += 1

    def free_steps(self) -> None:
        """Give back the room of all lines of steps that were read: their rows are in the store."""
        end = self._steps_offset or 0
        if end - self._freed_until >= FREE_ABOVE_BYTES:
            free_until(self.steps_path, end)
            self._freed_until = end

    def changed_ns(self) -> int:
        """When a line was last written (UTC by the host's clock at that time); now, where that is not known."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return time.time_ns()

    def remove(self) -> None:
        """Delete both files."""
        self.path.unlink(missing_ok=True)
        self.steps_path.unlink(missing_ok=True)

    def _take(self, handler: Handler, line: Mapping[str, Any]) -> bool:
        try:
            handler(self, _printable(line))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return False
        return True

    def _utc(self, moment_ns: Any) -> int | None:
        return None if moment_ns is None or self.header is None else int(moment_ns) + self.header.clock_base_ns

    def _on_header(self, line: Mapping[str, Any]) -> None:
        base_ns = int(line["clock_base_ns"])
        if abs(base_ns) > _MOST_CLOCK_BASE_NS:
            raise ValueError(f"a clock base of {base_ns} ns")
        self.header = Header(
            rank=int(line["rank"]),
            world_size=int(line["world_size"]),
            host=str(line["host"]),
            local_rank=_optional_int(line.get("local_rank")),
            pid=int(line["pid"]),
            pid_namespace=_optional_int(line.get("pid_namespace")),
            device=None if line.get("device") is None else str(line["device"]),
            clock_base_ns=base_ns,
            boot=str(line["boot"]) if line.get("boot") else None,
            versions=dict(line.get("versions") or {}),
            recorder_span_ns=None if line.get("recorder_span_ns") is None else float(line["recorder_span_ns"]),
        )
        if self.steps is None:  # the header comes again once the device is known
            self.steps = StepRows(base_ns, self._steps_state)

    def _on_topology(self, line: Mapping[str, Any]) -> None:
        mesh = Topology.from_mapping(line["axes"])
        coordinates = {axis: int(line["coordinates"][axis]) for axis in mesh.names}
        if any(not 0 <= coordinates[axis] < size for axis, size in mesh.axes):
            raise ValueError(f"coordinates {coordinates} in a mesh of {dict(mesh.axes)}")
        self.axes, self.coordinates = dict(mesh.axes), coordinates

    def _on_segment(self, line: Mapping[str, Any]) -> None:
        segment = Segment.of(str(line["name"]), str(line["segment_kind"]), line.get("axis"))
        self.names.add_segment(int(line["index"]), segment)

    def _on_group(self, line: Mapping[str, Any]) -> None:
        group = Group.of(str(line["group_kind"]), tuple(sorted(int(rank) for rank in line["ranks"])))
        self.names.add_group(int(line["index"]), group)

    def _on_stream(self, line: Mapping[str, Any]) -> None:
        self.names.streams[int(line["index"])] = str(line["name"])

    def _on_configuration(self, line: Mapping[str, Any]) -> None:
        self.configuration = dict(line["value"])

    def _on_schedule(self, line: Mapping[str, Any]) -> None:
        self.schedule = [_action(action) for action in line["actions"]]

    def _on_step(self, line: Mapping[str, Any]) -> None:
        assert self.steps is not None
        self.steps.add_step(line)

    def _on_metrics(self, line: Mapping[str, Any]) -> None:
        assert self.steps is not None
        self.steps.add_metrics(line)

    def _on_fault(self, line: Mapping[str, Any]) -> None:
        values = {name: value for name, value in line.items() if name in _FAULT_COLUMNS and value is not None}
        moments = {name: self._utc(line[name]) for name in ("first_ns", "last_ns") if line.get(name) is not None}
        self.faults.setdefault(str(line["fault"]), {}).update(values | moments | {"kind": str(line["fault_kind"])})

    def _on_clock(self, line: Mapping[str, Any]) -> None:
        moment_ns = self._utc(line["moment_ns"])
        assert moment_ns is not None
        assert self.header is not None
        drift_ppb = 0.0 if line["reference"] == self.header.host else None
        values = {name: int(line[name]) for name in ("offset_ns", "uncertainty_ns")}
        self.clock = {"moment_ns": moment_ns, "drift_ppb": drift_ppb, **values}

    def _on_exception(self, line: Mapping[str, Any]) -> None:
        moment_ns = self._utc(line["moment_ns"])
        assert moment_ns is not None
        self.exception = RankException(str(line["type"]), str(line["message"]), moment_ns)

    def _on_exit(self, line: Mapping[str, Any]) -> None:
        self.exit_reason, self.exit_ns = str(line["reason"]), self._utc(line.get("moment_ns"))


def _action(action: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of a schedule, its key checked."""
    depends = [(int(stage), int(position)) for stage, position in action.get("depends_on") or ()]
    key = {"stage": int(action["stage"]), "position": int(action["position"]), "action": str(action["action"])}
    return {**action, **key, "depends_on": depends}


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _printable(value: Any) -> Any:
    """The same value without halves of characters (lone surrogates), which no table can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


Handler = Callable[[RankMetadata, Mapping[str, Any]], None]

_STEP_HANDLERS: dict[str, Handler] = {
    MetadataKind.STEP.value: RankMetadata._on_step,
    MetadataKind.METRICS.value: RankMetadata._on_metrics,
}

_HANDLERS: dict[str, Handler] = {
    MetadataKind.HEADER.value: RankMetadata._on_header,
    MetadataKind.TOPOLOGY.value: RankMetadata._on_topology,
    MetadataKind.SEGMENT.value: RankMetadata._on_segment,
    MetadataKind.GROUP.value: RankMetadata._on_group,
    MetadataKind.STREAM.value: RankMetadata._on_stream,
    MetadataKind.CONFIGURATION.value: RankMetadata._on_configuration,
    MetadataKind.SCHEDULE.value: RankMetadata._on_schedule,
    MetadataKind.FAULT.value: RankMetadata._on_fault,
    MetadataKind.CLOCK.value: RankMetadata._on_clock,
    MetadataKind.EXCEPTION.value: RankMetadata._on_exception,
    MetadataKind.EXIT.value: RankMetadata._on_exit,
} | _STEP_HANDLERS
