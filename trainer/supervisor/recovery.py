"""The last incident until the job has caught up: how long detection, diagnosis, restart and catching up took."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .journal import Journal, Record
from .observing import Seen


@dataclass(slots=True)
class _Open:
    """An incident whose restart is under way. Moments are UTC ns."""

    record: Record
    target: int | None
    first_step_ns: int | None = None


class Recovery:
    """Follows a restart until the furthest step before it is reached again, and closes its record."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: _Open | None = None

    @property
    def is_open(self) -> bool:
        """Whether a restart has not caught up yet."""
        return self._open is not None

    def begin(self, record: Record, target: int | None) -> None:
        """A restart has been ordered; ``target`` is the last step that was completed before."""
        self._open = _Open(record, target)

    def look(self, seen: Seen) -> Record | None:
        """Take over what the new attempt has reached; the record once it has caught up."""
        found = self._open
        if found is None or seen.first_step_ns is None or seen.last_step is None:
            return None
        record = found.record
        if found.first_step_ns is None:
            found.first_step_ns = seen.first_step_ns
            spent_s = record.times.get("diagnosis_s", 0.0) + record.times.get("check_s", 0.0)
            decided_ns = record.noticed_ns + int(1e9 * spent_s)
            record.times["restart_s"] = _seconds(seen.first_step_ns - decided_ns)
        if found.target is not None and seen.last_step < found.target:
            return None
        end_ns = seen.end_ns or time.time_ns()
        record.times["catch_up_s"] = _seconds(end_ns - found.first_step_ns)
        record.times["recovery_s"] = _seconds(end_ns - record.opened_ns)
        record.closed_ns = end_ns
        record.note("caught-up", step=seen.last_step)
        self._open = None
        self._journal.write(record.attempt)
        return record

    def give_up(self, why: str) -> None:
        """The job failed again before it had caught up, or is over."""
        if self._open is not None:
            record, self._open = self._open.record, None
            record.closed_ns = time.time_ns()
            record.note("not-caught-up", why=why)
            self._journal.write(record.attempt)


def _seconds(duration_ns: int) -> float:
    return round(max(duration_ns, 0) / 1e9, 2)
