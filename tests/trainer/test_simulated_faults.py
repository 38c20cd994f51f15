"""Simulated faults: each shows in the engine's spans where it should, by as much as it should, and nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megascope.profiler.errors import UsageError
from megascope.trainer.simulator.config import SimulationConfig, costs_of
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.fault_effects import carriers, check_fault, effect_of, fault_rows
from megascope.trainer.simulator.faults import FaultKind, parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from support.span_sums import SpanSums, changed

STEPS = 30
COSTS = Costs(
    tp_pairs=1, tp_ns=1e5, p2p_network_ns=1e6, p2p_host_ns=1e5, reduce_scatter_ns=4e6, all_gather_ns=2e6, norm_ns=1e5,
    optimizer_ns=3e6, data_ns=2e6,
)  # fmt: skip
WORK = ("data", "forward", "backward", "optimizer")


def job_of(*texts: str, **more: Any) -> SimulatedJob:
    """A job of 64 ranks on 8 hosts of 8: a host holds two tensor-parallel groups of one stage."""
    layout = {"pp": 4, "dp": 4, "tp": 4}
    faults = [parse_fault(text) for text in texts]
    job = SimulatedJob(layout=layout, steps=STEPS, costs=COSTS, effects=tuple(map(effect_of, faults)), **more)
    for fault in faults:
        check_fault(fault, job)
    return job


HEALTHY = SpanSums.of(job_of())


def work_changed(sums: SpanSums) -> dict[str, tuple[set[int], set[int]]]:
    """Ranks and steps by segment of work whose own time is not that of the healthy job."""
    found = {name: changed(HEALTHY.own[name], sums.own[name]) for name in WORK}
    return {name: where for name, where in found.items() if where[0]}


def ratios(sums: SpanSums, segment: str, rank: int, step: int) -> float:
    return float(sums.own[segment][rank, step] / HEALTHY.own[segment][rank, step])


def waiting(sums: SpanSums) -> Any:
    """Time that ranks wait for communication, [world, steps]."""
    return sum(sums.exposed.values())


def test_a_slow_gpu_is_slow_from_its_first_step_on_and_the_others_wait_for_it() -> None:
    sums = SpanSums.of(job_of("slow-gpu:rank=21:factor=1.3:steps=10-"))
    steps = set(range(10, STEPS))
    assert work_changed(sums) == {"forward": ({21}, steps), "backward": ({21}, steps)}
    assert ratios(sums, "backward", 21, 12) == pytest.approx(1.3, rel=1e-6)
    more = (waiting(sums) - waiting(HEALTHY))[:, 15]
    assert int(np.argmin(more)) == 21
    assert (np.delete(more, 21) > 0).all()


def test_a_slow_segment_is_slow_alone() -> None:
    sums = SpanSums.of(job_of("slow-gpu:rank=3:factor=2:segment=backward:steps=5-9"))
    assert work_changed(sums) == {"backward": ({3}, set(range(5, 10)))}


def test_throttling_comes_and_goes() -> None:
    sums = SpanSums.of(job_of("throttling:rank=7:factor=1.5:period=10:duty=0.3:steps=5-"))
    steps = {5, 6, 7, 15, 16, 17, 25, 26, 27}
    assert work_changed(sums) == {"forward": ({7}, steps), "backward": ({7}, steps)}
    assert ratios(sums, "forward", 7, 16) == pytest.approx(1.5, rel=1e-6)


def test_all_ranks_of_a_slow_host_are_slow() -> None:
    sums = SpanSums.of(job_of("slow-host:host=2:factor=1.2"))
    assert {name: where[0] for name, where in work_changed(sums).items()} == {
        "forward": set(range(16, 24)), "backward": set(range(16, 24)),
    }  # fmt: skip


@pytest.mark.parametrize("where", ["rank=21", "host=2"])
def test_a_degraded_nic_slows_no_work_and_only_what_leaves_the_host(where: str) -> None:
    text = f"degraded-nic:{where}:bandwidth=0.1:steps=10-"
    job = job_of(text)
    sums, ranks = SpanSums.of(job), set(carriers(parse_fault(text), job))
    assert work_changed(sums) == {}
    groups = list(job.topology.groups("dp"))
    transfers = {group: transfer_ms(sums, group) - transfer_ms(HEALTHY, group) for group in groups}
    slow = {group: grown for group, grown in transfers.items() if grown > 1e-3}
    assert set(slow) == {group for group in groups if ranks & set(group)}  # as slow as its slowest member
    assert slow == pytest.approx(dict.fromkeys(slow, 9 * 4.0))
    assert changed(HEALTHY.exposed["recv_forward"], sums.exposed["recv_forward"])[1] <= set(range(10, STEPS))
    victim = int(job.grid.rank[3, 0, 3])
    assert victim not in ranks
    assert waiting(sums)[victim, 20] > waiting(HEALTHY)[victim, 20] + 30e6


def transfer_ms(sums: SpanSums, group: tuple[int, ...]) -> float:
    """What the reduce-scatter of a group takes once its last member is there: the shortest of its spans."""
    return float(sums.duration["dp_reduce_scatter"][list(group), 20].min()) / 1e6


def test_pauses_of_garbage_collection_grow_and_come_at_different_steps() -> None:
    sums = SpanSums.of(job_of("gc-drift:growth_ms=100:every=5"))
    pauses = sums.own["gc"]
    assert (np.count_nonzero(pauses, axis=1) >= STEPS // 5 - 1).all()
    assert len({tuple(np.flatnonzero(row)) for row in pauses}) > 1
    assert pauses.max(axis=0)[20:].max() == pytest.approx(29 * 1e6, rel=0.1)
    spread = np.ptp(pauses, axis=0)
    assert spread[25:].mean() > 2 * spread[5:10].mean()
    assert work_changed(sums) == {}


def test_a_data_stall_is_in_the_loading_of_one_rank() -> None:
    sums = SpanSums.of(job_of("data-stall:rank=5:delay_ms=300:every=4:steps=8-"))
    assert work_changed(sums) == {"data": ({5}, {8, 12, 16, 20, 24, 28})}
    assert (sums.own["data"] - HEALTHY.own["data"])[5, 12] == pytest.approx(300e6)


def test_a_data_stall_without_a_place_is_in_the_loading_of_all_who_load() -> None:
    job = job_of("data-stall:delay_ms=300:every=4:steps=8-")
    loaders = set(job.grid.rank[[0, -1]].reshape(-1).tolist())
    assert work_changed(SpanSums.of(job)) == {"data": (loaders, {8, 12, 16, 20, 24, 28})}
    [row] = fault_rows([parse_fault("data-stall:delay_ms=300")], job)
    assert (row["ranks"], row["host"], row["segment"]) == (list(range(job.world_size)), None, "data")


def test_a_storage_stall_is_in_the_checkpoints_of_one_host() -> None:
    sums = SpanSums.of(job_of("storage-stall:host=1:delay_ms=900:every=10:steps=9-"))
    assert work_changed(sums) == {}
    rank, step = np.nonzero(sums.own["checkpoint"])
    assert set(rank) == set(range(8, 16))
    assert set(step) == {9, 19, 29}


def test_uneven_sequences_slow_replicas_alike_and_change_from_step_to_step() -> None:
    job = job_of("uneven-sequences:spread=0.3")
    sums = SpanSums.of(job)
    assert work_changed(sums).keys() == {"forward", "backward"}
    factor = sums.own["forward"] / HEALTHY.own["forward"]
    for replica in range(4):
        members = job.grid.rank[:, :, replica].reshape(-1)
        assert np.ptp(factor[members], axis=0).max() < 1e-6
    one = factor[job.grid.rank[0, 0, 0]]
    assert np.std(one) == pytest.approx(np.sqrt((np.exp(0.09) - 1) / 8), rel=0.5)
    assert np.mean(factor) == pytest.approx(1.0, abs=0.05)


def test_an_uneven_stage_is_slow_on_all_of_its_ranks() -> None:
    job = job_of("uneven-stages:stage=2:factor=1.25")
    sums = SpanSums.of(job)
    stage = set(job.grid.rank[2].reshape(-1).tolist())
    assert {name: where[0] for name, where in work_changed(sums).items()} == {"forward": stage, "backward": stage}


def test_lost_heartbeats_change_no_span() -> None:
    job = job_of("lost-heartbeats:host=1:steps=20-24")
    sums = SpanSums.of(job)
    assert work_changed(sums) == {}
    np.testing.assert_array_equal(waiting(sums), waiting(HEALTHY))
    lost = job.effects[0].loses_heartbeat(job, np.arange(STEPS))
    assert lost is not None
    assert set(map(tuple, np.argwhere(lost).tolist())) == {(r, s) for r in range(8, 16) for s in range(20, 25)}


def test_two_faults_act_together() -> None:
    sums = SpanSums.of(job_of("slow-gpu:rank=3:factor=1.2", "slow-host:host=0:factor=1.1"))
    assert ratios(sums, "forward", 3, 5) == pytest.approx(1.32, rel=1e-6)
    assert ratios(sums, "forward", 4, 5) == pytest.approx(1.1, rel=1e-6)


def test_the_truth_names_all_who_carry_it() -> None:
    job = job_of()
    rows = fault_rows([parse_fault(t) for t in ("slow-host:host=2:factor=1.2", "data-stall:rank=5:delay_ms=9")], job)
    assert [(row["kind"], row["ranks"], row["host"], row["segment"], row["factor"]) for row in rows] == [
        ("slow-host", list(range(16, 24)), "node0002", None, 1.2),
        ("data-stall", [5], None, "data", None),
    ]


def test_what_is_parsed() -> None:
    fault = parse_fault("degraded-nic:rank=3,8-10:bandwidth=0.25:steps=20-40")
    assert (fault.kind, fault.ranks, fault.factor) == (FaultKind.DEGRADED_NIC, (3, 8, 9, 10), 4.0)
    assert (fault.first_step, fault.last_step) == (20, 40)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slow", "no known kind"),
        ("uneven-sequences:spread=2.5", "give a spread up to 2"),
        ("slow-gpu:rank=3", "lacks factor"),
        ("slow-gpu:rank=3:factor=x", "cannot be read"),
        ("slow-gpu:rank=3:factor=1", "slows nothing down"),
        ("slow-gpu:rank=3:factor=nan", "slows nothing down"),
        ("slow-gpu:rank=3:rank=4:factor=2", "does not take"),
        ("slow-gpu:rank=3:factor=2:steps=9-3", "end before they begin"),
        ("degraded-nic:bandwidth=0.1", "where it is"),
        ("degraded-nic:rank=3:bandwidth=0", "slows nothing down"),
        ("data-stall:rank=3:host=0:delay_ms=9", "where it is"),
        ("throttling:rank=3:factor=2:period=1", "no such rhythm"),
        ("host-stuck:rank=3", "lacks step"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        parse_fault(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slow-gpu:rank=64:factor=2", "only ranks 0 to 63"),
        ("slow-host:host=8:factor=2", "only hosts 0 to 7"),
        ("uneven-stages:stage=4:factor=2", "only stages 0 to 3"),
        ("data-stall:rank=20:delay_ms=9", "no rank that loads data"),
        ("slow-gpu:rank=3:factor=2:segment=loss", "forward or backward"),
        ("slow-gpu:rank=3:factor=2:steps=30-", "acts in no step"),
    ],
)
def test_a_fault_without_a_place_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        job_of(text)


def test_a_degraded_nic_stretches_bytes_and_no_latency() -> None:
    text = "degraded-nic:rank=21:bandwidth=0.1"
    costs = replace(COSTS, reduce_scatter_latency_ns=1e6)
    job, healthy = (
        SimulatedJob(layout={"pp": 4, "dp": 4, "tp": 4}, steps=2, costs=costs, effects=effects)
        for effects in ((effect_of(parse_fault(text)),), ())
    )
    group = next(group for group in job.topology.groups("dp") if 21 in group)
    lengths = [sums.duration["dp_reduce_scatter"][list(group), 1].min() for sums in map(SpanSums.of, (job, healthy))]
    assert lengths == pytest.approx([1e6 + 10 * 3e6, 4e6])
    norms = [sums.duration["world_all_reduce"][:, 1].min() for sums in map(SpanSums.of, (job, healthy))]
    assert norms[0] == norms[1]
    [row] = fault_rows([parse_fault(text)], job)
    assert (row["host"], row["link"]) == ("node0002", "node0002>network")


def test_latency_is_what_small_messages_cost() -> None:
    costs = costs_of(SimulationConfig(), {"pp": 4, "dp": 16, "tp": 8}, microbatches=8)
    assert costs.bytes_share("send_forward") == pytest.approx(1 - 10e3 / costs.p2p_network_ns)
    assert 0.9 < costs.bytes_share("dp_reduce_scatter") < 1
    assert costs.bytes_share("world_all_reduce") == 0
