"""Early warnings: a rank against its own past, before it can be accused; nobody where nothing changed."""

from __future__ import annotations

import json

import pytest

from megascope.heatmap.stragglers import judge
from megascope.heatmap.verdict import EarlyWarning, Outcome, StragglerVerdict, to_json
from megascope.profiler.topology import Topology
from support.noisy_job import Job, Noise, Slow, observations
from support.windowed import windowed

MESH = Topology.of(pp=2, dp=8, tp=2)
CALM = Noise(span_sigma=0.03, tail_share=0.0, drift_sigma=0.005, bias=0.02)


@pytest.mark.parametrize(("factor", "first", "near"), [(1.04, 80, 6), (1.5, 112, 1), (1.15, 111, 2)])
def test_a_rank_that_has_just_become_slower_is_warned_of_and_not_accused(factor: float, first: int, near: int) -> None:
    job = Job(mesh=MESH, noise=CALM, slow=[Slow(9, "backward", factor, first)])
    judged = judge(observations(job, 1))
    assert judged.findings == ()
    [warning] = judged.warnings
    assert (warning.rank, warning.segment) == (9, "backward")
    assert abs(warning.since_step - first) <= near
    assert warning.ratio_to_own_baseline == pytest.approx(factor, abs=0.02)


def test_windows_show_it_too() -> None:
    job = Job(mesh=MESH, steps=200, chunks=1, noise=CALM, slow=[Slow(9, "backward", 1.04, 170)])
    judged = judge(windowed(observations(job, 1)))
    assert [(one.rank, one.since_step) for one in judged.warnings] == [(9, 170)]


def test_who_is_accused_is_not_warned_of() -> None:
    judged = judge(observations(Job(mesh=MESH, noise=CALM, slow=[Slow(9, "backward", 1.3, 70)]), 1))
    assert [one.rank for one in judged.findings] == [9]
    assert judged.warnings == ()


def test_what_all_peers_have_warns_of_nobody() -> None:
    slow = [Slow(rank, "backward", 1.3, 80) for rank in range(16)]
    assert judge(observations(Job(mesh=MESH, noise=CALM, slow=slow), 1)).warnings == ()


@pytest.mark.parametrize("noise", [CALM, Noise(), Noise(drift_sigma=0.25, drift_memory=0.8)])
def test_healthy_jobs_warn_of_nobody(noise: Noise) -> None:
    judged = [judge(observations(Job(mesh=MESH, noise=noise), seed)) for seed in range(20)]
    assert [one.warnings for one in judged if one.warnings] == []


def test_a_slow_start_is_no_warning() -> None:
    """A rank that was slow at first and is as the others now has become quicker."""
    judged = judge(observations(Job(mesh=MESH, noise=CALM, slow=[Slow(9, "backward", 1.04, 0, 60)]), 1))
    assert judged.warnings == ()


def test_the_json_has_them_beside_the_culprits() -> None:
    warning = EarlyWarning(9, "backward", 80, 1.04)
    verdict = StragglerVerdict("run", 0, None, Outcome.HEALTHY, warnings=(warning,))
    assert json.loads(json.dumps(to_json(verdict)))["warnings"] == [
        {"rank": 9, "segment": "backward", "since_step": 80, "ratio_to_own_baseline": 1.04}
    ]
    assert warning.sentence().startswith("rank 9 takes x1.04 of what it took before in backward, since about step 80")
