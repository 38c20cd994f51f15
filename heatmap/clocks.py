"""The clocks of the ranks' hosts: what aligns their spans, and how far an order between hosts can be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..collectors.store import Attempt, Store
from .peers import FloatArray


@dataclass(frozen=True, slots=True)
class RankClocks:
    """Per rank [R] the clock of its host: offset at a moment, drift, both to the reference; NaN where not known.

    ``uncertainty_ns`` is what an order against ranks of other hosts may be wrong by: 0 if all are on one host.
    """

    offset_ns: FloatArray
    moment_ns: FloatArray
    drift_ppb: FloatArray
    uncertainty_ns: FloatArray

    @classmethod
    def of_one_host(cls, ranks: int) -> RankClocks:
        """So many ranks that share a clock."""
        none = np.zeros(ranks)
        return cls(none, none, none, none)

    def aligned_ns(self, times_ns: FloatArray, base_ns: int) -> FloatArray:
        """Times [R, S] after a base, aligned; NaN for ranks whose clock is not known."""
        since = times_ns + (base_ns - self.moment_ns)[:, None]
        aligned: FloatArray = times_ns + self.offset_ns[:, None] + self.drift_ppb[:, None] * 1e-9 * since
        return aligned


def load_rank_clocks(store: Store, attempt: Attempt, hosts: Sequence[str | None]) -> RankClocks:
    """Clocks of ranks on the given hosts: the newest row of each host in `clock_offsets`."""
    if len(set(hosts)) <= 1:
        return RankClocks.of_one_host(len(hosts))
    rows = store.query(
        "SELECT * FROM clock_offsets QUALIFY row_number() OVER (PARTITION BY host ORDER BY moment_ns DESC) = 1",
        attempt=attempt,
    ).to_pylist()
    known = {str(row["host"]): row for row in rows if row["uncertainty_ns"] is not None}

    def column(name: str) -> FloatArray:
        return np.array([known[host][name] or 0.0 if host in known else np.nan for host in hosts], float)

    own = {host: float(row["uncertainty_ns"]) for host, row in known.items()}
    both = np.array([own[host] + _largest_other(own, host) if host in own else np.nan for host in hosts], float)
    return RankClocks(column("offset_ns"), column("moment_ns"), column("drift_ppb"), both)


def _largest_other(uncertainty: Mapping[str, float], host: str) -> float:
    """Largest uncertainty of the other hosts whose clocks are known; NaN if there are none."""
    two = sorted(uncertainty, key=lambda name: -uncertainty[name])[:2]
    return next((uncertainty[name] for name in two if name != host), float("nan"))
