"""The supervisor's rows of table ``incidents``: what it noticed, asked, decided and did, with moments and times."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...collectors.incidents.incidents import MOST_ACTIONS
from ...collectors.writing.writer import TableWriter
from ...profiler.errors import MegascopeError

log = logging.getLogger(__name__)

WHO = "supervisor"
RECOVERY, SIGN = "recovery-", "sign-"
"""Kinds of the supervisor's incidents begin so: those of agents mean something else to whoever reads them."""


@dataclass(slots=True)
class Record:
    """One incident as the supervisor sees it. Moments are UTC ns.

    ``opened_ns`` is the end of the last step that was completed before, where there is one: from then on nothing was
    gained. ``noticed_ns`` is when the supervisor noticed.
    """

    attempt: int
    kind: str
    opened_ns: int
    noticed_ns: int
    number: int = 0
    step: int | None = None
    closed_ns: int | None = None
    verdict: Mapping[str, Any] | None = None
    actions: list[dict[str, Any]] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)

    def age_s(self) -> float:
        """Seconds since it was noticed."""
        return (time.time_ns() - self.noticed_ns) / 1e9

    def note(self, action: str, **more: Any) -> None:
        """Add what was done now."""
        if len(self.actions) < MOST_ACTIONS:
            self.actions.append({"action": action, "moment_ns": time.time_ns(), **more})

    def row(self, run: str) -> dict[str, Any]:
        """Row of ``incidents``. The times, in seconds, are in the action ``times``."""
        last = [] if not self.times else [{"action": "times", "moment_ns": time.time_ns(), **self.times}]
        return {
            "incident": f"{run}/{self.attempt}/{WHO}/{self.kind}/{self.number}",
            "kind": self.kind,
            "opened_ns": self.opened_ns,
            "closed_ns": self.closed_ns,
            "verdict": None if self.verdict is None else json.dumps(self.verdict),
            "actions": json.dumps([*self.actions, *last]),
        }


class Journal:
    """Writes the records of one run. A store that cannot be written stops nobody: they are kept, and tried again.

    That is at the next write, of whatever attempt, and once more when the journal is closed.
    """

    def __init__(self, store: Path, run: str) -> None:
        self._store, self._run = store, run
        self._writer: TableWriter | None = None
        self._unwritten: set[int] = set()
        self.records: list[Record] = []

    def open(self, attempt: int, kind: str, opened_ns: int, step: int | None) -> Record:
        """A new record, not yet written."""
        number = sum(1 for one in self.records if (one.attempt, one.kind) == (attempt, kind))
        record = Record(attempt, kind, opened_ns, time.time_ns(), number, step)
        self.records.append(record)
        return record

    def write(self, attempt: int) -> None:
        """Write all records of an attempt again, and those that could not be written before."""
        self._unwritten.add(attempt)
        try:
            if self._writer is None:
                self._writer = TableWriter(self._store, f"{WHO}-{self._run}")
            for number in sorted(self._unwritten):
                self._stage(self._writer, number)
            self._writer.commit()
            self._unwritten.clear()
        except (OSError, MegascopeError) as error:
            log.warning("What the supervisor did is not in the store yet (%s).", error)
            self._give_up_writer()  # what it staged would come twice

    def _stage(self, writer: TableWriter, attempt: int) -> None:
        rows = [one.row(self._run) for one in self.records if one.attempt == attempt]
        if rows:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            writer.write("incidents", self._run, attempt, columns, replace=True)

    def _give_up_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError, MegascopeError):
                writer.close()

    def close(self) -> None:
        """Write what is left, and give the writer's name free."""
        if self._unwritten:
            self.write(next(iter(self._unwritten)))
        self._give_up_writer()
