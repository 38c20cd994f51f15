"""Keeps `clock_offsets` up to date: one alignment a window of an attempt, appended when the window has closed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...profiler.host import host_name
from ..reading.clock_sql import MAX_DRIFT_PPB, OffsetSource
from ..reading.store import Attempt, Store
from ..writing.writer import TableWriter
from .alignment import Alignment, align_hosts
from .pairs import FloatArray
from .samples import SharedGroups, StepTimes, find_shared_groups, read_ends, read_step_times

log = logging.getLogger(__name__)

SECOND_NS = 10**9
FIRST_WINDOWS_S = (60, 180)
WINDOW_S = 600
"""The ends of the first windows after the start, then one every so often: a clock's rate wanders with temperature."""

SETTLED_S = 30
"""So long after its end, all agents have written what belongs to a window."""

Row = Mapping[str, Any]
Window = tuple[int, int]
"""Begin and end, UTC ns of the reference host; the end does not belong to it."""


_NEEDED = f"""
    WITH told AS (
        SELECT DISTINCT host FROM clock_offsets
        WHERE uncertainty_ns IS NOT NULL AND (source IS NULL OR source = '{OffsetSource.HOST}')
    )
    SELECT count(DISTINCT ranks.host) > 1 AND count(told.host) < count(*) AS needed
    FROM ranks LEFT JOIN told ON told.host = ranks.host
"""
"""Whether there are several hosts, of which nobody has told offsets that need no improving."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A host whose offset by ends and by the exchange at the start differ by more than both uncertainties."""

    host: str
    ends_ns: int
    exchange_ns: int
    allowed_ns: int

    def sentence(self) -> str:
        """What is wrong, and what is done about it."""
        return (
            f"The clock of {self.host} is off by {self.exchange_ns} ns by messages at the start and by {self.ends_ns} "
            f"ns by the ends of shared operations, which is more than both may be wrong ({self.allowed_ns} ns): the "
            "messages are believed, since delays cannot bend them further, and the drift is taken from the ends."
        )


