"""From a slow network card to its host: what the straggler verdict on a ring of hosts makes the supervisor do.

The ring is that of `benchmarks.fault_trials`: pipeline stages of two chunks, a rank a host, so that each host has two
links. The other layout is that of a large job: tensor parallelism within hosts of eight, replicas and stages between
them. The transfers are the simulator's; everything after them is what runs on a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import to_json
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import MeasuredNoise
from megascope.trainer.simulator.writing import simulate
from megascope.trainer.supervisor.accusing import accused_by_stragglers, network_signs
from megascope.trainer.supervisor.history import History
from megascope.trainer.supervisor.limits import Limits
from megascope.trainer.supervisor.policy import Accused, Action, Case, Decision, Trigger, applied, decide
from support.network_scenes import COSTS, SPANS


def verdict_on(root: Path, fault: str, hosts: int, chunks: int = 2) -> dict[str, Any]:
    """The object of `megascope stragglers --json` on a pipeline of so many hosts, of a rank each."""
    job = SimulatedJob(
        layout={"pp": hosts}, steps=60, microbatches=2 * hosts, chunks=chunks, costs=COSTS, gpus_per_host=1, seed=11,
        noise=MeasuredNoise(),
    )  # fmt: skip
    return verdict_of(job, root, fault)


def verdict_of(job: SimulatedJob, root: Path, fault: str) -> dict[str, Any]:
    simulate(job, root, SPANS, faults=[parse_fault(fault)])
    with Store(root) as store:
        verdict: dict[str, Any] = json.loads(json.dumps(to_json(find_stragglers(store, store.attempt()))))
    return verdict


def decided(accused: tuple[Accused, ...]) -> tuple[Decision, History]:
    case = Case(trigger=Trigger.SLOW, moment_s=1000.0, step=59, accused=accused, spares=1)
    decision = decide(case, History(), Limits())
    return decision, applied(decision, case, History())


@pytest.mark.parametrize("rank", [0, 2, 4], ids=["the first stage", "in the middle", "the last stage"])
def test_a_host_whose_card_is_slow_is_replaced_after_a_checkpoint(tmp_path: Path, rank: int) -> None:
    verdict = verdict_on(tmp_path, f"degraded-nic:rank={rank}:bandwidth=0.1:steps=20-", hosts=5)
    (accused,) = accused_by_stragglers(verdict)
    assert (accused.host, accused.blames_host) == (f"node000{rank}", True)
    assert accused.reason.startswith(f"network on rank {rank} (")
    assert network_signs(verdict) == []
    decision, history = decided((accused,))
    assert (decision.action, decision.fence) == (Action.CHECKPOINT_AND_REPLACE, (f"node000{rank}",))
    assert history.fenced == {f"node000{rank}"}
    assert history.restarts[0].planned  # which costs no step, and is no failure


def test_with_fewer_hosts_it_is_named_and_not_sure_enough_to_fence(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, "degraded-nic:rank=3:bandwidth=0.1:steps=20-", hosts=4)
    (accused,) = accused_by_stragglers(verdict)
    assert accused.host == "node0003"
    assert accused.confidence < Limits().min_confidence
    decision, _ = decided((accused,))
    assert (decision.action, decision.fence) == (Action.WATCH, ())
    assert "node0003 is suspected" in decision.reason


@pytest.mark.parametrize(
    ("where", "bandwidth", "host", "ranks"),
    [
        ("host=0", 0.2, "node0000", range(8)),
        ("host=11", 0.5, "node0011", range(88, 96)),
        ("rank=45", 0.2, "node0005", [45]),
    ],
    ids=["a host of the first stage", "half its bandwidth", "one of eight cards"],
)
def test_of_sixteen_hosts_of_eight_the_one_with_the_slow_card_is_replaced(
    tmp_path: Path, where: str, bandwidth: float, host: str, ranks: Sequence[int]
) -> None:
    job = SimulatedJob(
        layout={"pp": 4, "dp": 4, "tp": 8}, steps=32, microbatches=4, costs=COSTS, gpus_per_host=8, seed=11,
        skew_ms=20.0, drift_ppm=2.0, noise=MeasuredNoise(),
    )  # fmt: skip
    verdict = verdict_of(job, tmp_path, f"degraded-nic:{where}:bandwidth={bandwidth}:steps=12-")
    (accused,) = accused_by_stragglers(verdict)
    assert (accused.host, accused.blames_host) == (host, True)
    assert [one["ranks"] for one in verdict["culprits"]] == [list(ranks)]
    assert network_signs(verdict) == []
    decision, _ = decided((accused,))
    assert (decision.action, decision.fence) == (Action.CHECKPOINT_AND_REPLACE, (host,))
