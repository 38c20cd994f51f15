"""Judging: who is worse than its peers, who is named for it, and when nobody is."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.trainer.preflight.judge import (
    LEAST_PEERS,
    find_beyond,
    find_outliers,
    judged_ranks,
    not_judged,
    outliers,
    summarise,
)
from megascope.trainer.preflight.measurements import Culprit, Kind, Measurement, Metric, Reason

RATE = Metric(name="rate", unit="TFLOP/s", margin_cpu=0.2, margin_cuda=0.05)
DELAY = Metric(name="delay", unit="us", higher_is_better=False, margin_cpu=0.5)
METRICS = {("check", "rate"): RATE, ("check", "delay"): DELAY}


def values(table: Mapping[Any, float], metric: Metric = RATE, per_host: int = 4) -> list[Measurement]:
    return [
        Measurement(
            check="check", metric=metric.name, unit=metric.unit, ranks=ranks, peers="alike", value=value,
            hosts=tuple(f"host{rank // per_host}" for rank in ranks),
        )
        for ranks, value in table.items()
    ]  # fmt: skip


def accused(found: list[Culprit]) -> list[tuple[Kind, tuple[int, ...]]]:
    return [(one.kind, one.ranks) for one in found]


def test_the_formula() -> None:
    # median 100, deviations 0 1 1 2 2 40: their median is 1.5, sigma 2.22
    assert outliers([100, 99, 101, 98, 102, 60], higher_is_better=True, margin=0.1) == [5]
    assert outliers([100, 99, 101, 98, 102, 140], higher_is_better=True, margin=0.1) == []
    assert outliers([100, 99, 101, 98, 102, 140], higher_is_better=False, margin=0.1) == [5]


def test_two_sigma_alone_accuse_nobody_and_neither_does_the_margin() -> None:
    close = [100.0, 100.1, 99.9, 100.05, 99.95, 99.0]  # ten sigma, one percent
    assert outliers(close, higher_is_better=True, margin=0.05) == []
    wide = [50.0, 150.0, 70.0, 130.0, 100.0, 60.0]  # 40 % below, within the spread
    assert outliers(wide, higher_is_better=True, margin=0.05) == []


@given(st.lists(st.floats(0.96, 1.04), min_size=1, max_size=200), st.floats(1e-6, 1e12))
def test_who_is_within_the_margin_is_never_accused(shares: list[float], scale: float) -> None:
    assert outliers([share * scale for share in shares], higher_is_better=True, margin=0.1) == []
    assert outliers([share * scale for share in shares], higher_is_better=False, margin=0.1) == []


@given(
    st.lists(st.floats(0.95, 1.05), min_size=LEAST_PEERS, max_size=100),
    st.floats(0.01, 0.6),
    st.data(),
)
def test_one_far_below_is_always_found_alone(shares: list[float], bad: float, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(shares) - 1))
    shares[at] = bad
    assert outliers(shares, higher_is_better=True, margin=0.1) == [at]


def test_few_values_are_not_compared() -> None:
    found = values({(0,): 1.0, (1,): 1.0, (2,): 0.01})
    assert find_outliers(found, METRICS, "cpu") == []
    (left,) = not_judged(found, METRICS, {})
    assert left.signal == "check.rate"
    assert "3 values" in left.reason
    assert not_judged(found, METRICS, {"check.rate": 0.5}) == []
    assert not judged_ranks(found, METRICS, {})
    assert judged_ranks(found, METRICS, {"check.rate": 0.5}) == {0: 1, 1: 1, 2: 1}


def test_a_rank_is_named_with_its_numbers() -> None:
    table = {(rank,): 100.0 + rank / 10 for rank in range(8)} | {(5,): 50.0}
    (culprit,) = find_outliers(values(table), METRICS, "cpu")
    assert (culprit.kind, culprit.ranks, culprit.hosts) == (Kind.RANK, (5,), ("host1",))
    assert (culprit.value, culprit.unit) == (50.0, "TFLOP/s")
    assert culprit.peers == pytest.approx(100.25)
    assert culprit.statement == (
        "Rank 5 on host1: check rate 50 TFLOP/s, the median of its peers is 100.2 TFLOP/s (0.50 of it)."
    )


def test_a_host_whose_ranks_are_all_slow_is_named_as_one() -> None:
    table = {(rank,): 100.0 for rank in range(16)} | {(rank,): 40.0 + rank for rank in range(4, 8)}
    assert accused(find_outliers(values(table), METRICS, "cpu")) == [(Kind.HOST, (4, 5, 6, 7))]


def test_a_slow_pair_is_named_as_a_pair() -> None:
    pairs = {(rank, rank + 1): 10.0 for rank in range(7)} | {(0, 7): 10.0, (2, 3): 1.0}
    assert accused(find_outliers(values(pairs), METRICS, "cpu")) == [(Kind.LINK, (2, 3))]


def test_a_rank_all_whose_pairs_are_slow_is_named_alone() -> None:
    pairs = {(rank, rank + 1): 10.0 for rank in range(7)} | {(0, 7): 10.0} | {(2, 3): 1.0, (3, 4): 1.2}
    assert accused(find_outliers(values(pairs, per_host=8), METRICS, "cpu")) == [(Kind.RANK, (3,))]


def test_a_host_whose_network_card_is_slow_is_named_with_its_own_ranks() -> None:
    pairs = {tuple(sorted((rank, (rank + 2) % 12))): 10.0 for rank in range(12)}
    slow = {pair: 1.0 for pair in pairs if {4, 5} & set(pair)}  # host 2 of hosts with two ranks
    assert accused(find_outliers(values(pairs | slow, per_host=2), METRICS, "cpu")) == [(Kind.HOST, (4, 5))]


def test_floors_and_limits_hold_without_peers() -> None:
    (below,) = find_beyond(values({(0,): 4.0}), METRICS, {"check.rate": 5.0})
    assert (below.kind, below.reason, below.peers) == (Kind.RANK, Reason.FLOOR, 5.0)
    assert find_beyond(values({(0,): 5.0}), METRICS, {"check.rate": 5.0}) == []
    assert find_beyond(values({(0,): 4.0}, DELAY), METRICS, {"check.delay": 5.0}) == []
    assert len(find_beyond(values({(0,): 6.0}, DELAY), METRICS, {"check.delay": 5.0})) == 1
    clock = Metric(name="offset", unit="ms", limit=100.0, is_compared=False, higher_is_better=False)
    metrics = {("check", "offset"): clock}
    one = Measurement(
        check="check",
        metric="offset",
        unit="ms",
        ranks=(4,),
        hosts=("host1",),
        peers="",
        value=-130.0,
        uncertainty=20.0,
    )
    (off,) = find_beyond([one], metrics, {})
    assert (off.reason, off.value) == (Reason.LIMIT, -130.0)
    unsure = Measurement(
        check="check",
        metric="offset",
        unit="ms",
        ranks=(4,),
        hosts=("host1",),
        peers="",
        value=-130.0,
        uncertainty=31.0,
    )
    assert find_beyond([unsure], metrics, {}) == []


def test_unlike_values_are_not_compared() -> None:
    fast = values({(rank,): 100.0 for rank in range(8)})
    slow = [
        Measurement(
            check="check", metric="rate", unit="TFLOP/s", ranks=(8,), hosts=("host2",), peers="other GPU", value=1.0
        )
    ]
    assert find_outliers(fast + slow, METRICS, "cpu") == []
    assert [(one.peers, one.count, one.median) for one in summarise(fast + slow)] == [
        ("alike", 8, 100.0),
        ("other GPU", 1, 1.0),
    ]


# The diagnosis of three real hosts of 8 GPUs that lies beside the results (superbench).

RULES = {"kernel-launch/event_overhead": False, "kernel-launch/wall_overhead": False}
RULES |= {"mem-bw/H2D_Mem_BW": True, "mem-bw/D2H_Mem_BW": True}


def superbench(folder: Path) -> tuple[dict[str, list[tuple[str, float]]], list[str]]:
    """Values of "host:GPU" by metric, of the metrics that the origin judged; and all hosts."""
    lines = [json.loads(line) for line in (folder / "test_results.jsonl").read_text().splitlines()]
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for line in lines:
        for key, value in line.items():
            name, _, index = key.partition(":")
            if index.isdecimal():
                found[name].append((f"{line['node']}:{index}", float(value)))
    return found, [line["node"] for line in lines]


def test_real_hosts_are_judged_as_their_own_diagnosis_does(traces: Path) -> None:
    found, hosts = superbench(traces / "superbench")
    accused = {}
    for name, higher in RULES.items():
        values = [value for _, value in found[name]]
        for at in outliers(values, higher_is_better=higher, margin=0.05):
            accused[name, found[name][at][0]] = values[at]
    assert accused == {("kernel-launch/event_overhead", "sb-validation-01:0"): 0.1}
    missing = {host for host in hosts if not any(one.startswith(host) for one, _ in found["mem-bw/H2D_Mem_BW"])}
    assert missing == {"sb-validation-03"}


def test_healthy_gpus_are_not_accused_by_two_sigma(traces: Path) -> None:
    found, _ = superbench(traces / "superbench")
    alone = []
    for name in [name for name in found if name.startswith("gemm-flops/")]:
        array = np.array([value for _, value in found[name]])
        median = float(np.median(array))
        sigma = 1.4826 * float(np.median(np.abs(array - median)))
        alone += [name for value in array if median - value > 2 * sigma]
        assert outliers(array.tolist(), higher_is_better=True, margin=0.05) == []
    assert len(alone) == 6, "of 216 rates of healthy GPUs, two sigma alone would have accused six"
