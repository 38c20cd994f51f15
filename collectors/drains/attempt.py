"""One attempt on this host: its ranks' boxes, its heartbeats, the small tables about it, and its end."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...profiler.errors import FormatError
from ...profiler.host import host_name
from ..incidents.incidents import SNAPSHOT_GAP_S, Incident, IncidentWatch
from ..incidents.phases import PhaseBoard
from ..rollups.drain import RollupDrain
from ..spool.event_rows import SpanArrays, event_rows
from ..spool.observer import Observer
from ..spool.outbox import UNFIT, Outbox, Whole
from ..spool.processes import ProcessSample
from ..spool.rank_drain import RankDrain
from ..spool.rank_metadata import RankMetadata
from ..spool.spool import remove_attempt
from ..tables.schemas import block_name
from ..writing.writer import TableWriter
from .attempt_beats import Beats
from .attempt_tables import run_row, small_tables, worst_exit
from .overhead_watch import OverheadWatch

log = logging.getLogger(__name__)

LINGER_NS = 5_000_000_000
"""An attempt of which fewer ranks were seen than it has is over only after its boxes were still for that long."""

TOLD_EARLIER = 4
"""Other hosts are told of what takes long once it has taken this part of the time that makes a stall."""

_UNREADABLE_AFTER_NS = 5_000_000_000


class AttemptDrain:
    """Drains the boxes of one attempt.

    ``poll`` reads what is new, ``write`` stages all of it, ``committed`` forgets it: between the last two lies the
    commit, which also takes `state`, so that files and positions become valid together. Boxes that cannot be read are
    added to ``given_up`` and left where they are. Agents of several hosts tell each other in ``store`` what takes long.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        attempt: int,
        stall_s: float,
        state: Mapping[str, Any] | None = None,
        given_up: set[Path] | None = None,
        store: Path | None = None,
        observer: Observer | None = None,
    ) -> None:
        known = state or {}
        self.folder, self.run, self.attempt = folder, run, attempt
        self.ranks: list[RankDrain] = []
        self.is_over = False
        self.was_over = bool(known.get("over", False))
        self.outbox, self._observer = Outbox(replaces=not self.was_over, observer=observer), observer
        self._rollups = RollupDrain(run, attempt)
        self._overhead = OverheadWatch()
        self._boxes: dict[str, Any] = dict(known.get("boxes", {}))
        self._start_ns: int | None = known.get("start_ns")
        name = f"{run}/{attempt}/{host_name()}"
        self._board = None if store is None else PhaseBoard(store, run, attempt, host_name(), stall_s / TOLD_EARLIER)
        self.watch = IncidentWatch(name, stall_s, SNAPSHOT_GAP_S, known.get("incidents"), self._board)
        self._unreadable: dict[Path, int] = {}
        self._given_up = set() if given_up is None else given_up
        self._described = -1
        self._beats = Beats(self.outbox)
        self._staged: dict[str, Any] = {}
        self._problems: set[str] = set()

    def state(self) -> dict[str, Any]:
        """For a later agent; it belongs to what was staged last."""
        self._staged = {rank.path.name: rank.state() for rank in self.ranks if rank.header is not None}
        return {
            "boxes": {**self._boxes, **self._staged},
            "incidents": self.watch.state(),
            "start_ns": self._start_ns,
            "over": self.is_over,
        }

    @property
    def pending_spans(self) -> int:
        """Spans read and not yet committed."""
        return sum(len(arrays) for rank in self.ranks for arrays in rank.pending)

    @property
    def has_backlog(self) -> bool:
        """Whether the last poll left spans in a box because there were too many for one."""
        return any(rank.is_behind for rank in self.ranks)

    @property
    def has_news(self) -> bool:
        """Whether there is anything to commit."""
        return self.is_over or self.pending_spans > 0 or not self.outbox.is_empty

    @property
    def is_active(self) -> bool:
        """Whether something may still come, as far as can be seen from here."""
        return not self.is_over and any(not rank.is_complete and rank.is_visible for rank in self.ranks)

    @property
    def changed_ns(self) -> int:
        """Monotonic moment at which any box was last seen to change."""
        return max((rank.changed_ns for rank in self.ranks), default=0)

    @property
    def incidents(self) -> list[Incident]:
        """What was noticed on this host; whoever responds to one notes it there."""
        return self.watch.incidents

    def is_left_over(self) -> bool:
        """Whether an earlier agent committed all of this and died before it could delete it."""
        if not self.was_over:
            return False
        self._discover()
        return not self._unreadable and all(rank.is_resumed for rank in self.ranks) and not self._goes_on()

    def is_over_for_good(self) -> bool:
        """Whether nothing has moved since the end was noticed. If not, the attempt goes on, and is described anew."""
        if self.is_over and self._goes_on():
            self.is_over, self._described = False, -1
        return self.is_over

    def _goes_on(self) -> bool:
        for rank in self.ranks:
            rank.sample()
        return not all(rank.is_complete for rank in self.ranks)

    @property
    def now_ns(self) -> int:
        """UTC by the clock of the attempt: the host's monotonic clock and the base that its ranks took."""
        headers = [rank.header for rank in self.ranks if rank.header is not None]
        return next((header.now_ns for header in headers if header.is_of_this_boot), None) or time.time_ns()

    def add_health(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of ``health`` that were sampled just now."""
        moment_ns = self.now_ns
        self.outbox.append("health", ({**row, "moment_ns": moment_ns} for row in rows))

    # -- reading ------------------------------------------------------------------------------------------------

    def poll(self, *, heartbeat: bool, most: int) -> None:
        """Look at every box once, and take at most so many spans; 0 only watches, while the store can take no more."""
        self._discover()
        drain = most > 0
        share = max(1, most // max(1, len(self.ranks)))  # each its part, so that none waits for all of another
        samples = {rank: self._look(rank, share if drain else 0) for rank in list(self.ranks)}
        self._describe()
        if self._board is not None:
            self._board.watch(self.ranks, self.now_ns)
        self.watch.check(self.ranks, self.outbox, self.now_ns)
        for rank in self.ranks:
            self._beats.look(rank, samples[rank], self.now_ns, is_due=heartbeat or self.watch.has_news)
        self.is_over = drain and self._is_over()
        cost = self._overhead.take(is_over=self.is_over)
        self.add_health([{"host": host_name(), "device": None, **row} for row in cost])
        if self.is_over:
            self.watch.close_all(self.now_ns)
            reason = worst_exit(self._metadata(), died=any(rank.died for rank in self.ranks))
            if self._metadata():
                self.outbox.put("runs", run_row(self._metadata(), self._first_moment_ns(), self._end_ns(), reason))
        self.outbox.put("incidents", Whole(self.watch.rows()))

    def _look(self, rank: RankDrain, most: int) -> ProcessSample | None:
        """Read what is new of one rank; None where nothing could be read. A box full of nonsense is left alone."""
        try:
            sample = rank.sample()
            rank.is_behind = False
            if most:
                known = len(rank.pending)
                rank.drain(most)
                if self._observer is not None:
                    self._observer.spans(rank, rank.pending[known:])
                steps = rank.take_steps()
                self.outbox.append("steps", ({"rank": rank.rank, **values} for values in steps))
                self._overhead.add(rank.rank, steps)
        except OSError as error:
            self.say(f"{rank.path} cannot be read now ({error}): trying again.")
            return None
        except UNFIT as error:
            self.say(f"{rank.path} cannot be understood ({type(error).__name__}: {error}): it is left where it is.")
            self._given_up.add(rank.path)
            self.ranks.remove(rank)
            rank.close()
            return None
        return sample

    def say(self, problem: str) -> None:
        """Log a problem, once."""
        if problem not in self._problems:
            self._problems.add(problem)
            log.warning("%s", problem)

    def _discover(self) -> None:
        """Open boxes that are new. One that is just being created is tried again; one that stays unreadable is left."""
        known = {rank.path for rank in self.ranks} | self._given_up
        for path in sorted(self.folder.glob("*.box")):
            if path in known:
                continue
            try:
                self.ranks.append(RankDrain(path, self._boxes.get(path.name)))
                self._unreadable.pop(path, None)
            except (FormatError, OSError) as error:
                since = self._unreadable.setdefault(path, time.monotonic_ns())
                if time.monotonic_ns() - since > _UNREADABLE_AFTER_NS:
                    log.warning("%s It is left where it is.", error)
                    self._given_up.add(path)
                    del self._unreadable[path]

    def _is_over(self) -> bool:
        if not self.ranks or self._unreadable or not all(rank.is_complete for rank in self.ranks):
            return False
        world = max((rank.header.world_size for rank in self.ranks if rank.header is not None), default=0)
        is_whole = len({rank.rank for rank in self.ranks}) >= world > 0
        return is_whole or time.monotonic_ns() - self.changed_ns > LINGER_NS

    # -- the attempt as a whole ---------------------------------------------------------------------------------

    def _metadata(self) -> list[RankMetadata]:
        return [rank.metadata for rank in self.ranks if rank.header is not None]

    def _describe(self) -> None:
        """Write the small tables again when the metadata of any rank has grown."""
        metadata = self._metadata()
        version = sum(each.version + each.names.version for each in metadata)
        if not metadata or version == self._described:
            return
        self._described = version
        for name, whole in small_tables(metadata, self._first_moment_ns()).items():
            self.outbox.put(name, whole)
        self.outbox.put("runs", run_row(metadata, self._first_moment_ns(), None, None))

    def _first_moment_ns(self) -> int:
        """When the first rank of this host opened its box: it wrote the clock's base then."""
        if self._start_ns is None:
            try:
                self._start_ns = (self.folder / "clock.json").stat().st_mtime_ns
            except OSError:
                self._start_ns = self.now_ns
        return self._start_ns

    def _end_ns(self) -> int:
        """The last goodbye; of a rank that died, its last span."""
        return max((rank.end_ns for rank in self.ranks), default=self._first_moment_ns())

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, writer: TableWriter, *, with_events: bool) -> None:
        """Stage everything that is pending; without room for events, they are in the rollups only, and counted."""
        by_block: dict[str, list[SpanArrays]] = defaultdict(list)
        self._rollups.begin()
        for rank in self.ranks:
            rank.refuse_pending(not with_events)
            for arrays in rank.pending:
                self._rollups.add(arrays)
                if with_events:
                    by_block[block_name(rank.rank)].append(arrays)
        for block, parts in by_block.items():
            writer.write("events", self.run, self.attempt, event_rows(parts), block=block)
        self._rollups.write(writer, is_over=self.is_over)
        if not self.is_over:
            self._describe()  # a span may have brought a segment whose metadata was lost
        self.outbox.write(writer, self.run, self.attempt)

    def committed(self) -> None:
        """What was staged is in the store."""
        self._boxes.update(self._staged)
        self.outbox.committed()
        self._rollups.committed()
        for rank in self.ranks:
            rank.committed()

    def close(self) -> None:
        """Unmap all boxes, and tell other hosts nothing any more."""
        if self._board is not None:
            self._board.clear()
        for rank in self.ranks:
            rank.close()

    def remove_spool(self) -> None:
        """Delete what was drained; what could not be read, and what came since, stays."""
        self.close()
        for rank in self.ranks:
            rank.path.unlink(missing_ok=True)
            rank.metadata.remove()
        remove_attempt(self.folder)