class ClockKeeper:
    """Aligns the hosts of one attempt, window by window.

    How far it has come is what the store says, but for windows that cannot be aligned: those it remembers, so that they
    are read once. ``is_behind`` tells that the last call left windows to the next.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._shifts: dict[str, tuple[float, float]] | None = None
        self._hopeless: set[Window] = set()
        self._groups: tuple[list[Path], SharedGroups] | None = None
        self._settles_ns: int | None = None
        self.is_behind = False
        self.disagreements: tuple[Disagreement, ...] = ()

    def new_rows(self, store: Store, *, is_over: bool, most: int | None = None) -> list[Row]:
        """Rows of windows that have closed since those in the store; with ``is_over`` also of the one still open.

        Empty for an attempt of one host or with offsets from elsewhere, and while nothing is new. ``most`` is the
        number of windows that one call may read. Only reads the store.
        """
        if not is_over and self._is_early(store):
            return []
        self.is_behind = False
        (answer,) = store.query(_NEEDED, attempt=self._attempt).to_pylist()
        steps = read_step_times(store, self._attempt) if answer["needed"] else None
        if steps is None or not len(steps.step):
            return []
        settled_ns = int(steps.end_ns.max()) - SETTLED_S * SECOND_NS
        windows = list(windows_of(int(steps.start_ns.min()), int(steps.end_ns.max())))
        closed = [window for window in windows if is_over or settled_ns >= window[1]]
        self._settles_ns = next((end + SETTLED_S * SECOND_NS for _, end in windows[len(closed) :]), None)
        if not closed:
            return []
        groups = self._shared_groups(store)
        if self._shifts is None:
            self._shifts = self._cross_check(store, groups, steps, closed[0])
        done_ns = _done_until(store, self._attempt)
        new = [one for one in closed if (done_ns is None or one[0] > done_ns) and one not in self._hopeless]
        self.is_behind = most is not None and len(new) > most
        rows: list[Row] = []
        for window in new[:most]:
            alignment = self._align(store, groups, steps, window)
            found = [] if alignment is None else offset_rows(alignment, groups.hosts, self._shifts)
            if not found and settled_ns >= window[1]:
                self._hopeless.add(window)
            rows += found
        return rows

    def _is_early(self, store: Store) -> bool:
        """Whether no host's clock, so not the reference's, has come to where the open window has settled."""
        last_ns = store.last_moment_ns(self._attempt)
        if self.is_behind or last_ns is None or self._settles_ns is None:
            return False
        return last_ns < self._settles_ns

    def _shared_groups(self, store: Store) -> SharedGroups:
        """The groups that span hosts, read again where those tables have new files."""
        files = [path for table in ("ranks", "groups") for path in store.files(table, self._attempt)]
        if self._groups is None or self._groups[0] != files:
            self._groups = (files, find_shared_groups(store, self._attempt))
        return self._groups[1]

    def _align(self, store: Store, groups: SharedGroups, steps: StepTimes, window: Window) -> Alignment | None:
        chosen = steps.chosen(*window)
        found = align_hosts(read_ends(store, self._attempt, groups, chosen), len(groups.hosts)) if chosen else None
        return None if found is None else found.within(*window)

    def _cross_check(
        self, store: Store, groups: SharedGroups, steps: StepTimes, window: Window
    ) -> dict[str, tuple[float, float]]:
        """Hold the first window against the exchange; the shift that a host gets then holds for all windows."""
        exchanged = _exchanged(store, self._attempt)
        alignment = self._align(store, groups, steps, window) if exchanged else None
        if alignment is None:
            return {}
        shifts, found = compare_with_exchange(alignment, groups.hosts, exchanged)
        self.disagreements = tuple(found)
        for one in found:
            log.warning("%s", one.sentence())
        return shifts


def compare_with_exchange(
    alignment: Alignment, hosts: tuple[str, ...], exchanged: Mapping[str, Row]
) -> tuple[dict[str, tuple[float, float]], list[Disagreement]]:
    """Shift and new bias (ns) of the hosts for which ends and exchange disagree, and what they disagree about."""
    shifts: dict[str, tuple[float, float]] = {}
    found: list[Disagreement] = []
    for at, host in enumerate(hosts):
        row = exchanged.get(host)
        if row is None or not np.isfinite(alignment.offset_ns[at]):
            continue
        moment_ns = int(row["moment_ns"]) + int(row["offset_ns"])
        by_ends = float(alignment.offset_at_ns(moment_ns)[at])
        away_ns = max(alignment.begin_ns - moment_ns, moment_ns - alignment.end_ns, 0)
        own = float(max(alignment.begin_uncertainty_ns[at], alignment.end_uncertainty_ns[at]))
        length_ns = max(alignment.end_ns - alignment.begin_ns, 1)
        own += min(2 * own / length_ns, MAX_DRIFT_PPB * 1e-9) * away_ns
        allowed = own + float(row["uncertainty_ns"])
        if abs(by_ends - row["offset_ns"]) > allowed:
            shifts[host] = (row["offset_ns"] - by_ends, float(row["uncertainty_ns"]))
            found.append(Disagreement(host, round(by_ends), int(row["offset_ns"]), round(allowed)))
    return shifts, found


def update_clock_offsets(root: Path) -> int:
    """Bring `clock_offsets` of all attempts of a store up to date; the number of rows added.

    For whoever sees the whole store and is about to delete the spans that tell the offsets. Attempts whose rows reach
    their last window are left as they are, and so are windows of running attempts that have not settled.
    Raises WriterHeldError while an agent of this host writes offsets, and MegascopeError or OSError where the store
    cannot be read or written.
    """
    with Store(root) as store:
        found = [
            (attempt, ClockKeeper(attempt).new_rows(store, is_over=attempt.exit_reason is not None))
            for attempt in store.attempts()
        ]
    for attempt, rows in found:
        write_offsets(root, attempt.run, attempt.attempt, rows)
    return sum(len(rows) for _, rows in found)


def write_offsets(root: Path, run: str, attempt: int, rows: Sequence[Row]) -> None:
    """Append rows of `ClockKeeper.new_rows` with a writer of this host. Raises as `TableWriter` does."""
    if not rows:
        return
    with TableWriter(root, f"clocks-{host_name()}") as writer:
        writer.write("clock_offsets", run, attempt, {name: [row[name] for row in rows] for name in rows[0]})
        writer.commit()


def windows_of(start_ns: int, last_ns: int) -> Iterator[Window]:
    """Windows [begin, end) from the start until one holds the last moment; a step belongs to the one it lies in."""
    begin_s, at = 0, 0
    while start_ns + begin_s * SECOND_NS <= last_ns:
        end_s = FIRST_WINDOWS_S[at] if at < len(FIRST_WINDOWS_S) else (begin_s // WINDOW_S + 1) * WINDOW_S
        yield start_ns + begin_s * SECOND_NS, start_ns + end_s * SECOND_NS
        begin_s, at = end_s, at + 1


def _done_until(store: Store, attempt: Attempt) -> int | None:
    """The last moment of the reference host for which the store has offsets from ends."""
    sql = "SELECT max(moment_ns + offset_ns) AS until FROM clock_offsets WHERE source IN (?, ?)"
    row = store.query(sql, [OffsetSource.ENDS, OffsetSource.BOTH], attempt).to_pylist()[0]
    return None if row["until"] is None else int(row["until"])


def _exchanged(store: Store, attempt: Attempt) -> dict[str, Row]:
    """The exchange's row of each host."""
    rows = store.query("SELECT * FROM clock_offsets WHERE source = ?", [OffsetSource.EXCHANGE], attempt)
    return {str(row["host"]): row for row in rows.to_pylist() if row["uncertainty_ns"] is not None}


def offset_rows(
    alignment: Alignment, hosts: tuple[str, ...], shifts: Mapping[str, tuple[float, float]]
) -> list[dict[str, Any]]:
    """Two rows a host, at the ends of the window, so that offsets in between are interpolated; none where unknown."""
    rows = []
    ends = ((alignment.begin_ns, alignment.begin_uncertainty_ns), (alignment.end_ns, alignment.end_uncertainty_ns))
    for at, host in enumerate(hosts):
        shift, bias = shifts.get(host, (0.0, 0.0))
        for moment_ns, uncertainty in ends if np.isfinite(alignment.offset_ns[at]) else ():
            offset_ns = round(_at(alignment, moment_ns, at) + shift)
            rows.append(
                {
                    "host": host,
                    "moment_ns": moment_ns - offset_ns,
                    "offset_ns": offset_ns,
                    "drift_ppb": float(alignment.drift[at] / (1 - alignment.drift[at]) * 1e9),
                    "uncertainty_ns": round(_finite(uncertainty, at) + bias),
                    "source": str(OffsetSource.BOTH if host in shifts else OffsetSource.ENDS),
                }
            )
    return rows


def _at(alignment: Alignment, moment_ns: int, host: int) -> float:
    return float(alignment.offset_at_ns(moment_ns)[host])


def _finite(uncertainty_ns: FloatArray, host: int) -> float:
    return float(np.ceil(uncertainty_ns[host]))
