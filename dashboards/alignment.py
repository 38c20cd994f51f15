"""Moments of a rank's host on the reference host's clock, for what the store has no aligned view of."""

from __future__ import annotations

from dataclasses import dataclass

from ..collectors.store import Attempt
from .workbench import Workbench

_OFFSETS = """
    SELECT ranks.rank, offsets.moment_ns, offsets.offset_ns, offsets.drift_ppb
    FROM ranks JOIN (
        SELECT * FROM clock_offsets QUALIFY row_number() OVER (PARTITION BY host ORDER BY moment_ns DESC) = 1
    ) offsets ON offsets.host = ranks.host
"""


@dataclass(frozen=True, slots=True)
class HostClock:
    """The newest offset of a host's clock, as the view ``events_aligned`` applies it to spans."""

    moment_ns: int
    offset_ns: int
    drift_ppb: float

    def aligned(self, moment_ns: int) -> int:
        """A moment of the host, UTC ns, as the reference host's clock has it."""
        return moment_ns + self.offset_ns + round(self.drift_ppb * 1e-9 * (moment_ns - self.moment_ns))


SAME_CLOCK = HostClock(0, 0, 0.0)
"""For hosts without an offset: as ``events_aligned`` does, their times are taken as they are."""


def clocks_of(bench: Workbench, attempt: Attempt) -> dict[int, HostClock]:
    """The clock of each rank's host; a rank whose host has no offset is left out."""

    def load() -> dict[int, HostClock]:
        rows = bench.store.query(_OFFSETS, attempt=attempt).to_pylist()
        return {row["rank"]: HostClock(row["moment_ns"], row["offset_ns"], row["drift_ppb"] or 0.0) for row in rows}

    return bench.cached(("clocks", attempt.run, attempt.attempt), load)
