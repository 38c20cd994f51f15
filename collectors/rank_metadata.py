"""Follows a rank's metadata file: who the rank is, what its indices stand for, its steps, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..profiler.metadata import MetadataKind, read_metadata
from .rows import Group, Names, Segment
from .schemas import TABLES
from .step_rows import StepRows

_FAULT_COLUMNS = frozenset(column.name for column in TABLES["faults"].columns) - {"run", "attempt", "kind"}


@dataclass(frozen=True, slots=True)
class Header:
    """Who a rank is, from the first line of its metadata."""

    rank: int
    world_size: int
    host: str
    local_rank: int | None
    pid: int
    device: str | None
    clock_base_ns: int
    versions: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RankException:
    """An exception that ended a rank; the moment is UTC."""

    type: str
    message: str
    moment_ns: int


class RankMetadata:
    """What is known of a rank so far. A new agent reads the file from its start again, and takes rows of ``steps``
    only from lines behind ``offset``, which is how far an earlier one had come.
    """

    def __init__(self, path: Path, state: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.header: Header | None = None
        self.axes: dict[str, int] = {}
        self.coordinates: dict[str, int] = {}
        self.names = Names()
        self.configuration: Mapping[str, Any] | None = None
        self.schedule: list[Mapping[str, Any]] = []
        self.faults: dict[str, dict[str, Any]] = {}
        self.exception: RankException | None = None
        self.exit_reason: str | None = None
        self.exit_ns: int | None = None
        self.version = 0
        self.steps: StepRows | None = None
        self._steps_state = (state or {}).get("steps")
        self._counted_until = int((state or {}).get("offset", 0))
        self.offset = 0

    def state(self) -> dict[str, Any]:
        """Position and unfinished rows, for a later agent."""
        return {"offset": self.offset, "steps": None if self.steps is None else self.steps.state()}

    def read(self) -> None:
        """Take in all whole lines that were added. A line that lacks a key is left out, as one that is not JSON is."""
        if not self.path.exists():
            return
        for offset, line in read_metadata(self.path, self.offset):
            self.offset = offset
            handler = _HANDLERS.get(str(line.get("kind")))
            if handler is None or (self.header is None and handler is not RankMetadata._on_header):
                continue
            try:
                handler(self, line)
            except (KeyError, TypeError, ValueError):
                continue
            self.version += handler not in (RankMetadata._on_step, RankMetadata._on_metrics)

    def _utc(self, moment_ns: Any) -> int | None:
        return None if moment_ns is None or self.header is None else int(moment_ns) + self.header.clock_base_ns

    def _on_header(self, line: Mapping[str, Any]) -> None:
        self.header = Header(
            rank=int(line["rank"]),
            world_size=int(line["world_size"]),
            host=str(line["host"]),
            local_rank=line.get("local_rank"),
            pid=int(line["pid"]),
            device=line.get("device"),
            clock_base_ns=int(line["clock_base_ns"]),
            versions=dict(line.get("versions") or {}),
        )
        self.steps = StepRows(self.header.clock_base_ns, self._steps_state)

    def _on_topology(self, line: Mapping[str, Any]) -> None:
        self.axes = {str(axis): int(size) for axis, size in line["axes"].items()}
        self.coordinates = {str(axis): int(index) for axis, index in line["coordinates"].items()}

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
        self.schedule = [dict(action) for action in line["actions"]]

    def _on_step(self, line: Mapping[str, Any]) -> None:
        if self.steps is not None and self.offset > self._counted_until:
            self.steps.add_step(line)

    def _on_metrics(self, line: Mapping[str, Any]) -> None:
        if self.steps is not None and self.offset > self._counted_until:
            self.steps.add_metrics(line)

    def _on_fault(self, line: Mapping[str, Any]) -> None:
        known = self.faults.setdefault(str(line["fault"]), {})
        known.update({name: value for name, value in line.items() if name in _FAULT_COLUMNS and value is not None})
        known["kind"] = str(line["fault_kind"])
        for name in ("first_ns", "last_ns"):
            if line.get(name) is not None:
                known[name] = self._utc(line[name])

    def _on_exception(self, line: Mapping[str, Any]) -> None:
        moment_ns = self._utc(line["moment_ns"])
        assert moment_ns is not None
        self.exception = RankException(str(line["type"]), str(line["message"]), moment_ns)

    def _on_exit(self, line: Mapping[str, Any]) -> None:
        self.exit_reason, self.exit_ns = str(line["reason"]), self._utc(line.get("moment_ns"))


_HANDLERS = {
    MetadataKind.HEADER.value: RankMetadata._on_header,
    MetadataKind.TOPOLOGY.value: RankMetadata._on_topology,
    MetadataKind.SEGMENT.value: RankMetadata._on_segment,
    MetadataKind.GROUP.value: RankMetadata._on_group,
    MetadataKind.STREAM.value: RankMetadata._on_stream,
    MetadataKind.CONFIGURATION.value: RankMetadata._on_configuration,
    MetadataKind.SCHEDULE.value: RankMetadata._on_schedule,
    MetadataKind.STEP.value: RankMetadata._on_step,
    MetadataKind.METRICS.value: RankMetadata._on_metrics,
    MetadataKind.FAULT.value: RankMetadata._on_fault,
    MetadataKind.EXCEPTION.value: RankMetadata._on_exception,
    MetadataKind.EXIT.value: RankMetadata._on_exit,
}
