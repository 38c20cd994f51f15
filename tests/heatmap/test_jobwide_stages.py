"""A stage with more work is reported as that; slow machines in it are not, and what cannot be told is not said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.jobwide.stages import find_uneven_stages
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Findings, Outcome, describe
from megascope.scoring.runs import SPANS
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.writing import simulate
from support.faulty_job import check_evidence, faulty_job


def _findings(store: Store) -> Findings:
    attempt = store.attempt()
    return find_uneven_stages(store, attempt, observe(store, attempt))


@pytest.mark.parametrize("rollups", [False, True], ids=["spans", "rollups"])
def test_an_uneven_stage_is_named_and_no_rank(tmp_path: Path, rollups: bool) -> None:
    with faulty_job(tmp_path / "s", "uneven-stages:stage=1:factor=1.2:steps=20-", rollups=rollups) as store:
        verdict = find_stragglers(store, store.attempt())
        assert [one.cause for one in verdict.culprits] == [Cause.UNEVEN_STAGES]
        stage = verdict.culprits[0]
        assert (stage.kind, stage.stage, stage.ranks, stage.hosts) == (CulpritKind.STAGE, 1, (), ())
        assert stage.ratio == pytest.approx(1.2, abs=0.02)
        assert stage.steps == (20, 59)
        # Of 40 steps of 58 (of 50 in rollups) (m - 1) / m of a tenth of the work is lost.
        assert stage.lost_share == pytest.approx(0.038, abs=0.01)
        check_evidence(store, stage.evidence)
        assert "Stage 1 has more work than the other stages" in describe(stage)


@pytest.mark.parametrize(
    ("stages", "microbatches", "stage", "factor"), [(4, 8, 3, 1.5), (4, 8, 0, 1.5), (4, 8, 1, 1.5), (2, 4, 1, 1.2)]
)
def test_the_lost_share_is_what_an_even_cut_would_save(
    tmp_path: Path, stages: int, microbatches: int, stage: int, factor: float
) -> None:
    job = SimulatedJob(layout={"pp": stages, "dp": 2}, steps=20, microbatches=microbatches, costs=Costs())
    simulate(job, tmp_path / "s", SPANS, faults=[parse_fault(f"uneven-stages:stage={stage}:factor={factor}")])
    with Store(tmp_path / "s") as store:
        (found,) = _findings(store).culprits
        step_ms = float(np.median(store.query("SELECT duration_ns FROM steps")["duration_ns"].to_numpy())) / 1e6
        even_ms = (microbatches + stages - 1) * 30 * (1 + (factor - 1) / stages)
        assert found.lost_share == pytest.approx((step_ms - even_ms) / step_ms, abs=1e-4)


@pytest.mark.parametrize("fault", ["slow-gpu:rank=3:factor=1.5", "slow-host:host=0:factor=1.4"])
def test_slow_machines_are_no_uneven_stage(tmp_path: Path, fault: str) -> None:
    with faulty_job(tmp_path / "s", fault) as store:
        assert _findings(store) == Findings()


def test_a_healthy_job_has_none(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s") as store:
        assert _findings(store) == Findings()


def test_a_stage_on_one_host_of_several_is_not_judged(tmp_path: Path) -> None:
    layout = {"pp": 2, "dp": 4}
    with faulty_job(tmp_path / "s", "slow-host:host=1:factor=1.3", layout=layout) as store:
        found = _findings(store)
        assert found.culprits == ()
        assert [note.signal for note in found.blocking] == ["uneven-stages"]
        assert "stage 1 takes x1.30" in found.blocking[0].reason
        assert "node0001 alone" in found.blocking[0].reason
        assert find_stragglers(store, store.attempt()).verdict == Outcome.INSUFFICIENT


def test_a_stretch_that_fills_one_window_and_parts_of_two_is_found_in_rollups(tmp_path: Path) -> None:
    fault = "uneven-stages:stage=1:factor=1.15:steps=57-72"
    with faulty_job(tmp_path / "s", fault, rollups=True, layout={"pp": 4, "dp": 8}, steps=100) as store:
        (found,) = _findings(store).culprits
        assert (found.stage, found.steps) == (1, (60, 69))


@pytest.mark.parametrize("steps", ["20-26", "5-10"])
def test_a_passing_disturbance_of_a_stage_is_not_its_work(tmp_path: Path, steps: str) -> None:
    with faulty_job(tmp_path / "s", f"uneven-stages:stage=0:factor=1.3:steps={steps}") as store:
        assert _findings(store).culprits == ()


def test_on_a_single_host_the_stage_is_what_differs(tmp_path: Path) -> None:
    layout = {"pp": 2, "dp": 4}
    with faulty_job(tmp_path / "s", "uneven-stages:stage=0:factor=1.3", layout=layout, gpus_per_host=8) as store:
        assert [one.stage for one in _findings(store).culprits] == [0]


def test_a_stage_of_one_rank_is_not_judged(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s", "slow-gpu:rank=2:factor=1.4", layout={"pp": 4, "dp": 1}) as store:
        found = _findings(store)
        assert found.culprits == ()
        assert "a single rank" in found.blocking[0].reason
