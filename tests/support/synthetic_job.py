"""What a synthetic job is: its mesh, its steps, its faults, the segments that it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megascope.profiler.topology import Topology, segment_id

MS = 1_000_000
START_NS = 1_790_000_000 * 10**9
SEGMENTS = {
    "data": ("data", None),
    "forward": ("compute", None),
    "backward": ("compute", None),
    "optimizer": ("optimizer", None),
    "tp_all_gather": ("collective", "tp"),
    "tp_reduce_scatter": ("collective", "tp"),
    "dp_reduce_scatter": ("collective", "dp"),
    "dp_all_gather": ("collective", "dp"),
    "send_forward": ("p2p", "pp"),
    "recv_forward": ("p2p", "pp"),
    "send_backward": ("p2p", "pp"),
    "recv_backward": ("p2p", "pp"),
}
IDS = {name: segment_id(name, kind, axis) for name, (kind, axis) in SEGMENTS.items()}


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that takes ``factor`` times as long in ``segment`` from ``first_step`` on."""

    rank: int
    factor: float = 1.5
    first_step: int = 0
    segment: str = "forward"


@dataclass(frozen=True, slots=True)
class SyntheticJob:
    """What to generate. ``missing``: (rank, step) pairs without any span; ``stuck``: the rank that hangs at the end.

    Steps before ``first_step`` are left out: an earlier part of the same job has written them.
    """

    layout: Mapping[str, int] = field(default_factory=lambda: {"pp": 2, "dp": 2, "tp": 2})
    steps: int = 20
    first_step: int = 0
    microbatches: int = 4
    slow: Slow | None = None
    missing: Sequence[tuple[int, int]] = ()
    stuck: int | None = None
    run: str = "synthetic"
    attempt: int = 0
    ranks_per_host: int = 8
    noise: float = 0.03
    seed: int = 0
    first_ns: int = START_NS

    @property
    def topology(self) -> Topology:
        """The mesh."""
        return Topology.from_mapping(self.layout)

    @property
    def slot_ns(self) -> int:
        """Length of one slot of the grid: room for the slowest."""
        return 12 * MS

    @property
    def step_ns(self) -> int:
        """Length of a step."""
        slots = 2 * (self.microbatches + self.topology.size("pp") - 1)
        return slots * self.slot_ns + 20 * MS
