"""Where a slow link lies: ranks, hosts, pairs and groups that explain all slow routes, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.heatmap.network.channels import Channels, crosses_hosts, log_ratios, usual_ms
from megascope.heatmap.network.levels import find_routes, raised_rows, rank_levels, visible_ratio
from megascope.heatmap.network.places import Place, locate, of_whole_stages, too_many
from megascope.heatmap.peers import Placement
from megascope.heatmap.verdict import CulpritKind
from support.network_scenes import channels_of, placed

STAGES, REPLICAS = 3, 6
PAIRS = [("send_forward", (s * REPLICAS + r, (s + 1) * REPLICAS + r)) for s in range(2) for r in range(REPLICAS)]
GROUPS = [("reduce", tuple(s * REPLICAS + r for r in range(REPLICAS))) for s in range(STAGES)]
ROUTES: list[tuple[str, tuple[int, ...]]] = [*PAIRS, *GROUPS]
ALONE = placed([f"host{rank}" for rank in range(STAGES * REPLICAS)])
STAGED = Placement(ALONE.ranks, ALONE.hosts, {"pp": np.arange(STAGES * REPLICAS) // REPLICAS})


def places_of(channels: Channels, placement: Placement) -> list[Place]:
    routes = find_routes(channels, log_ratios(channels))
    levels = rank_levels(routes)
    suspects = {int(levels.ids[one.row]): one for one in raised_rows(levels, 1)}
    slow = {one.row: one for one in raised_rows(routes.levels, 1)}
    return locate(routes, suspects, slow, placement)


def slow_routes(ranks: Sequence[int], factor: float = 3.0) -> Mapping[int, float]:
    return {row: factor for row, (_, members) in enumerate(ROUTES) if set(ranks) & set(members)}


@pytest.mark.parametrize("rank", range(STAGES * REPLICAS))
def test_a_rank_is_named_and_none_that_it_meets(rank: int) -> None:
    found = places_of(channels_of(ROUTES, slow_routes([rank])), ALONE)
    assert [(one.kind, one.ranks) for one in found] == [(CulpritKind.RANK, (rank,))]
    assert abs(found[0].stretch.first - 20) <= 1
    assert found[0].stretch.to_the_end


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, STAGES * REPLICAS - 1), min_size=0, max_size=2), st.integers(0, 2**20))
def test_several_ranks_at_once(ranks: set[int], seed: int) -> None:
    """Nobody but the ranks at fault is accused; all of them are, where no other has the same routes."""
    found = places_of(channels_of(ROUTES, slow_routes(sorted(ranks)), seed=seed), ALONE)
    named = {rank for one in found if one.kind in (CulpritKind.RANK, CulpritKind.HOST) for rank in one.ranks}
    assert named <= ranks | _between(ranks)
    if not _between(ranks):
        assert named == ranks


def _between(ranks: set[int]) -> set[int]:
    """Ranks all of whose routes lead to one at fault: nothing tells them from these."""
    return {
        rank
        for rank in range(STAGES * REPLICAS)
        if rank not in ranks and all(set(members) & ranks for _, members in ROUTES if rank in members)
    }


def test_a_host_is_named_where_most_of_its_ranks_are_slow() -> None:
    placement = placed([f"host{rank // 2}" for rank in range(STAGES * REPLICAS)])
    found = places_of(channels_of(ROUTES, slow_routes([8, 9])), placement)
    assert [(one.kind, one.ranks, one.hosts) for one in found] == [(CulpritKind.HOST, (8, 9), ("host4",))]


def test_one_slow_pair_between_healthy_ranks_is_a_link() -> None:
    found = places_of(channels_of(ROUTES, {2: 4.0}), ALONE)
    assert [(one.kind, one.ranks) for one in found] == [(CulpritKind.LINK, (2, 8))]
    assert found[0].hosts == ("host2", "host8")


def test_one_slow_group_among_those_of_its_stage_is_a_group() -> None:
    routes = [("reduce", tuple(range(first, 24, 6))) for first in range(6)]
    found = places_of(channels_of(routes, {2: 4.0}), placed([f"host{rank}" for rank in range(24)]))
    assert [(one.kind, one.ranks) for one in found] == [(CulpritKind.GROUP, (2, 8, 14, 20))]


def test_the_only_slow_group_of_a_stage_may_have_more_to_send() -> None:
    assert places_of(channels_of(ROUTES, {len(PAIRS): 4.0}), STAGED) == []


def test_a_stage_of_slow_links_is_no_fault_of_its_hosts() -> None:
    found = places_of(channels_of(ROUTES, slow_routes(range(REPLICAS))), STAGED)
    assert of_whole_stages(found, STAGED) == {0: REPLICAS}
    assert of_whole_stages(places_of(channels_of(ROUTES, slow_routes([1, 8])), STAGED), STAGED) == {}


def test_even_channels_accuse_nobody_and_would_have_shown_a_slow_link() -> None:
    channels = channels_of(ROUTES, {})
    assert places_of(channels, ALONE) == []
    visible = visible_ratio(rank_levels(find_routes(channels, log_ratios(channels))))
    assert visible is not None
    assert 1.2 < visible < 2


def test_where_most_of_a_kind_are_slow_the_fast_ones_are_the_yardstick() -> None:
    routes = [("reduce", (rank, rank + 10)) for rank in range(8)]
    usual = usual_ms(channels_of(routes, dict.fromkeys(range(5), 3.0)))
    assert usual[:, 30] == pytest.approx(np.full(8, 10.0), rel=0.15)


def test_a_channel_without_its_like_is_not_compared() -> None:
    logs = log_ratios(channels_of([("reduce", (0, 1)), ("norm", (0, 1, 2))], {}))
    assert not np.isfinite(logs).any()


def test_too_many_slow_hosts_are_no_fault_of_each() -> None:
    found = places_of(channels_of(ROUTES, slow_routes([1, 3, 8])), ALONE)
    accused = [one for one in found if one.kind == CulpritKind.RANK]
    assert len(accused) == 3
    assert not too_many(accused, ALONE)
    assert too_many(accused, placed(["a", "b", "c", "d"]))


def test_a_group_with_a_member_on_an_unknown_host_crosses_nothing() -> None:
    crosses = crosses_hosts(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 2, 2, -1, 3]), 3)
    assert crosses.tolist() == [True, False, False]
