"""One rank's black box on its way to the store: what was read, what is committed, and whether the rank still lives."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...profiler.box.box import ABSENT_I64, BoxReader
from .event_rows import SpanArrays, span_arrays
from .processes import DEAD_STATES, ProcessSample, ProcessState, ProcessWatch, pid_namespace
from .rank_metadata import Header, RankMetadata
from .rows import Records, flights, group_progress, known_codes

log = logging.getLogger(__name__)

QUIET_NS = 200_000_000
"""A process that seems gone counts as dead only after its box was still for that long."""

SILENT_NS = 6 * 3600 * 10**9
"""A rank whose process cannot be seen counts as dead once its box was still for that long."""

RESTING_NS = 600 * 10**9
"""A rank of this host whose process cannot be seen counts as running while its box was not still for longer."""

_LAST_RECORDS = 256


class RankDrain:
    """Reads one box. ``pending`` are spans read and not yet committed; `state` is the position behind them.

    ``state`` of an earlier agent is taken over only if it is of this very box. Raises FormatError for a file that is
    no box, and OSError where it cannot be opened.
    """

    def __init__(self, path: Path, state: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.reader = BoxReader(path)
        self.rank = self.reader.rank
        self.pending: list[SpanArrays] = []
        self._steps: list[dict[str, Any]] = []
        self.lost = 0
        self.dropped = self._refused = 0
        self.is_complete = self.is_behind = False
        self.died: ProcessState | None = None
        self.exit_code: int | None = None
        self.came_back = False
        self.first_seen_ns = self.changed_ns = time.monotonic_ns()
        self._tails = [0] * self.reader.layout.rings
        self._last_ns = 0
        self._salvaged: list[int] = []
        self._seen: tuple[int, ...] = ()
        self._process: ProcessWatch | None = None
        self._state = state
        self._is_known = self.is_resumed = False
        self.metadata = RankMetadata(path)
        self._find_header()

    def _find_header(self) -> bool:
        """Whether the rank's metadata has begun; the first time, go on where an earlier agent of this box ended."""
        if self._is_known:
            return True
        self.metadata.read()
        self._is_known = self.header is not None
        if not self._is_known:
            return False
        state, self._state = self._state, None
        self.is_resumed = state is not None and state["box"] == self._identity()
        if state is not None and self.is_resumed:
            self._tails = [int(tail) for tail in state["tails"]]
            self.lost, self.dropped = int(state["lost"]), int(state["dropped"])
            self.is_complete, self._last_ns = bool(state["complete"]), int(state["last_ns"])
            self.died = None if state["died"] is None else ProcessState(state["died"])
            self.came_back, self._salvaged = bool(state.get("came_back")), list(state.get("salvaged", ()))
            self.metadata = RankMetadata(self.path, state["metadata"])
            self.metadata.read()
        return True

    @property
    def header(self) -> Header | None:
        """Who the rank is; None until its metadata has begun."""
        return self.metadata.header

    @property
    def is_ended(self) -> bool:
        """Whether the rank said goodbye or died."""
        return self.died is not None or self.reader.closed

    @property
    def end_ns(self) -> int:
        """Moment of the goodbye, or else the end of the last span, or else the start of the box (UTC)."""
        base_ns = 0 if self.header is None else self.header.clock_base_ns
        if self.metadata.exit_ns or self._last_ns:
            return self.metadata.exit_ns or base_ns + self._last_ns
        is_dated = self.header is None or self.header.is_of_this_boot
        return base_ns + self.first_seen_ns if is_dated else self.metadata.changed_ns()

    @property
    def spans(self) -> int:
        """Spans completed so far."""
        return sum(self.reader.head(ring) for ring in range(self.reader.layout.rings))

    def _identity(self) -> list[int]:
        assert self.header is not None
        return [self.reader.pid, self.header.clock_base_ns]

    def state(self) -> dict[str, Any]:
        """Everything that a later agent must know to take up behind ``pending``."""
        return {
            "box": self._identity(),
            "tails": self._tails,
            "lost": self.lost,
            "dropped": self.dropped + self._refused,
            "complete": self.is_complete,
            "died": self.died,
            "came_back": self.came_back,
            "salvaged": self._salvaged,
            "last_ns": self._last_ns,
            "metadata": self.metadata.state(),
        }

    # -- draining -----------------------------------------------------------------------------------------------

    def drain(self, most: int | None = None) -> int:
        """Take what was recorded since the last time, at most so many spans; return their number.

        After the rank's end, take the rest: it is complete once nothing is left. ``is_behind`` tells that more was
        there than could be taken.
        """
        self.is_behind = False
        if self.is_complete:
            return 0
        ended = self.is_ended  # looked at first: what is read now is then all that there will ever be
        if not self._find_header():
            self.is_complete = ended
            return 0
        current_step, step_start_ns = self.reader.step, self.reader.step_start_ns
        count = 0
        for ring in range(len(self._tails)):
            count += self._drain_ring(ring, None if most is None else max(0, most - count))
        self.metadata.read()
        self.metadata.read_steps()
        left = sum(self.reader.head(ring) - tail for ring, tail in enumerate(self._tails))
        self.is_behind = left > 0 and (ended or (most is not None and count >= most))
        ended = ended and not left
        if ended:
            count += self._salvage()
        assert self.metadata.steps is not None
        self._steps += self.metadata.steps.take(current_step, step_start_ns, ended=ended)
        self.is_complete = ended
        return count

    def _drain_ring(self, ring: int, most: int | None) -> int:
        if self.reader.head(ring) == self._tails[ring]:
            return 0
        read = self.reader.read_ring(ring, self._tails[ring], most)
        known = known_codes(read.records)
        records = read.records if known.all() else read.records[known]
        self._tails[ring] = read.tail
        self.lost += read.lost + len(read.records) - len(records)
        if self._salvaged:
            records = records[~np.isin(records["begun_ns"], self._salvaged)]
        self._take(records)
        return len(records)

    def _take(self, records: Records) -> None:
        """Turn records into columns at once, while they are in the cache; nothing refers to them afterwards."""
        if not len(records):
            return
        assert self.header is not None
        self.metadata.read()  # after the ring: an index is in the metadata before a record uses it
        arrays = span_arrays([records], self.rank, self.header.clock_base_ns, self.metadata.names)
        self.pending.append(arrays)
        ends = arrays.columns["start_ns"] + np.maximum(arrays.columns["duration_ns"], 0)
        self._last_ns = max(self._last_ns, int(ends.max()) - self.header.clock_base_ns)

    def _salvage(self) -> int:
        """Operations that were done when the rank ended, though it had not waited for them, are spans too.

        A rank killed between writing a span and giving its slot free has it in both places; the ring's copy counts.
        """
        slots = self.reader.slots()
        slots = slots[(slots["ended"] == 1) & known_codes(slots)]
        written = [self._last_begun(ring) for ring in range(len(self._tails))]
        slots = slots[~np.isin(slots["begun_ns"], np.concatenate([*written, self._salvaged]))].copy()
        slots["exposed_ns"] = ABSENT_I64
        self._salvaged += slots["begun_ns"].tolist()
        self._take(slots)
        return len(slots)

    def _last_begun(self, ring: int) -> Any:
        head = self.reader.head(ring)
        return self.reader.read_ring(ring, max(0, head - _LAST_RECORDS)).records["begun_ns"].copy()

    def take_steps(self) -> list[dict[str, Any]]:
        """Rows of ``steps`` that have become ready, without run, attempt and rank."""
        steps, self._steps = self._steps, []
        return steps

    def refuse_pending(self, refused: bool) -> None:
        """Whether the store has no room for the pending spans: once the commit is made, they count as lost."""
        self._refused = sum(map(len, self.pending)) if refused else 0

    def committed(self) -> None:
        """What was pending is in the store, or was refused."""
        self.dropped, self._refused = self.dropped + self._refused, 0
        self.pending = []
        self.metadata.free_steps()

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def is_visible(self) -> bool:
        """Whether the rank's process can be seen from here: not where it has a host or process ids of its own."""
        if self.header is None:
            return True
        is_near = self.header.is_of_this_host and self.header.pid_namespace in (None, pid_namespace())
        return is_near and self.header.is_of_this_boot and not self.came_back

    @property
    def runs_here(self) -> bool:
        """Whether the rank runs on this host, as far as its process or, of one in another container, its box shows."""
        if self.header is None or self.is_ended or not (self.header.is_of_this_host and self.header.is_of_this_boot):
            return False
        return self.is_visible or time.monotonic_ns() - self.changed_ns < RESTING_NS

    def sample(self) -> ProcessSample:
        """State of the process. One that is gone without a goodbye makes the rank dead, until its box moves again."""
        quiet_ns = self._watch_box()
        if not self.is_visible:
            outlived = self.header is not None and self.header.is_of_this_host and not self.header.is_of_this_boot
            if not self.is_ended and quiet_ns >= (QUIET_NS if outlived else SILENT_NS):
                self.died = ProcessState.GONE
            return ProcessSample(ProcessState.EXITED if self.reader.closed else self.died, None)
        if self._process is None:
            self._process = ProcessWatch(self.reader.pid, self.path)
        sample = self._process.sample()
        self.exit_code = self.exit_code if sample.exit_code is None else sample.exit_code
        if self.reader.closed:
            return ProcessSample(ProcessState.EXITED, sample.cpu_ns)
        if sample.state in DEAD_STATES and self.died is None and quiet_ns >= QUIET_NS:
            self.died = sample.state
        return ProcessSample(self.died or sample.state, sample.cpu_ns)

    def _watch_box(self) -> int:
        """Nanoseconds since the box was seen to change. A dead rank whose box changes was not dead."""
        seen = (self.spans, self.reader.step or 0, *self.progress_sums(), int(self.reader.closed))
        now = time.monotonic_ns()
        if self.died is not None and self._moved(seen):
            log.warning("%s was taken for dead but goes on: it is read again.", self.path)
            self.died, self.is_complete, self.came_back = None, False, True
        if seen != self._seen:
            self._seen, self.changed_ns = seen, now
        return now - self.changed_ns

    def _moved(self, seen: tuple[int, ...]) -> bool:
        """Whether the box changed since the rank was taken for dead, by this agent or by an earlier one."""
        if self._seen:
            return seen != self._seen
        heads = [self.reader.head(ring) for ring in range(len(self._tails))]
        return self.reader.closed or (self.is_complete and heads != self._tails)

    def progress_sums(self) -> tuple[int, int]:
        """Operations issued and completed, over all groups: they move whenever the rank communicates."""
        progress = self.reader.progress()
        return int(progress["issued"].sum()), int(progress["completed"].sum())

    def flights(self) -> list[dict[str, Any]]:
        """What is in flight, the outermost first, as values for ``in_flight``."""
        if self.header is None:
            return []
        slots = self.reader.slots()
        self.metadata.read()  # after the slots: an index is in the metadata before a slot uses it
        return flights(slots, self.header.clock_base_ns, self.metadata.names)

    def group_progress(self) -> list[dict[str, Any]]:
        """The last sequence number of every group, as values for ``heartbeats``."""
        progress = self.reader.progress()
        self.metadata.read()
        return group_progress(progress, self.metadata.names)

    @property
    def lost_metadata(self) -> int:
        """Metadata that the rank could not write, or that does not fit the tables."""
        return self.reader.metadata_lost + self.metadata.rejected

    def close(self) -> None:
        """Unmap the box."""
        self.reader.close()
