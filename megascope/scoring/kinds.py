"""The kinds of trials of `megascope score`, the two seed sets, and what the faults of each kind say by set."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ..trainer.simulator.faults import HANG_KINDS, HELD_UP_KINDS, SLOW_KINDS, FaultKind

HEALTHY = "healthy"
"""The kind of trials without a fault."""

DEAD_HOST, LOST_SEND, JOB_DATA, GC_UNRECORDED = "dead-host", "lost-send", "job-data-stall", "gc-unrecorded"

VARIANTS: Mapping[str, FaultKind] = {
    DEAD_HOST: FaultKind.DEAD,
    LOST_SEND: FaultKind.MISSING_CALL,
    JOB_DATA: FaultKind.DATA_STALL,
    GC_UNRECORDED: FaultKind.GC_DRIFT,
}
"""Kinds of trials with a name of their own, whose faults are of another kind: a whole host dies, a send never comes,
all ranks that load wait for data, hosts pause for collections that nobody recorded."""

HANG_TRIALS = frozenset({FaultKind.LOST_HEARTBEATS, *HANG_KINDS, DEAD_HOST, LOST_SEND, *HELD_UP_KINDS})
"""Kinds whose jobs `hang` is asked about."""

KINDS = (
    HEALTHY,
    *SLOW_KINDS,
    JOB_DATA,
    GC_UNRECORDED,
    FaultKind.LOST_HEARTBEATS,
    *HANG_KINDS,
    DEAD_HOST,
    LOST_SEND,
    *HELD_UP_KINDS,
)

FROM_SPANS = frozenset({GC_UNRECORDED})
"""Kinds that take spans to be seen."""


class SeedSet(StrEnum):
    """Two sets of seeds and magnitudes that have nothing in common: thresholds are tuned on one alone."""

    TUNE = "tune"
    REPORT = "report"


FIRST_SEED = {SeedSet.TUNE: 1_000, SeedSet.REPORT: 5_000_000}

MAGNITUDES: Mapping[str, Mapping[SeedSet, tuple[str, ...]]] = {
    FaultKind.SLOW_GPU: {
        SeedSet.TUNE: ("factor=1.2", "factor=1.6", "factor=1.2:segment=backward", "factor=1.12"),
        SeedSet.REPORT: ("factor=1.15", "factor=1.3", "factor=1.3:segment=forward", "factor=2", "factor=1.1"),
    },
    FaultKind.THROTTLING: {
        SeedSet.TUNE: (
            "factor=1.4:period=10",
            "factor=1.6:period=6:duty=0.4",
            "factor=1.7:period=16:duty=0.3",
            "factor=1.5:period=40",
            "factor=1.4:period=30:duty=0.3",
            "factor=1.6:period=60:duty=0.2",
        ),
        SeedSet.REPORT: ("factor=1.3:period=12", "factor=1.5:period=8", "factor=1.8:period=15:duty=0.3"),
    },
    FaultKind.SLOW_HOST: {
        SeedSet.TUNE: ("factor=1.2", "factor=1.5"),
        SeedSet.REPORT: ("factor=1.15", "factor=1.3", "factor=1.7"),
    },
    FaultKind.DEGRADED_NIC: {
        SeedSet.TUNE: ("bandwidth=0.15", "bandwidth=0.3"),
        SeedSet.REPORT: ("bandwidth=0.1", "bandwidth=0.2"),
    },
    FaultKind.GC_DRIFT: {
        SeedSet.TUNE: ("growth_ms=150:every=4", "growth_ms=300:every=6"),
        SeedSet.REPORT: ("growth_ms=100:every=5", "growth_ms=200:every=5"),
    },
    GC_UNRECORDED: {
        SeedSet.TUNE: ("growth_ms=150:every=4", "growth_ms=300:every=6"),
        SeedSet.REPORT: ("growth_ms=100:every=5", "growth_ms=200:every=5"),
    },
    FaultKind.DATA_STALL: {
        SeedSet.TUNE: ("delay_ms=60", "delay_ms=400:every=3"),
        SeedSet.REPORT: ("delay_ms=40", "delay_ms=100:every=2", "delay_ms=300:every=4"),
    },
    JOB_DATA: {
        SeedSet.TUNE: ("delay_ms=200", "delay_ms=600:every=3"),
        SeedSet.REPORT: ("delay_ms=250", "delay_ms=900:every=4"),
    },
    FaultKind.STORAGE_STALL: {
        SeedSet.TUNE: ("delay_ms=400:every=3", "delay_ms=1500:every=5"),
        SeedSet.REPORT: ("delay_ms=300:every=3", "delay_ms=1000:every=5"),
    },
    FaultKind.UNEVEN_SEQUENCES: {
        SeedSet.TUNE: ("spread=0.2", "spread=0.4"),
        SeedSet.REPORT: ("spread=0.15", "spread=0.3"),
    },
    FaultKind.UNEVEN_STAGES: {
        SeedSet.TUNE: ("factor=1.2", "factor=1.5"),
        SeedSet.REPORT: ("factor=1.15", "factor=1.3"),
    },
    FaultKind.HOST_STUCK: {
        SeedSet.TUNE: (
            "segment=forward",
            "segment=optimizer",
            "segment=data",
            "segment=backward:state=running",
            "segment=forward:state=stopped",
            "segment=checkpoint:state=sleeping",
        ),
        SeedSet.REPORT: (
            "segment=backward",
            "segment=checkpoint",
            "segment=forward:microbatch=0",
            "segment=data:state=sleeping",
            "segment=forward:state=running",
            "segment=backward:state=stopped",
            "segment=optimizer:state=running",
        ),
    },
    DEAD_HOST: {
        SeedSet.TUNE: ("segment=forward",),
        SeedSet.REPORT: ("segment=backward", "segment=forward:microbatch=5"),
    },
    LOST_SEND: {
        SeedSet.TUNE: ("segment=send_forward", "segment=send_backward:microbatch=1"),
        SeedSet.REPORT: ("segment=send_backward", "segment=send_forward:microbatch=2"),
    },
    FaultKind.CRAWLING: {
        SeedSet.TUNE: ("factor=20", "factor=40"),
        SeedSet.REPORT: ("factor=15", "factor=30", "factor=60"),
    },
    FaultKind.LONG_PHASE: {
        SeedSet.TUNE: (
            "segment=checkpoint:delay_ms=20000",
            "segment=evaluation:delay_ms=25000",
            "segment=compile:delay_ms=20000",
        ),
        SeedSet.REPORT: (
            "segment=checkpoint:delay_ms=25000",
            "segment=evaluation:delay_ms=15000",
            "segment=compile:delay_ms=25000",
        ),
    },
    FaultKind.DEAD: {SeedSet.TUNE: ("segment=forward",), SeedSet.REPORT: ("segment=backward", "segment=optimizer")},
    FaultKind.EXCEPTION: {SeedSet.TUNE: ("segment=backward",), SeedSet.REPORT: ("segment=forward",)},
    FaultKind.DEVICE_STUCK: {
        SeedSet.TUNE: ("segment=tp_all_gather",),
        SeedSet.REPORT: ("segment=tp_reduce_scatter", "segment=dp_reduce_scatter"),
    },
    FaultKind.MISMATCH: {
        SeedSet.TUNE: ("segment=tp_reduce_scatter", "segment=tp_all_gather:differs=size"),
        SeedSet.REPORT: (
            "segment=dp_reduce_scatter",
            "segment=tp_all_gather",
            "segment=tp_reduce_scatter:differs=size",
            "segment=dp_reduce_scatter:differs=size",
        ),
    },
    FaultKind.MISSING_CALL: {
        SeedSet.TUNE: ("segment=tp_all_gather",),
        SeedSet.REPORT: ("segment=dp_reduce_scatter", "segment=tp_reduce_scatter", "segment=dp_all_gather"),
    },
    FaultKind.NETWORK: {
        SeedSet.TUNE: ("segment=dp_all_gather",),
        SeedSet.REPORT: ("segment=dp_reduce_scatter", "segment=tp_all_gather"),
    },
    FaultKind.LIBRARY: {
        SeedSet.TUNE: ("segment=dp_reduce_scatter",),
        SeedSet.REPORT: ("segment=dp_all_gather", "segment=tp_all_gather"),
    },
    FaultKind.INIT: {SeedSet.TUNE: ("",), SeedSet.REPORT: ("", "segment=setup")},
}
"""What else a fault of a kind says, by seed set; kinds that are left out say nothing else."""

FLEET_MAGNITUDES: Mapping[str, Mapping[SeedSet, tuple[str, ...]]] = {
    FaultKind.SLOW_GPU: {SeedSet.TUNE: ("factor=1.09", "factor=1.12"), SeedSet.REPORT: ("factor=1.1",)},
}
"""The same of jobs of `FLEET_RANKS` or more: a fleet has several slow devices at once, each hardly slower."""
