"""A small simulated job for tests of what the simulator writes, and its rollups and spans as comparable sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megascope.collectors.reading.store import Attempt, Store
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.writing import Recording, simulate

MS = 1e6
COSTS = Costs(
    forward_ns=(8 * MS,), backward_ns=(16 * MS,), tp_pairs=2, tp_ns=2e5, tp_bytes=1000, p2p_network_ns=3e5,
    p2p_host_ns=1e5, p2p_bytes=500, reduce_scatter_ns=3 * MS, all_gather_ns=2 * MS, norm_ns=1e5, optimizer_ns=MS,
    data_ns=MS, gc_ns=2 * MS, gc_every_steps=7, checkpoint_ns=5 * MS, checkpoint_every_steps=10, tokens_per_step=4096,
    flops_per_step=1e12, peak_flops=1e12,
)  # fmt: skip
ALL = Recording(span_ranks=None)


def job_of(**more: Any) -> SimulatedJob:
    settings: dict[str, Any] = {
        "layout": {"pp": 2, "dp": 2, "tp": 2}, "steps": 25, "microbatches": 4, "chunks": 2, "costs": COSTS,
        "gpus_per_host": 2, "noise": load_noise("builtin"), "seed": 5,
    }  # fmt: skip
    return SimulatedJob(**{**settings, **more})


def open_simulated(folder: Path, job: SimulatedJob, *arguments: Any, **more: Any) -> tuple[Store, Attempt]:
    simulate(job, folder, *arguments, **more)
    store = Store(folder)
    return store, store.attempt()


WINDOWS = """
    SELECT rank, segment, window_steps, first_step, sum(duration_count) AS count, sum(duration_sum_ns) AS total,
        min(duration_min_ns) AS least, max(duration_max_ns) AS largest, sum(self_count) AS self_count,
        sum(self_sum_ns) AS self_total, min(self_min_ns) AS self_least, sum(exposed_count) AS waits,
        sum(exposed_sum_ns) AS waited, sum(list_sum(duration_bin_counts)) AS binned,
        sum(list_sum(self_bin_counts)) AS self_binned
    FROM rank_windows GROUP BY ALL"""

EVENTS = """
    SELECT rank, segment, {length} AS window_steps, step // {length} * {length} AS first_step, count(*) AS count,
        sum(duration_ns) AS total, min(duration_ns) AS least, max(duration_ns) AS largest, count(self_ns) AS self_count,
        sum(self_ns) AS self_total, min(self_ns) AS self_least, count(exposed_ns) AS waits,
        coalesce(sum(exposed_ns), 0) AS waited, count(*) AS binned, count(*) AS self_binned
    FROM events GROUP BY ALL"""
