"""What checks measure and what becomes of it: metrics, measurements, failures and the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ...collectors.verdicts import VERDICT_SCHEMA, Abstention


class Status(StrEnum):
    """How a check ended on a rank."""

    OK = "ok"
    FAILED = "failed"
    HUNG = "hung"
    MISSING = "missing"


class Outcome(StrEnum):
    """What the checks say together."""

    FINDINGS = "findings"
    HEALTHY = "healthy"
    INSUFFICIENT = "insufficient-evidence"


class Kind(StrEnum):
    """What is accused."""

    RANK = "rank"
    HOST = "host"
    LINK = "link"
    GROUP = "group"


class Reason(StrEnum):
    """Why it is accused."""

    OUTLIER = "outlier"
    FLOOR = "floor"
    LIMIT = "limit"
    ERRORS = "port-errors"
    FAILED = "failed"
    HUNG = "hung"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a check.

    ``margin_cpu`` and ``margin_cuda``: the share of the peers' median by which a value must be worse before it is
    accused, however close together the peers are; processes on a CPU host share cores, so that theirs is wide.
    ``limit``: what the value may be at most, whatever the peers' are; None for none. ``is_of_host``: it tells of the
    host that a rank is on, rather than of the rank.
    """

    name: str
    unit: str
    higher_is_better: bool = True
    margin_cpu: float = 0.5
    margin_cuda: float = 0.1
    limit: float | None = None
    is_compared: bool = True
    is_of_host: bool = False

    def margin(self, device: str) -> float:
        """The margin on ``cpu`` or ``cuda``."""
        return self.margin_cuda if device == "cuda" else self.margin_cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A value of one metric. ``ranks``: whom it is of; ``peers``: values with the same text are compared.

    ``value`` is in the metric's unit; ``uncertainty`` may be subtracted from it before a limit is held against it.
    """

    check: str
    metric: str
    unit: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    peers: str
    value: float
    uncertainty: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A check that gave no value for some ranks: who is to blame for that, and what they said."""

    check: str
    status: Status
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    message: str
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """An accusation. ``value`` and ``peers`` are in ``unit``; None where nothing could be measured."""

    kind: Kind
    reason: Reason
    check: str
    metric: str | None
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    value: float | None
    peers: float | None
    unit: str | None
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A metric over all that were compared with each other; None where nothing was measured."""

    check: str
    metric: str
    unit: str
    peers: str
    count: int
    median: float | None
    lowest: float | None
    highest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank: where it runs, and on what (``device``: cpu or cuda)."""

    rank: int
    host: str
    local_rank: int
    device: str = "cpu"
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a preflight, as it is stored and printed; moments are UTC ns, durations s."""

    schema: int = VERDICT_SCHEMA
    verdict: Outcome
    started_ns: int
    seconds: float
    quick: bool
    world_size: int
    hosts: tuple[str, ...]
    layout: dict[str, int]
    device: str
    culprits: tuple[Culprit, ...]
    abstained: tuple[Abstention, ...]
    skipped: tuple[Abstention, ...]
    notes: tuple[str, ...]
    summaries: tuple[Summary, ...]
    measurements: tuple[Measurement, ...]
    seconds_by_check: dict[str, float] = field(default_factory=dict)
