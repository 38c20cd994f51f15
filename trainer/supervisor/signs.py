"""What detectors look at and what they say: steps, heartbeats and devices of a job, and a sign of trouble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Detector(StrEnum):
    """The detectors, by name; their thresholds are in `thresholds.THRESHOLDS`."""

    MISSED_HEARTBEAT = "missed-heartbeat"
    SLOW_RANK = "slow-rank"
    OFF_BASELINE = "off-baseline"
    THROUGHPUT = "throughput-decline"
    GRAD_NORM = "grad-norm"
    NOT_FINITE = "not-finite"
    DIVERGENCE = "loss-divergence"
    XID = "xid"
    ECC = "ecc"
    STORAGE = "storage-stall"
    NETWORK = "slow-network"
    STRAGGLER = "straggler"


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of trouble: the value that crossed the threshold, and whom it was seen on (nobody: the whole job)."""

    detector: Detector
    sentence: str
    value: float
    threshold: float
    step: int | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the job. ``duration_ns``: median over ranks; ``by_rank_ns``: those of the slowest ranks.

    What is missing is None. ``first_bad_rank``: the first rank whose loss or gradient norm was not finite.
    """

    step: int
    duration_ns: float | None
    start_ns: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens: int | None = None
    by_rank_ns: Mapping[int, float] = field(default_factory=dict)
    first_bad_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """The newest heartbeat of a rank. ``storage``: name and age (s) of an operation on storage that is in flight.

    ``behind_ns``: how far the clock of its host is behind that of whoever compares; the same for all of a host.
    """

    rank: int
    host: str
    moment_ns: int
    storage: str | None = None
    storage_age_s: float = 0.0
    behind_ns: int = 0

    @property
    def aligned_ns(self) -> int:
        """Its moment by a clock that is the same for all hosts."""
        return self.moment_ns + self.behind_ns


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One reading of a counter of a device (or of a host: ``device`` None)."""

    host: str
    device: str | None
    moment_ns: int
    metric: str
    value: float
