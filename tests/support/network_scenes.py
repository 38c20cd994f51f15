"""Small simulated jobs on several hosts, and channels written by hand, for tests of links and arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from megascope.collectors.reading.store import Store
from megascope.heatmap.network.channels import Channels
from megascope.heatmap.network.find import find_network
from megascope.heatmap.observations import observe
from megascope.heatmap.peers import FloatArray, Placement
from megascope.heatmap.verdict import Findings
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import MeasuredNoise
from megascope.trainer.simulator.session import Recording
from megascope.trainer.simulator.writing import simulate

SPANS = Recording(windows=False, span_ranks=None, heartbeat_s=0)
ROLLUPS = Recording(windows=True, span_ranks=(), heartbeat_s=0)

COSTS = Costs(
    forward_ns=(10e6,), backward_ns=(20e6,), tp_pairs=1, tp_ns=0.5e6, tp_bytes=2**25, p2p_network_ns=0.7e6,
    p2p_host_ns=0.2e6, p2p_bytes=2**24, reduce_scatter_ns=15e6, reduce_scatter_bytes=2**29, all_gather_ns=8e6,
    all_gather_bytes=2**28, norm_ns=0.2e6, optimizer_ns=5e6, data_ns=3e6,
)  # fmt: skip

LAYOUT = {"pp": 2, "dp": 8, "tp": 2}
"""On hosts of four: two replicas of a stage each, so that every rank has a pair and a group over the network."""


def simulated(
    root: Path,
    fault: str = "",
    *,
    recording: Recording = SPANS,
    layout: Mapping[str, int] = LAYOUT,
    steps: int = 60,
    gpus_per_host: int = 4,
    seed: int = 11,
) -> Store:
    """The store of a small job with measured noise and unaligned clocks, and at most one fault."""
    job = SimulatedJob(
        layout=layout, steps=steps, microbatches=4, costs=COSTS, gpus_per_host=gpus_per_host, seed=seed,
        skew_ms=20.0, drift_ppm=2.0, noise=MeasuredNoise(),
    )  # fmt: skip
    simulate(job, root, recording, faults=[parse_fault(fault)] if fault else [])
    return Store(root)


def network_of(store: Store) -> Findings:
    """What the network analysis alone finds in a store's newest attempt."""
    attempt = store.attempt()
    return find_network(store, attempt, observe(store, attempt))


def channels_of(
    routes: Sequence[tuple[str, Sequence[int]]], factors: Mapping[int, float], *, steps: int = 40, seed: int = 0
) -> Channels:
    """Channels by (segment, ranks): 10 ms with 5 % of noise, those in ``factors`` longer from the middle on."""
    names = tuple(dict.fromkeys(name for name, _ in routes))
    segment = np.array([names.index(name) for name, _ in routes])
    transfer: FloatArray = 10.0 * np.random.default_rng(seed).lognormal(0, 0.05, (len(routes), steps))
    for row, factor in factors.items():
        transfer[row, steps // 2 :] *= factor
    sizes = np.array([len(ranks) for _, ranks in routes])
    nobody = np.full(len(routes), -1)
    members = np.concatenate([np.asarray(ranks, np.int64) for _, ranks in routes])
    _, kind = np.unique(np.stack([segment, sizes]), axis=1, return_inverse=True)
    return Channels(
        names, segment, nobody, nobody, kind.reshape(-1), np.ones(len(routes)),
        np.repeat(np.arange(len(routes)), sizes), members, np.arange(steps), 1, transfer,
    )  # fmt: skip


def placed(hosts: Sequence[str]) -> Placement:
    """Ranks on the given hosts, without coordinates."""
    return Placement(np.arange(len(hosts)), tuple(hosts), {})
