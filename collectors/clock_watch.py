"""What an agent does for clock alignment: closed windows on the reference host, the rest on the host that ends last."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from ..profiler.errors import MegascopeError
from .clock_update import ClockKeeper
from .run_drain import RunDrain
from .store import Store
from .writer import TableWriter, WriterHeldError

log = logging.getLogger(__name__)

EVERY_S = 30.0

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
        self._problems: set[str] = set()

    def poll(self, present: Mapping[Key, Presence]) -> None:
        """Look after the attempts that are in the spool now; those that are gone since the last call have ended."""
        ended = [key for key, presence in self._seen.items() if key not in present and presence.is_shared]
        running: list[Key] = []
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_s
            running = [key for key, presence in present.items() if presence.is_shared and presence.has_reference]
        self._seen = dict(present)
        if ended or running:
            try:
                self._update(running, ended)
            except (MegascopeError, OSError, duckdb.Error, pa.ArrowException, ValueError) as error:
                self._say(f"The clocks of the hosts in {self._root} were not aligned ({error}).")
        for key in ended:
            self._keepers.pop(key, None)

    def _update(self, running: list[Key], ended: list[Key]) -> None:
        with Store(self._root) as store:
            for run, number in [*running, *ended]:
                attempt = store.attempt(run, number)
                is_over = (run, number) in ended
                if is_over and attempt.exit_reason is None:
                    continue  # another host's agent is not done: it will find that all are
                keeper = self._keepers.setdefault((run, number), ClockKeeper(attempt))
                rows = keeper.new_rows(store, is_over=is_over)
                if rows:
                    columns = {name: [row[name] for row in rows] for name in rows[0]}
                    self._write(run, number, columns)

    def _write(self, run: str, attempt: int, columns: dict[str, list[object]]) -> None:
        try:
            with TableWriter(self._root, f"clocks-{socket.gethostname()}") as writer:
                writer.write("clock_offsets", run, attempt, columns)
                writer.commit()
        except WriterHeldError as error:
            self._say(str(error))

    def _say(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.add(problem)
            log.warning("%s", problem)
