"""Append-only metadata beside the black box: one JSON object a line, written before any record uses its id."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any


class MetadataKind(StrEnum):
    """Kinds of metadata lines (key ``kind``), with their further keys.

    Lines of each step (step, metrics) go to ``rank-00003.steps.jsonl``, all others to ``rank-00003.meta.jsonl``.

    header: version, run, attempt, rank, world_size, host, local_rank, pid, pid_namespace, device,
        clock_base_ns, boot, versions; written again once the device is known
    topology: axes (object, the outermost first), coordinates (object); may come after the header, once it is known
    segment: index, name, segment_kind, axis; group: index, group_kind, ranks; stream: index, name
    configuration: value (object)
    schedule: actions (list of objects: stage, position, action, chunk, microbatch, depends_on [[stage, position], ...])
    step: step, start_ns (monotonic), duration_ns, shadow (whether its spans were not timed), worked_ns (where it is
        known); written when it ends
    metrics: step, and any of loss, grad_norm, tokens, rank_tokens, mfu, learning_rate, eval_loss; several lines add up
    fault: the columns of the table ``faults``, its kind as fault_kind, its moments monotonic
    clock: reference (host), moment_ns (monotonic), offset_ns (to be added to this host's UTC), uncertainty_ns
    exception: type, message, moment_ns (monotonic); exit: reason, moment_ns (monotonic)
    """

    HEADER = "header"
    TOPOLOGY = "topology"
    SEGMENT = "segment"
    GROUP = "group"
    STREAM = "stream"
    CONFIGURATION = "configuration"
    SCHEDULE = "schedule"
    STEP = "step"
    METRICS = "metrics"
    FAULT = "fault"
    CLOCK = "clock"
    EXCEPTION = "exception"
    EXIT = "exit"


class MetadataWriter:
    """Writes whole lines with one ``write`` each, so that a killed process leaves at most one cut line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_cut = False
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, kind: MetadataKind, values: Mapping[str, Any]) -> None:
        """Append one line.

        OSError where it could not be written whole (a full disk), TypeError or ValueError for what JSON cannot hold.
        """
        line = json.dumps({"kind": kind, **values}, separators=(",", ":"), default=str).encode() + b"\n"
        if self._is_cut:  # what stands there is no line: end it, so that this one is read
            line = b"\n" + line
        written = os.write(self._fd, line)
        self._is_cut = written < len(line) if written else self._is_cut
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Close the file; further writes fail."""
        fd, self._fd = self._fd, -1  # first, so that no other thread writes into a descriptor that was given anew
        if fd >= 0:
            os.close(fd)


def read_metadata(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (offset after the line, object) for each whole line from ``offset`` on.

    A line that the writer had not finished is left for the next call; a line that is not JSON is skipped.
    """
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield offset, value
