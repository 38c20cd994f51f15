"""All attempts of one run on this host, and their one writer: what is read and what is committed move together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...profiler.errors import MegascopeError
from ...profiler.host import host_name
from ...profiler.topology import stable_id
from ..incidents.dumps import DumpGathering
from ..incidents.responding import Responder
from ..manifests.manifest import SupersededError
from ..spool.observer import Observe
from ..spool.outbox import UNFIT
from ..storage.locks import FileLock
from ..writing.writer import TableWriter, WriterHeldError
from .attempt import AttemptDrain

log = logging.getLogger(__name__)

MOST_PENDING_SPANS = 1_000_000
"""Spans held in memory while the store cannot be written; beyond, they stay in the boxes.

This bounds the agent's memory: about 110 bytes a span that waits, and as much again for the rows of those that are
being written. What a poll copies of one ring at a time has 128 bytes a record, and goes before the next ring.
"""

MOST_SPANS_AT_ONCE = 250_000
"""Spans that one poll takes out of the boxes of an attempt: while the store can be written, no more are in memory."""

HASTE_S = 0.1
"""Between two polls, for the few seconds from a stall to its verdict."""


class RunDrain:
    """Drains one run. Only one agent at a time may: `open` returns None where another one holds the run's lock."""

    def __init__(self, spool: Path, store: Path, run: str, lock: FileLock, observe: Observe | None = None) -> None:
        self._folder, self._store, self.run, self._lock = spool / run, store, run, lock
        self._observe = observe
        # The same run in the same spool always has the same writer: that is how a new agent finds its positions.
        self.writer_name = f"agent-{host_name()}-{stable_id('agent', str(spool.resolve()), run):016x}"
        self.attempts: dict[int, AttemptDrain] = {}
        self._dumps: dict[int, DumpGathering] = {}
        self._responders: dict[int, Responder] = {}
        self._ended: list[Responder] = []
        self._writer: TableWriter | None = None
        self._given_up: set[Path] = set()
        self._problem = ""
        self._has_boxes = False

    @classmethod
    def open(cls, spool: Path, store: Path, run: str, observe: Observe | None = None) -> RunDrain | None:
        """Take the run's lock; the store need not be there yet."""
        lock = FileLock.acquire(spool / f"{run}.run.lock")
        return None if lock is None else cls(spool, store, run, lock, observe)

    @property
    def written_bytes(self) -> int:
        """Size of all that the run's writer has in the store."""
        return 0 if self._writer is None else self._writer.live_bytes

    @property
    def pending_spans(self) -> int:
        """Spans read and not yet committed."""
        return sum(attempt.pending_spans for attempt in self.attempts.values())

    @property
    def problem(self) -> str:
        """Why the store cannot be written now; empty where it can."""
        return self._problem

    @property
    def is_active(self) -> bool:
        """Whether something is under way or not yet committed, be it that the store cannot be written."""
        if self._problem and self._has_boxes:
            return True
        return any(attempt.is_active or attempt.is_over or attempt.pending_spans for attempt in self.attempts.values())

    @property
    def is_urgent(self) -> bool:
        """Whether the last poll brought what is to be committed at once: an end, a snapshot, a verdict."""
        return any(attempt.is_over or attempt.watch.has_news for attempt in self.attempts.values())

    @property
    def pause_s(self) -> float:
        """So long the next poll may be away: not long where a stall was noticed a moment ago, and is to be judged."""
        pressing = any(attempt.watch.is_pressing(attempt.now_ns) for attempt in self.attempts.values())
        return HASTE_S if pressing else float("inf")

    @property
    def changed_ns(self) -> int:
        """Monotonic moment at which any box was last seen to change."""
        return max((attempt.changed_ns for attempt in self.attempts.values()), default=0)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of the run is left in the spool."""
        return not self.attempts and not self._folder.exists()

    @property
    def known_boxes(self) -> set[Path]:
        """The boxes that are drained, or that were looked at and left where they are."""
        return self._given_up.union(rank.path for attempt in self.attempts.values() for rank in attempt.ranks)

    def poll(self, numbers: Sequence[int], stall_s: float, *, heartbeat: bool) -> None:
        """Look at the given attempts. Without a store nothing can be read: the positions are in it."""
        self._has_boxes = bool(numbers)
        if not self._open_writer():
            return
        assert self._writer is not None
        states = self._writer.state.get("attempts", {})
        for number in numbers:
            folder = self._folder / str(number)
            if number in self.attempts or self._given_up.issuperset(folder.glob("*.box")):
                continue
            observer = None if self._observe is None else self._observe(self.run, number)
            attempt = AttemptDrain(
                folder, self.run, number, stall_s, states.get(str(number)), self._given_up, self._store, observer
            )
            if attempt.is_left_over():
                left = self._dumps_of(attempt)
                left.poll(0, {}, is_last=True)
                left.remove()
                attempt.remove_spool()
            else:
                self.attempts[number] = attempt
        for attempt in list(self.attempts.values()):
            most = min(MOST_SPANS_AT_ONCE, MOST_PENDING_SPANS - self.pending_spans)
            try:
                attempt.poll(heartbeat=heartbeat, most=max(0, most))
                self._dumps_of(attempt).poll(attempt.watch.stalls, _hosts(attempt), is_last=attempt.is_over)
                self._respond(attempt)
            except OSError as error:
                attempt.say(f"{attempt.folder} cannot be read now ({error}): trying again.")
            except UNFIT as error:
                self._set_aside(attempt, error)

    def _dumps_of(self, attempt: AttemptDrain) -> DumpGathering:
        known = self._dumps.get(attempt.attempt)
        if known is None:
            known = DumpGathering(attempt.folder, self._store, self.run, attempt.attempt)
            self._dumps[attempt.attempt] = known
        return known

    def _respond(self, attempt: AttemptDrain) -> None:
        """Let what was noticed be judged and told; an attempt without any incident needs nobody for that."""
        if not attempt.incidents:
            return
        known = self._responders.get(attempt.attempt)
        if known is None:
            known = self._responders[attempt.attempt] = Responder(self._store, self.run, attempt.attempt)
        known.poll(attempt.incidents, attempt.ranks, attempt.now_ns, is_last=attempt.is_over)

    def _end_response(self, number: int) -> None:
        responder = self._responders.pop(number, None)
        if responder is not None:
            responder.end()
            self._ended = [*(one for one in self._ended if one.is_telling), responder]

    def _set_aside(self, attempt: AttemptDrain, error: Exception) -> None:
        """Leave an attempt that cannot be understood where it is, so that others go on."""
        log.warning(
            "%s cannot be understood (%s: %s): its boxes are left where they are.",
            attempt.folder, type(error).__name__, error, exc_info=error,
        )  # fmt: skip
        self._given_up.update(attempt.folder.glob("*.box"))
        attempt.close()
        self._end_response(attempt.attempt)
        self.attempts.pop(attempt.attempt, None)

    def _open_writer(self) -> bool:
        """Open the store's writer. A store that cannot be written now is tried again: nothing is lost meanwhile."""
        if self._writer is None:
            try:
                self._writer = TableWriter(self._store, self.writer_name)
            except (OSError, MegascopeError) as error:
                self._say(error)
                return False
            self._problem = ""
        return True

    def flush(self, *, with_events: bool) -> bool:
        """Commit all that was read, with the positions behind it; False where the store cannot be written."""
        news = [attempt for attempt in self.attempts.values() if attempt.has_news]
        if not news or self._writer is None:
            self._problem = "" if self._writer is not None else self._problem
            return True
        try:
            for attempt in news:
                if not self._stage(attempt, with_events=with_events):
                    return self.flush(with_events=with_events)
            self._writer.commit({"attempts": self._states()})
        except SupersededError as error:
            self._begin_anew(error)
            return False
        except (OSError, *UNFIT) as error:
            self._writer.rollback()
            self._say(error)
            return False
        self._problem = ""
        for attempt in news:
            attempt.committed()
            if attempt.is_over_for_good():
                self._dumps_of(attempt).remove()
                attempt.remove_spool()
                self._end_response(attempt.attempt)
                del self.attempts[attempt.attempt], self._dumps[attempt.attempt]
        return True

    def _begin_anew(self, error: SupersededError) -> None:
        """Go on from what the store says: what is pending may be in it, or may be somebody else's to write."""
        log.warning("Run %s is read again from where the store has it (%s).", self.run, error)
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        for number in list(self._responders):
            self._end_response(number)
        for attempt in self.attempts.values():
            attempt.close()
        self.attempts.clear()
        self._dumps.clear()

    def _stage(self, attempt: AttemptDrain, *, with_events: bool) -> bool:
        """Stage what is new of one attempt; False where it cannot be understood, with nothing staged any more."""
        assert self._writer is not None
        try:
            attempt.write(self._writer, with_events=with_events)
        except UNFIT as error:
            self._writer.rollback()
            self._set_aside(attempt, error)
            return False
        return True

    def _states(self) -> dict[str, Any]:
        """Positions of all attempts that are still in the spool, also of those that this agent does not look at."""
        assert self._writer is not None
        kept = {
            number: state
            for number, state in self._writer.state.get("attempts", {}).items()
            if (self._folder / number).exists()
        }
        return kept | {str(number): attempt.state() for number, attempt in self.attempts.items()}

    def _say(self, error: Exception) -> None:
        if str(error) == self._problem:
            return
        self._problem = str(error)
        if isinstance(error, WriterHeldError):
            log.warning(
                "Run %s waits: a compaction of %s holds its writer for a moment. It keeps its boxes and tries again.",
                self.run, self._store,
            )  # fmt: skip
        else:
            log.warning(
                "Run %s waits for its store %s, which cannot be written (%s): the boxes keep the spans, trying again.",
                self.run, self._store, error,
            )  # fmt: skip

    def close(self) -> None:
        """Unmap all boxes, close the writer and give the run free."""
        for number in list(self._responders):
            self._end_response(number)
        for responder in self._ended:
            responder.close()
        for attempt in self.attempts.values():
            attempt.close()
        if self._writer is not None:
            self._writer.close()
        self._lock.release(delete=not self._folder.exists())


def _hosts(attempt: AttemptDrain) -> dict[int, str]:
    """Where each rank runs, as far as its metadata has begun."""
    return {rank.rank: rank.header.host for rank in attempt.ranks if rank.header is not None}
