"""Who is measured with whom: each pair that will talk once, and rounds without conflicts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.trainer.preflight.measurements import Member
from megascope.trainer.preflight.plan import (
    Cluster,
    Round,
    alone,
    host_teams,
    in_rounds,
    neighbour_teams,
    talking_pairs,
    without,
)
from megascope.trainer.topology import pipeline_edges


def cluster_of(topology: Topology, per_host: int = 8, device: str = "cuda") -> Cluster:
    members = {
        rank: Member(rank=rank, host=f"host{rank // per_host}", local_rank=rank % per_host, device=device)
        for rank in range(topology.world_size)
    }
    return Cluster(members, topology)


LAYOUTS = st.builds(
    lambda pp, dp, tp: Topology.of(pp=pp, dp=dp, tp=tp), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4)
)


@given(LAYOUTS, st.integers(1, 2))
def test_pairs_are_those_of_the_layout(topology: Topology, chunks: int) -> None:
    pairs = talking_pairs(topology, chunks)
    assert all(one < other for one, other in pairs)
    edges = {tuple(sorted((edge.source, edge.destination))) for edge in pipeline_edges(topology, chunks)}
    assert {pair for pair, axis in pairs.items() if axis == "pp"} <= edges <= pairs.keys()
    for (one, other), axis in pairs.items():
        assert other in topology.group(axis, one)
    for axis in ("tp", "dp"):  # in a ring, everybody has two neighbours; in a group of two, one
        size = topology.size(axis)
        for rank in range(topology.world_size):
            own = [pair for pair, of in pairs.items() if of == axis and rank in pair]
            assert len(own) == min(size - 1, 2)


def test_pairs_of_a_small_layout_by_hand() -> None:
    assert talking_pairs(Topology.of(pp=2, dp=2, tp=2)) == {
        (0, 1): "tp", (2, 3): "tp", (4, 5): "tp", (6, 7): "tp", (0, 2): "dp", (1, 3): "dp", (4, 6): "dp",
        (5, 7): "dp", (0, 4): "pp", (1, 5): "pp", (2, 6): "pp", (3, 7): "pp",
    }  # fmt: skip
    assert (0, 3) not in talking_pairs(Topology.of(pp=4))
    assert talking_pairs(Topology.of(pp=4), chunks=2)[0, 3] == "pp"


@given(LAYOUTS, st.integers(1, 8), st.sampled_from(["cpu", "cuda"]))
def test_rounds_hold_each_pair_once_and_disturb_nobody(topology: Topology, per_host: int, device: str) -> None:
    cluster = cluster_of(topology, per_host, device)
    pairs = talking_pairs(topology)
    rounds = in_rounds(pairs, cluster)
    assert sorted(itertools.chain(*rounds)) == sorted(pairs)
    for teams in rounds:
        ranks = [rank for team in teams for rank in team]
        assert len(set(ranks)) == len(ranks)
        hosts = [host for team in teams for host in set(cluster.hosts_of(team))]
        assert device == "cuda" or len(set(hosts)) == len(hosts)


def test_a_large_job_takes_few_rounds() -> None:
    topology = Topology.of(pp=8, dp=24, tp=8)
    rounds = in_rounds(talking_pairs(topology), cluster_of(topology))
    assert len(rounds) <= 11  # six pairs a rank, and Vizing's bound is seven


def test_ranks_of_a_cpu_host_take_turns() -> None:
    topology = Topology.of(dp=4)
    assert alone(cluster_of(topology, 2, "cuda")) == [[(0,), (1,), (2,), (3,)]]
    assert alone(cluster_of(topology, 2, "cpu")) == [[(0,), (2,)], [(1,), (3,)]]


def test_neighbouring_hosts() -> None:
    cluster = cluster_of(Topology.of(dp=6), 2)
    assert list(host_teams(cluster)) == [(0, 1), (2, 3), (4, 5)]
    assert list(neighbour_teams(cluster)) == [(0, 1, 2, 3), (2, 3, 4, 5)]
    assert in_rounds(neighbour_teams(cluster), cluster) == [[(0, 1, 2, 3)], [(2, 3, 4, 5)]]
    assert list(neighbour_teams(cluster_of(Topology.of(dp=3), 4))) == [(0, 1, 2)]


def test_who_is_absent_is_left_out() -> None:
    rounds: list[Round] = [[(0, 1), (2, 3)], [(1, 2, 3)]]
    assert without(rounds, {1}, 2) == [[(2, 3)], [(2, 3)]]
    assert without(rounds, {1, 2, 3}, 2) == []
