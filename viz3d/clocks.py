"""The clocks of hosts against each other: which moments of two hosts can be compared, and how far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..collectors.store import Attempt, Store


@dataclass(frozen=True, slots=True)
class HostClock:
    """What brings a host's moments to the reference: offset at ``moment_ns``, drift, and how sure that is."""

    moment_ns: int
    offset_ns: int
    drift_ppb: float
    uncertainty_ns: int

    def aligned_ns(self, moment_ns: int) -> int:
        """A moment of the host on the reference clock."""
        return moment_ns + self.offset_ns + round(self.drift_ppb * 1e-9 * (moment_ns - self.moment_ns))


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of an attempt's hosts; one that is not in ``known`` cannot be compared with any other."""

    known: Mapping[str, HostClock]

    def aligned_ns(self, host: str | None, moment_ns: int) -> int:
        """A moment on the reference clock; as it is where the host's clock is not known."""
        clock = self.known.get(host or "")
        return moment_ns if clock is None else clock.aligned_ns(moment_ns)

    def uncertainty_ns(self, one: str | None, other: str | None) -> int | None:
        """No order finer than this is claimed between moments of two hosts; None: no order at all."""
        if one == other:
            return 0
        clocks = [self.known.get(host or "") for host in (one, other)]
        known = [clock.uncertainty_ns for clock in clocks if clock is not None]
        return sum(known) if len(known) == 2 else None


NO_CLOCKS = Clocks({})


def load_clocks(store: Store, attempt: Attempt) -> Clocks:
    """The newest offset of every host; one without its uncertainty is no use."""
    rows = store.query(
        """SELECT * FROM clock_offsets WHERE uncertainty_ns IS NOT NULL
           QUALIFY row_number() OVER (PARTITION BY host ORDER BY moment_ns DESC) = 1""",
        attempt=attempt,
    ).to_pylist()
    return Clocks(
        {
            str(row["host"]): HostClock(
                int(row["moment_ns"]), int(row["offset_ns"]), float(row["drift_ppb"] or 0.0), int(row["uncertainty_ns"])
            )
            for row in rows
        }
    )
