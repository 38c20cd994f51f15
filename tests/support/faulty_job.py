"""Stores of simulated jobs of a few ranks, with chosen faults, as spans or as rollups alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from megascope.collectors.reading.store import Store
from megascope.scoring.runs import ROLLUPS, SPANS
from megascope.scoring.trials import COSTS
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import MeasuredNoise
from megascope.trainer.simulator.writing import simulate

LAYOUT = {"pp": 2, "dp": 8}
"""16 ranks, on four hosts of four: two for each stage."""


def faulty_job(
    root: Path,
    *faults: str,
    rollups: bool = False,
    layout: Mapping[str, int] | None = None,
    steps: int = 60,
    gpus_per_host: int = 4,
    costs: Costs = COSTS,
    seed: int = 1,
) -> Store:
    """Simulate a job with measured noise and open its store."""
    job = SimulatedJob(
        layout=layout or LAYOUT, steps=steps, microbatches=8, costs=costs, gpus_per_host=gpus_per_host, seed=seed,
        noise=MeasuredNoise(),
    )  # fmt: skip
    simulate(job, root, ROLLUPS if rollups else SPANS, faults=[parse_fault(one) for one in faults])
    return Store(root)


def with_checkpoints(checkpoint_ms: float, every_steps: int) -> Costs:
    """The usual costs with other checkpoints."""
    return replace(COSTS, checkpoint_ns=checkpoint_ms * 1e6, checkpoint_every_steps=every_steps)


def check_evidence(store: Store, evidence: Sequence[object]) -> None:
    """Fail unless each number can be asked for again, and stands in its statement."""
    assert evidence
    for one in evidence:
        value, sql, statement = (getattr(one, name) for name in ("value", "sql", "statement"))
        again = float(store.query(sql).column(0)[0].as_py())
        assert abs(again - value) <= 1e-6 * max(abs(value), 1.0)
        assert any(f"{value:{how}}" in statement for how in (".2f", ".1f", ".0%"))
