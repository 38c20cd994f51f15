"""A run of two attempts, of which the second repeats steps of the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.writing import simulate
from support.small_job import ALL, job_of

LAYOUT = {"pp": 2, "dp": 4, "tp": 2}


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 6 is slow from step 15 on, in the first attempt; the second one repeats steps 0 to 9."""
    folder = tmp_path_factory.mktemp("batch")
    slow = [parse_fault("slow-gpu:rank=6:factor=1.4:steps=15-")]
    simulate(job_of(layout=LAYOUT, chunks=1, steps=30, run="weeks", seed=1), folder, recording=ALL, faults=slow)
    again = job_of(layout=LAYOUT, chunks=1, steps=10, run="weeks", attempt=1, seed=2, start_ns=1_900_000_000 * 10**9)
    simulate(again, folder, recording=ALL)
    return folder
