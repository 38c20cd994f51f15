"""The clocks of simulated hosts: each is off by an offset and drifts, and records its own time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .effects import FloatArray, IntArray
from .job import SimulatedJob

_PURPOSE = 77


@dataclass(frozen=True, slots=True)
class HostClocks:
    """A host shows true + skew_ns + drift_ppb * 1e-9 * (true - start_ns). Arrays [hosts]; the first host is right."""

    skew_ns: IntArray
    drift_ppb: FloatArray
    start_ns: int

    @classmethod
    def of(cls, job: SimulatedJob) -> HostClocks:
        """Clocks that are anywhere within the job's bounds, by its seed."""
        random = np.random.Generator(np.random.SFC64([job.seed, 0, _PURPOSE]))
        parts = random.uniform(-1.0, 1.0, (2, job.grid.hosts))
        parts[:, 0] = 0.0
        return cls(np.rint(parts[0] * job.skew_ms * 1e6).astype(np.int64), parts[1] * job.drift_ppm * 1e3, job.start_ns)

    @property
    def are_right(self) -> bool:
        """Whether all show the true time."""
        return not (self.skew_ns.any() or self.drift_ppb.any())

    def recorded_ns(self, true_ns: IntArray, host: IntArray) -> IntArray:
        """What the hosts' clocks show at true moments; both arrays are broadcast to each other."""
        if self.are_right:
            return true_ns
        drifted = np.rint(self.drift_ppb[host] * 1e-9 * (true_ns - self.start_ns)).astype(np.int64)
        moments: IntArray = true_ns + self.skew_ns[host] + drifted
        return moments

    def truth(self, job: SimulatedJob) -> dict[str, Any]:
        """What an alignment is scored against: each host's skew (ns) and drift (parts per billion)."""
        pairs = zip(self.skew_ns.tolist(), self.drift_ppb.tolist(), strict=True)
        return {job.host_name(host): [skew, round(drift, 3)] for host, (skew, drift) in enumerate(pairs)}
