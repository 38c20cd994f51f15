"""Hundreds of imagined jobs with real kinds of noise: healthy ones name nobody, stragglers are found."""

from __future__ import annotations

import time

import pytest

from megascope.heatmap.hosts import by_host
from megascope.heatmap.judge import Finding
from megascope.heatmap.stragglers import judge
from megascope.heatmap.verdict import Outcome
from megascope.profiler.topology import Topology
from support.noisy_job import Job, Noise, Slow, observations

SMALL = Topology.of(pp=2, dp=2, tp=2)
LARGE = Topology.of(pp=4, dp=8, tp=2)
ROUGH = Noise(drift_sigma=0.25, drift_memory=0.8)
"""As eight processes on two cores: a rank may be a quarter slower for many steps without being ill."""


SPIKY = Noise(tail_share=0.06)


def findings(job: Job, trials: int, first_seed: int = 0) -> list[tuple[Finding, ...]]:
    return [judge(observations(job, first_seed + seed)).findings for seed in range(trials)]


@pytest.mark.parametrize(
    ("job", "trials"),
    [
        (Job(mesh=SMALL), 60),
        (Job(mesh=SMALL, noise=ROUGH), 60),
        (Job(mesh=SMALL, microbatches=1, chunks=1), 50),
        (Job(mesh=Topology.of(dp=2)), 60),
        (Job(mesh=Topology.of(ep=2, cp=4), steps=60), 100),
        (Job(mesh=LARGE), 24),
        (Job(mesh=Topology.of(dp=16), chunks=1, microbatches=4), 50),
        (Job(mesh=Topology.of(dp=16), noise=SPIKY, steps=300, chunks=1, microbatches=4), 20),
        (Job(mesh=LARGE, chunks=1, microbatches=4), 20),
        (Job(mesh=Topology.of(dp=64), chunks=1, microbatches=4), 20),
    ],
    ids=["small", "rough", "one-span", "pair", "other-axes", "large", "dp16", "spiky", "large-short", "dp64"],
)
def test_false_alarms_in_healthy_jobs(job: Job, trials: int) -> None:
    alarms = [one for one in findings(job, trials) if one]
    assert len(alarms) <= 0.01 * trials, alarms


