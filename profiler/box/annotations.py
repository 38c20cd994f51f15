"""What is said once, beside the spans: segments, groups, topology, schedule, faults, metrics of a step."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..topology import Topology
from ..vocabulary import SegmentKind
from .box import ABSENT_INDEX, BoxLayout
from .metadata import MetadataKind, MetadataWriter

log = logging.getLogger(__name__)

MAX_SEGMENTS = 4096
"""Of them one for each kind is kept for the names beyond."""

MAX_NAME_CHARACTERS = 1000
OTHER_SEGMENTS = "(other segments)"
_OF_STEPS = frozenset({MetadataKind.STEP, MetadataKind.METRICS})

DEVICE_KINDS = frozenset(
    {SegmentKind.COMPUTE, SegmentKind.COLLECTIVE, SegmentKind.P2P, SegmentKind.OPTIMIZER, SegmentKind.EVAL}
)
"""Kinds that are timed by CUDA events where there is a device; the others happen on the host."""


class Annotations:
    """The part of a recorder that writes metadata. Everything is written before any record uses its index."""

    def __init__(self, metadata: MetadataWriter, steps: MetadataWriter, layout: BoxLayout) -> None:
        self.layout, self._metadata, self._steps = layout, metadata, steps
        self._setup_lock = threading.RLock()
        self._segments: dict[tuple[str, str, str | None], int] = {}
        self._by_name: dict[str, tuple[str, int]] = {}
        self._on_device: list[bool] = []
        self._groups: dict[tuple[str, tuple[int, ...]], int] = {}
        self._has_others = self._has_too_many_groups = False
        self.metadata_lost = 0

    def segment(self, name: str, kind: SegmentKind = SegmentKind.COMPUTE, axis: str | None = None) -> int:
        """Register a named region of code and return its index; the same arguments give the same index."""
        known = self._by_name.get(name)
        if known is not None and known[0] is kind and axis is None:
            return known[1]
        key = (name, str(kind), axis)
        index = self._segments.get(key)
        if index is None:
            index = self._register_segment(key, SegmentKind(kind))
        if axis is None and key in self._segments:
            self._by_name[name] = (kind, index)
        return index

    def _register_segment(self, key: tuple[str, str, str | None], kind: SegmentKind) -> int:
        with self._setup_lock:
            if key in self._segments:
                return self._segments[key]
            name, _, axis = key
            if len(self._on_device) >= MAX_SEGMENTS - len(SegmentKind) and key != (other := _other(kind)):
                if not self._has_others:
                    self._has_others = True
                    log.warning("%d segment names: further ones count as %s.", len(self._on_device), OTHER_SEGMENTS)
                return self._register_segment(other, kind)
            index = len(self._on_device)
            shown = name if len(name) <= MAX_NAME_CHARACTERS else name[:MAX_NAME_CHARACTERS] + "..."
            self._write_metadata(
                MetadataKind.SEGMENT, {"index": index, "name": shown, "segment_kind": str(kind), "axis": axis}
            )
            self._on_device.append(kind in DEVICE_KINDS)
            self._segments[key] = index
            return index

    def group(self, kind: str, ranks: Sequence[int]) -> int:
        """Register the ranks of a process group and return its index; beyond the box's room, ABSENT_INDEX."""
        key = (kind, tuple(sorted(ranks)))
        with self._setup_lock:
            index = self._groups.get(key)
            if index is None:
                index = len(self._groups)
                if index >= self.layout.groups:
                    if not self._has_too_many_groups:
                        self._has_too_many_groups = True
                        log.warning("More than %d process groups: %s and later ones are not recorded.", index, kind)
                    return ABSENT_INDEX
                self._write_metadata(MetadataKind.GROUP, {"index": index, "group_kind": kind, "ranks": list(key[1])})
                self._groups[key] = index
            return index

    def step_metrics(self, step: int, **metrics: Any) -> None:
        """Metrics of a step, as in the table ``steps``: numbers or what `float` takes; None where not known."""
        known = {}
        for name, value in metrics.items():
            if value is None:
                continue
            try:
                known[name] = value if type(value) in {int, float} else float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                self._lose_metadata(f"the metric {name} of step {step}", error)
        if known:
            self._write_metadata(MetadataKind.METRICS, {"step": step, **known})

    def topology(self, topology: Topology, rank: int) -> None:
        """The mesh, once it is known."""
        axes, coordinates = dict(topology.axes), topology.coordinates(rank)
        self._write_metadata(MetadataKind.TOPOLOGY, {"axes": axes, "coordinates": coordinates})

    def configuration(self, value: Mapping[str, Any]) -> None:
        """The job's configuration, as it runs."""
        self._write_metadata(MetadataKind.CONFIGURATION, {"value": dict(value)})

    def schedule(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """What is meant to run in every step: see the table ``schedule``."""
        self._write_metadata(MetadataKind.SCHEDULE, {"actions": [dict(action) for action in actions]})

    def fault(self, values: Mapping[str, Any]) -> None:
        """A fault that is put in on purpose: the columns of the table ``faults``."""
        line = {"fault_kind" if name == "kind" else name: value for name, value in values.items()}
        self._write_metadata(MetadataKind.FAULT, line)

    def clock(self, reference: str, moment_ns: int, offset_ns: int, uncertainty_ns: int) -> None:
        """Offset of this host's UTC from the reference's, at a monotonic moment: see the table ``clock_offsets``."""
        values = {"moment_ns": moment_ns, "offset_ns": offset_ns, "uncertainty_ns": uncertainty_ns}
        self._write_metadata(MetadataKind.CLOCK, {"reference": reference, **values})

    def exception(self, error: BaseException) -> None:
        """An exception that ends the job on this rank."""
        values = {"type": type(error).__name__, "message": str(error)[:2000], "moment_ns": time.monotonic_ns()}
        self._write_metadata(MetadataKind.EXCEPTION, values)

    def _write_metadata(self, kind: MetadataKind, values: Mapping[str, Any]) -> None:
        writer = self._steps if kind in _OF_STEPS else self._metadata
        try:
            writer.write(kind, values)
        except (OSError, TypeError, ValueError) as error:
            self._lose_metadata(str(writer.path), error)

    def _lose_metadata(self, what: str, error: Exception) -> None:
        """Count a line that is lost; training goes on."""
        self.metadata_lost += 1
        if self.metadata_lost == 1:
            log.warning("Cannot record %s (%s): training goes on, metadata is lost.", what, error)


def _other(kind: SegmentKind) -> tuple[str, str, str | None]:
    """What stands for all names of a kind beyond the cap: of that kind, so that waiting never becomes work."""
    return OTHER_SEGMENTS, str(kind), None
