"""Slow links inside one host: the pair is named, or the rank all of whose links are slow; nobody without peers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.heatmap.network.channels import hosts_without_like
from megascope.heatmap.network.inside import find_inside
from megascope.heatmap.network.operations import load_channels
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Findings, describe
from support.network_scenes import ROLLUPS, SPANS, channels_of, network_of, placed, simulated

LAYOUT = {"pp": 4, "dp": 4}
ONE_HOST = 16
TABLES = ("runs", "ranks", "groups", "segments", "schedule", "steps")


def on_one_host(root: Path, slow: str = "", *, layout: Mapping[str, int] = LAYOUT, hosts: int = 1) -> Store:
    """A simulated job whose transfers take 15 ms longer from step 20 on where the SQL condition ``slow`` holds."""
    gpus = int(np.prod(list(layout.values()))) // hosts
    with simulated(root / "made", layout=layout, gpus_per_host=gpus, steps=50) as made:
        attempt = made.attempt()
        with TableWriter(root / "store", "test") as writer:
            for name in TABLES:
                rows = _rows(made, f"SELECT * FROM {name}")
                writer.write(name, attempt.run, attempt.attempt, rows, axes=tuple(layout))
            longer = f"CASE WHEN ({slow or 'false'}) AND e.step >= 20 THEN 15000000 ELSE 0 END"
            events = (
                f"SELECT e.* REPLACE (e.duration_ns + {longer} AS duration_ns, e.self_ns + {longer} AS self_ns) "
                f"FROM events e JOIN segments s USING (segment)"
            )
            writer.write("events", attempt.run, attempt.attempt, _rows(made, events))
            writer.commit()
    return Store(root / "store")


def _rows(store: Store, sql: str) -> dict[str, pa.ChunkedArray]:
    table = store.query(sql, attempt=store.attempt())
    kept = [name for name in table.column_names if name not in ("run", "attempt", "block")]
    return {name: table[name] for name in kept}


def inside(store: Store) -> Findings:
    attempt = store.attempt()
    return find_inside(store, attempt, observe(store, attempt))


def between(sender: int, receiver: int) -> str:
    return (
        f"(s.name = 'send_forward' AND e.rank = {sender} AND e.peer = {receiver}) OR "
        f"(s.name = 'recv_forward' AND e.rank = {receiver} AND e.peer = {sender})"
    )


def test_a_slow_link_is_named_with_its_two_ranks_and_nobody_else(tmp_path: Path) -> None:
    with on_one_host(tmp_path, between(1, 5)) as store:
        (culprit,) = inside(store).culprits
        assert (culprit.kind, culprit.cause, culprit.ranks) == (CulpritKind.LINK, Cause.NETWORK, (1, 5))
        assert culprit.segment == "send_forward"
        assert abs(culprit.steps[0] - 20) <= 1
        assert "The link between ranks 1 and 5" in describe(culprit)
        for one in culprit.evidence:
            assert "other pairs inside hosts" in one.statement
            assert one.value == pytest.approx(store.query(one.sql).column(0)[0].as_py())
        accused = {rank for one in find_stragglers(store, store.attempt()).culprits for rank in one.ranks}
        assert accused == {1, 5}


def test_a_rank_all_of_whose_links_are_slow_is_named_itself(tmp_path: Path) -> None:
    own_group = 's.kind = \'collective\' AND e."group" IN (SELECT "group" FROM groups WHERE ranks = [4, 5, 6, 7])'
    with on_one_host(tmp_path, f"(s.kind = 'p2p' AND 5 IN (e.rank, e.peer)) OR ({own_group})") as store:
        (culprit,) = inside(store).culprits
        assert (culprit.kind, culprit.ranks) == (CulpritKind.RANK, (5,))


def test_even_links_accuse_nobody(tmp_path: Path) -> None:
    with on_one_host(tmp_path) as store:
        assert inside(store).culprits == ()


def test_a_link_without_peers_of_its_stages_is_not_accused(tmp_path: Path) -> None:
    with on_one_host(tmp_path, between(1, 2), layout={"pp": 8}) as store:
        found = inside(store)
        assert found.culprits == ()
        assert [one.signal for one in found.abstained] == ["links inside hosts"]


def test_from_rollups_links_inside_hosts_are_not_judged(tmp_path: Path) -> None:
    with simulated(tmp_path / "store", recording=ROLLUPS, layout=LAYOUT, gpus_per_host=ONE_HOST) as store:
        found = inside(store)
        assert found.culprits == ()
        assert "rollups" in found.abstained[0].reason


def test_pairs_inside_and_between_hosts_are_never_compared_with_each_other(tmp_path: Path) -> None:
    """Their pipeline's group may span hosts: each pair counts by where its own two ranks run."""
    with on_one_host(tmp_path, hosts=2) as store:
        attempt = store.attempt()
        seen = observe(store, attempt)
        hosts = {rank: seen.placement.host_of(rank) for rank in seen.ranks.tolist()}
        for is_inside in (True, False):
            channels = load_channels(store, attempt, seen.placement, seen.ranks, seen.steps, inside=is_inside)
            assert len(channels)
            for at in range(len(channels)):
                assert (len({hosts[rank] for rank in channels.members(at).tolist()}) == 1) == is_inside


def test_where_every_group_touches_a_host_its_network_is_not_judged(tmp_path: Path) -> None:
    routes = [("reduce", tuple(range(first, 16, 4))) for first in range(4)]
    placement = placed([f"host{rank // 4}" for rank in range(16)])
    assert hosts_without_like(channels_of(routes, {}), placement) == ("host0", "host1", "host2", "host3")
    alone = placed([f"host{rank}" for rank in range(16)])
    assert hosts_without_like(channels_of(routes, {}), alone) == ()
    fault, layout = "degraded-nic:host=1:bandwidth=0.2", {"dp": 8, "pp": 4}
    with simulated(tmp_path / "store", fault, recording=SPANS, layout=layout) as store:
        found = network_of(store)
        assert found.culprits == ()
        assert [one for one in found.abstained if one.signal == "network"]
        assert "no slow link" not in find_stragglers(store, store.attempt()).sentence()


@pytest.mark.parametrize("left_out", [28, 29])
def test_a_group_with_a_member_that_is_not_looked_at_is_not_judged_from_rollups(tmp_path: Path, left_out: int) -> None:
    """The member left out may be the one for whom the others wait."""
    fault, layout = "slow-gpu:rank=29:factor=1.6", {"dp": 8, "cp": 4}
    with simulated(tmp_path / "store", fault, recording=ROLLUPS, layout=layout, steps=100) as store:
        ranks = [rank for rank in range(32) if rank != left_out]
        verdict = find_stragglers(store, store.attempt(), ranks=ranks)
        assert [one for one in verdict.culprits if one.cause == Cause.NETWORK] == []