@pytest.mark.parametrize(
    ("job", "trials"),
    [
        (Job(mesh=SMALL, slow=[Slow(5, "forward", 1.5, 20)]), 40),
        (Job(mesh=LARGE, slow=[Slow(37, "forward", 1.15)]), 24),
        (Job(mesh=Topology.of(dp=2), slow=[Slow(1, "backward", 1.5, 20)]), 40),
        (Job(mesh=Topology.of(ep=2, cp=4), slow=[Slow(3, "forward", 1.5, 30)]), 40),
    ],
    ids=["small", "large", "pair", "other-axes"],
)
def test_recall(job: Job, trials: int) -> None:
    truth = job.slow[0]
    found = findings(job, trials, first_seed=1000)
    right = [one for one in found if [(f.rank, f.segment) for f in one] == [(truth.rank, truth.segment)]]
    assert len(right) > 0.95 * trials
    ratios = [one[0].ratio for one in right]
    assert sum(ratios) / len(ratios) == pytest.approx(truth.factor, rel=0.06)
    firsts = sorted(one[0].steps[0] for one in right)
    assert abs(firsts[len(firsts) // 2] - truth.first) <= 2
    lasts = sorted(one[0].steps[1] for one in right)
    assert lasts[len(lasts) // 2] == job.steps - 1


def test_the_lost_share_is_the_excess_over_the_step() -> None:
    quiet = Noise(span_sigma=0.02, tail_share=0.0, drift_sigma=0.01, bias=0.0)
    found = findings(Job(mesh=SMALL, noise=quiet, slow=[Slow(5, "forward", 1.5, 60)]), 1, 7)[0]
    step_ms, excess_ms = 2 * 8 * (5.0 + 10.0) + 8.0, 0.5 * 2 * 8 * 5.0
    expected = 60 * excess_ms / (60 * step_ms + 60 * (step_ms + excess_ms))
    assert found[0].lost_share == pytest.approx(expected, rel=0.1)


def test_several_culprits_and_kinds_of_pattern() -> None:
    slow = [Slow(5, "forward", 1.5, 20), Slow(2, "backward", 1.4), Slow(0, "optimizer", 3.0, 10, every=4)]
    found = findings(Job(mesh=SMALL, slow=slow), 1)[0]
    assert {(one.rank, one.segment) for one in found} == {(5, "forward"), (2, "backward"), (0, "optimizer")}
    assert {one.rank: one.pattern for one in found}[0] == "intermittent"


def test_a_place_in_the_mesh_that_does_more_is_not_a_slow_rank() -> None:
    """All ranks with tp=0 load the data: they are compared among themselves, and one of them may still be slow."""
    does_more = [Slow(rank, "data", 8.0) for rank in (0, 2, 4, 6)]
    job = Job(mesh=SMALL, segments={"data": 2.0, "forward": 5.0, "backward": 10.0}, slow=does_more)
    judged = judge(observations(job, 1))
    assert judged.findings == ()
    assert any("tp=0" in one.reason for one in judged.abstained)
    slow = [*does_more, Slow(4, "data", 2.0)]
    job = Job(mesh=SMALL, segments={"data": 2.0, "forward": 5.0, "backward": 10.0}, slow=slow)
    assert [(one.rank, one.segment) for one in judge(observations(job, 1)).findings] == [(4, "data")]


HOSTS = [Topology.of(pp=2, dp=16, tp=2), Topology.of(pp=2, dp=8, tp=4)]


@pytest.mark.parametrize("mesh", HOSTS)
@pytest.mark.parametrize("host", [0, 3, 5])
def test_a_slow_host_that_holds_whole_groups_is_no_place_in_the_mesh(mesh: Topology, host: int) -> None:
    ranks = range(8 * host, 8 * host + 8)
    slow = [Slow(rank, segment, 1.3) for rank in ranks for segment in ("forward", "backward", "optimizer")]
    seen = observations(Job(mesh=mesh, slow=slow, ranks_per_host=8, chunks=1), 4)
    judged = judge(seen)
    assert [each for _, each in by_host(judged.findings, judged.slow, seen)] == [tuple(ranks)]


@pytest.mark.parametrize("mesh", HOSTS)
def test_more_work_of_one_replica_on_a_shared_host_is_its_place_in_the_mesh(mesh: Topology) -> None:
    first = [rank for rank in range(mesh.world_size) if mesh.coordinates(rank)["dp"] == 1]
    job = Job(mesh=mesh, slow=[Slow(rank, "forward", 1.5) for rank in first], ranks_per_host=8, chunks=1)
    judged = judge(observations(job, 4))
    assert judged.findings == ()
    assert any("dp=1" in one.reason for one in judged.abstained)


def test_noise_that_would_hide_a_straggler_is_not_called_healthy() -> None:
    job = Job(mesh=SMALL, steps=14, microbatches=1, chunks=1, noise=Noise(span_sigma=0.8, drift_sigma=0.5))
    outcomes = [judge(observations(job, seed)).outcome for seed in range(5)]
    assert outcomes == [Outcome.INSUFFICIENT] * 5


@pytest.mark.parametrize(("first", "last"), [(30, 40), (0, 9), (108, 119)])
def test_a_short_bad_stretch_is_no_straggler(first: int, last: int) -> None:
    """Another process took the core for ten steps: seen on every shared machine, and over by now (or soon)."""
    job = Job(mesh=SMALL, slow=[Slow(1, "forward", 3.0, first, last)])
    assert [one for one in findings(job, 10) if one] == []


@pytest.mark.parametrize("mesh", [Topology.of(dp=4), Topology.of(dp=16)])
def test_a_rank_that_is_slow_twice_comes_and_goes_and_loses_both(mesh: Topology) -> None:
    quiet = Noise(span_sigma=0.05, tail_share=0.0, drift_sigma=0.02, bias=0.01)
    once, again = (Slow(1, "backward", 1.3, first, first + 24) for first in (10, 80))
    [[one]] = findings(Job(mesh=mesh, noise=quiet, slow=[again]), 1)
    [[both]] = findings(Job(mesh=mesh, noise=quiet, slow=[once, again]), 1)
    assert (both.pattern, both.rank) == ("intermittent", 1)
    assert both.steps == pytest.approx((10, 104), abs=3)
    assert both.lost_share == pytest.approx(2 * one.lost_share, rel=0.2)


def test_what_costs_too_little_at_each_segment_is_named_for_both_together() -> None:
    quiet = Noise(span_sigma=0.05, tail_share=0.0, drift_sigma=0.02, bias=0.01)
    slow = [Slow(1, segment, 1.2, 20, 44) for segment in ("forward", "backward")]
    segments = {"forward": 10.0, "backward": 10.0, "optimizer": 8.0}
    job = Job(mesh=Topology.of(dp=4), noise=quiet, slow=slow, segments=segments)
    [found] = findings(job, 1)
    assert [one.rank for one in found] == [1]
    assert found[0].excess_share >= 0.03
    [alone] = findings(Job(mesh=job.mesh, noise=quiet, slow=slow[:1], segments=segments), 1)
    assert alone == ()


@pytest.mark.parametrize("slow", [3, 13])
def test_where_most_are_slow_nobody_is_called_healthy(slow: int) -> None:
    """The few that are quicker are all that shows it: three of four, thirteen of sixteen."""
    quiet = Noise(span_sigma=0.05, tail_share=0.0, drift_sigma=0.02, bias=0.01)
    job = Job(mesh=Topology.of(dp=4 if slow == 3 else 16), noise=quiet)
    assert judge(observations(job, 1)).outcome == Outcome.HEALTHY
    most = Job(mesh=job.mesh, noise=quiet, slow=[Slow(rank, "backward", 1.3) for rank in range(slow)])
    judged = judge(observations(most, 1))
    assert judged.outcome == Outcome.INSUFFICIENT
    assert any("the others are slow" in one.reason for one in judged.blocking)


def test_a_long_bad_stretch_is_named_though_it_has_ended() -> None:
    found = findings(Job(mesh=SMALL, slow=[Slow(1, "forward", 1.6, 30, 79)]), 10)
    assert [[(one.rank, one.pattern) for one in each] for each in found] == [[(1, "one-off")]] * 10


def test_thousands_of_ranks_of_which_many_are_slow_are_judged_in_seconds() -> None:
    """Every tenth of 2048 ranks: work that grows with ranks times culprits would take a minute."""
    quiet = Noise(span_sigma=0.05, tail_share=0.0, drift_sigma=0.02, bias=0.0)
    slow = [Slow(rank, "forward", 1.3, rank % 30) for rank in range(0, 2048, 10)]
    mesh = Topology.of(pp=2, dp=512, tp=2)
    seen = observations(Job(mesh=mesh, steps=100, chunks=1, segments={"forward": 5.0}, noise=quiet, slow=slow), 1)
    began = time.process_time()
    found = judge(seen).findings
    took = time.process_time() - began
    assert {one.rank for one in found} == {one.rank for one in slow}
    assert took < 25, took
