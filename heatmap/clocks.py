"""The clocks of ranks as arrays: what aligns their spans, and how far an order between hosts can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..collectors.clocks.clocks import Clocks, HostClock, load_clocks
from ..collectors.reading.store import Attempt, Store
from .peers import FloatArray


@dataclass(frozen=True, slots=True)
class RankClocks:
    """The clock of each rank's host, [R], None where it is not known; ranks of one host need none.

    ``uncertainty_ns`` [R] is what an order against ranks of other hosts may be wrong by: NaN where the clock is not
    known, 0 if all are on one host.
    """

    hosts: tuple[HostClock | None, ...]
    uncertainty_ns: FloatArray

    @classmethod
    def of_one_host(cls, ranks: int) -> RankClocks:
        """So many ranks that share a clock."""
        return cls((HostClock.at(0, 0, 0.0, 0),) * ranks, np.zeros(ranks))

    def aligned_ns(self, times_ns: FloatArray, base_ns: int) -> FloatArray:
        """Times [R, S] after a base, aligned; NaN for ranks whose clock is not known."""
        aligned = np.full(times_ns.shape, np.nan)
        rows: dict[HostClock, list[int]] = {}
        for row, clock in enumerate(self.hosts):
            if clock is not None:
                rows.setdefault(clock, []).append(row)
        for clock, found in rows.items():
            aligned[found] = times_ns[found] + clock.offsets_ns(times_ns[found], base_ns)
        return aligned


def load_rank_clocks(store: Store, attempt: Attempt, hosts: Sequence[str | None]) -> RankClocks:
    """Clocks of ranks on the given hosts, each as uncertain as it is at the beginning or the end of the attempt."""
    if len(set(hosts)) <= 1:
        return RankClocks.of_one_host(len(hosts))
    clocks = load_clocks(store, attempt)
    own = _uncertainties(store, attempt, clocks)
    largest = sorted(own, key=lambda host: -own[host])[:2]

    def with_others(host: str | None) -> float:
        others = (own[name] for name in largest if name != host)
        return own.get(host or "", np.nan) + next(others, np.nan)

    found = tuple(clocks.known.get(host or "") for host in hosts)
    return RankClocks(found, np.array([with_others(host) for host in hosts], float))


def _uncertainties(store: Store, attempt: Attempt, clocks: Clocks) -> dict[str, float]:
    """The largest uncertainty of each host between the first and the last moment of the attempt."""
    last = attempt.end_ns or store.last_moment_ns(attempt)
    moments = [moment for moment in (attempt.start_ns, last) if moment is not None]
    return {
        host: float(max(clock.uncertainty_ns(at) for at in [*moments, *(piece.moment_ns for piece in clock.pieces)]))
        for host, clock in clocks.known.items()
    }
