"""Hangs of a simulated job of 32 ranks: each kind is named with its ranks, or it is said that nothing tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.scoring.trials import COSTS
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.session import Recording
from megascope.trainer.simulator.writing import simulate
from megascope.viz3d.hang import diagnose
from megascope.viz3d.verdict import HangVerdict, State

SPANS = Recording(windows=False, span_ranks=None, heartbeat_s=0, clock_offsets=True)


def verdict_of(root: Path, fault: str) -> tuple[HangVerdict, tuple[int, ...]]:
    """The verdict on a job with a fault, and the ranks that carry it."""
    parsed = parse_fault(fault)
    first = max(parsed.first_step - 4, 0)
    job = SimulatedJob(
        layout={"pp": 2, "dp": 4, "tp": 4}, steps=4, first_step=first, costs=COSTS, noise=load_noise("builtin")
    )
    simulate(job, root / "store", SPANS, faults=[parsed])
    with Store(root / "store") as store:
        attempt = store.attempt()
        truth = store.query("SELECT ranks FROM faults", attempt=attempt)["ranks"][0].as_py()
        return diagnose(store, attempt), tuple(sorted(truth))


@pytest.mark.parametrize(
    "fault",
    [
        "device-stuck:rank=5:step=9:segment=tp_all_gather",
        "host-stuck:rank=5:step=9:segment=forward",
        "mismatch:rank=5:step=9:segment=tp_reduce_scatter",
        "diverged:rank=5:step=9",
        "missing-call:rank=5:step=9:segment=tp_all_gather",
        "iteration-desync:rank=5:step=9",
        "order-inversion:rank=5:step=9",
        "init:rank=5:step=0",
        "init:rank=5:step=0:segment=setup",
    ],
)
def test_the_kind_and_the_ranks_are_named(tmp_path: Path, fault: str) -> None:
    verdict, truth = verdict_of(tmp_path, fault)
    assert verdict.verdict == State.HANG
    assert [(one.kind, one.ranks) for one in verdict.culprits] == [(fault.partition(":")[0], truth)]
    assert verdict.culprits[0].evidence


def test_links_are_suspected_as_one_group_and_nobody_is_accused(tmp_path: Path) -> None:
    verdict, truth = verdict_of(tmp_path, "network:rank=5:step=9:segment=tp_all_gather")
    assert verdict.verdict == State.INCONCLUSIVE
    assert [(one.kind, one.ranks) for one in verdict.culprits] == [("network", truth)]
    assert "suspected" in verdict.sentence()
    verdict, truth = verdict_of(tmp_path / "library", "library:rank=5:step=9:segment=tp_all_gather")
    assert verdict.verdict == State.INCONCLUSIVE
    assert [(one.kind, one.ranks) for one in verdict.culprits] == [("library", truth)]
