"""What an agent does for clock alignment: closed windows on the reference host, the rest on the host that ends last."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from ...profiler.errors import MegascopeError
from ..clocks.update import ClockKeeper, write_offsets
from ..drains.run import RunDrain
from ..reading.store import Store
from ..writing.writer import WriterHeldError

log = logging.getLogger(__name__)

EVERY_S = 30.0
MOST_WINDOWS = 4
"""Windows that one poll reads: an agent that finds hours of them must not miss its heartbeats meanwhile."""

Key = tuple[str, int]
"""Run and attempt."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What an agent has of an attempt: whether ranks are elsewhere too, and whether rank 0 is here."""

    is_shared: bool
    has_reference: bool


def presence_of(runs: Mapping[str, RunDrain]) -> dict[Key, Presence]:
    """The attempts that an agent has in its spool. One that lacks ranks has them on other hosts, or not yet."""
    found: dict[Key, Presence] = {}
    for run, drain in runs.items():
        for number, attempt in drain.attempts.items():
            ranks = {rank.rank for rank in attempt.ranks}
            world = max((rank.header.world_size for rank in attempt.ranks if rank.header is not None), default=0)
            found[run, number] = Presence(len(ranks) < world, 0 in ranks)
    return found


class ClockWatch:
    """Writes `clock_offsets` of the attempts that an agent serves, with a writer of its own.

    Agents see only their own host's boxes, but all read the one store. While an attempt runs, the agent of rank 0
    aligns what has settled. When it ends, whichever agent finds that all have ended does the rest. Trouble is logged,
    and never a reason to stop.
    """

    def __init__(self, root: Path, every_s: float = EVERY_S) -> None:
        self._root, self._every_s = root, every_s
        self._due = time.monotonic() + every_s
        self._keepers: dict[Key, ClockKeeper] = {}
        self._seen: dict[Key, Presence] = {}
        self._behind: list[Key] = []
        self._ended: list[Key] = []
        self._problems: set[str] = set()

    def poll(self, present: Mapping[Key, Presence]) -> None:
        """Look after the attempts that are in the spool now; those that are gone since the last call have ended."""
        self._ended += [key for key, one in self._seen.items() if key not in present and one.is_shared]
        self._ended = [key for key in self._ended if key not in present]
        running = [key for key in self._behind if key in present]
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_s
            running = [key for key, presence in present.items() if presence.is_shared and presence.has_reference]
        self._seen, self._behind = dict(present), []
        if not self._ended and not running:
            return
        try:
            with Store(self._root) as store:
                self._behind = [key for key in running if self._update(store, key, is_over=False)]
                self._ended = [key for key in self._ended if self._update(store, key, is_over=True)]
        except (MegascopeError, OSError, duckdb.Error, pa.ArrowException, ValueError) as error:
            self._say(f"The clocks of the hosts in {self._root} were not aligned ({error}).")
            self._ended = []
        for key in self._keepers.keys() - present.keys() - set(self._ended):
            del self._keepers[key]

    def _update(self, store: Store, key: Key, *, is_over: bool) -> bool:
        """Write what is new of one attempt; whether there is more, for the next poll."""
        attempt = store.attempt(*key)
        if is_over and attempt.exit_reason is None:
            return False  # another host's agent is not done: it will find that all are
        keeper = self._keepers.setdefault(key, ClockKeeper(attempt))
        rows = keeper.new_rows(store, is_over=is_over, most=MOST_WINDOWS)
        try:
            write_offsets(self._root, *key, rows)
        except WriterHeldError as error:  # another agent of this host has it
            self._say(str(error))
            return False
        return keeper.is_behind

    def _say(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.add(problem)
            log.warning("%s", problem)
