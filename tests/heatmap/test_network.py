"""Slow links: the NIC, host or group behind slow transfers is named; who waits for it, or works slowly, is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.importers.importing import import_run
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind
from megascope.trainer.simulator.session import Recording
from support.network_scenes import ROLLUPS, SPANS, network_of, simulated

RECORDINGS = pytest.mark.parametrize("recording", [SPANS, ROLLUPS], ids=["spans", "rollups"])


@RECORDINGS
@pytest.mark.parametrize(
    ("fault", "kind", "ranks", "hosts", "factor"),
    [
        ("degraded-nic:rank=13:bandwidth=0.3:steps=25-", CulpritKind.RANK, (13,), ("node0003",), 10 / 3),
        ("degraded-nic:rank=13:bandwidth=0.15:steps=15-44", CulpritKind.RANK, (13,), ("node0003",), 20 / 3),
        ("degraded-nic:host=5:bandwidth=0.2", CulpritKind.HOST, (20, 21, 22, 23), ("node0005",), 5),
        ("degraded-nic:host=0:bandwidth=0.3:steps=20-49", CulpritKind.HOST, (0, 1, 2, 3), ("node0000",), 10 / 3),
    ],
)
def test_a_degraded_nic_is_named_with_its_place_and_its_steps(
    tmp_path: Path,
    recording: Recording,
    fault: str,
    kind: CulpritKind,
    ranks: tuple[int, ...],
    hosts: tuple[str, ...],
    factor: float,
) -> None:
    with simulated(tmp_path / "store", fault, recording=recording) as store:
        (culprit,) = network_of(store).culprits
        truth = store.query("SELECT first_step, last_step FROM faults").to_pylist()[0]
        assert (culprit.kind, culprit.cause, culprit.ranks, culprit.hosts) == (kind, Cause.NETWORK, ranks, hosts)
        assert culprit.ratio == pytest.approx(factor, rel=0.12)
        width = observe(store, store.attempt()).source.step_width
        last = 59 if truth["last_step"] is None else truth["last_step"]
        assert abs(culprit.steps[0] - max(truth["first_step"], 2)) <= width
        assert abs(culprit.steps[1] - last) <= width
        assert 0 < culprit.lost_share < 0.5
        assert culprit.confidence > 0.9


@RECORDINGS
def test_the_evidence_can_be_asked_for_again(tmp_path: Path, recording: Recording) -> None:
    with simulated(tmp_path / "store", "degraded-nic:host=5:bandwidth=0.2", recording=recording) as store:
        (culprit,) = network_of(store).culprits
        assert len(culprit.evidence) >= 4
        for one in culprit.evidence[:-1]:
            assert one.value == pytest.approx(store.query(one.sql).column(0)[0].as_py())
            assert one.peers is not None
            assert one.value == pytest.approx(5 * one.peers, rel=0.15)


@RECORDINGS
def test_only_the_network_of_the_rank_is_accused(tmp_path: Path, recording: Recording) -> None:
    """Its own work is as fast as that of others, and so are those that wait for it."""
    with simulated(tmp_path / "store", "degraded-nic:rank=13:bandwidth=0.15", recording=recording) as store:
        verdict = find_stragglers(store, store.attempt())
        assert [(one.ranks, one.cause) for one in verdict.culprits] == [((13,), Cause.NETWORK)]
        assert verdict.sentence().startswith(
            "The network of rank 13 on node0003 is slow: transfers of dp_reduce_scatter"
        )


@RECORDINGS
@pytest.mark.parametrize(
    "fault",
    [
        "",
        "slow-gpu:rank=13:factor=1.6",
        "slow-host:host=5:factor=1.4",
        "data-stall:rank=3:delay_ms=120",
        "uneven-stages:stage=0:factor=1.4",
    ],
)
def test_slow_work_is_no_slow_link(tmp_path: Path, recording: Recording, fault: str) -> None:
    with simulated(tmp_path / "store", fault, recording=recording) as store:
        found = network_of(store)
        assert found.culprits == ()
        assert not [one for one in found.abstained if one.signal == "network"]


def test_a_job_on_one_host_has_no_network(tmp_path: Path) -> None:
    layout = {"pp": 2, "dp": 2, "tp": 2}
    with simulated(tmp_path / "store", layout=layout, steps=12, gpus_per_host=8) as store:
        found = network_of(store)
        assert [(one.signal, "one host" in one.reason) for one in found.abstained] == [("network", True)]
        assert found.blocking == ()


def test_a_single_group_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    with simulated(tmp_path / "store", layout={"dp": 8}, steps=30) as store:
        found = network_of(store)
        assert found.culprits == ()
        assert ["others of its kind" in one.reason for one in found.abstained if one.signal == "network"] == [True]
        assert "no slow link" not in find_stragglers(store, store.attempt()).sentence()


def test_a_slow_rank_in_the_only_groups_that_it_has_is_named_with_its_group(tmp_path: Path) -> None:
    """Without pipeline stages a rank is on one group alone: which of the members is slow cannot be told."""
    layout = {"dp": 4, "tp": 8}
    with simulated(tmp_path / "store", "degraded-nic:rank=13:bandwidth=0.2", layout=layout, gpus_per_host=8) as store:
        (culprit,) = network_of(store).culprits
        assert (culprit.kind, culprit.ranks) == (CulpritKind.GROUP, (5, 13, 21, 29))
        assert culprit.confidence <= 0.7


def test_ranks_and_steps_can_be_chosen(tmp_path: Path) -> None:
    with simulated(tmp_path / "store", "degraded-nic:rank=13:bandwidth=0.15:steps=30-") as store:
        attempt = store.attempt()
        before = find_stragglers(store, attempt, steps=(2, 28))
        assert [one for one in before.culprits if one.cause == Cause.NETWORK] == []
        of_one_tp = [rank for rank in range(32) if rank % 2 == 0]
        others = find_stragglers(store, attempt, ranks=of_one_tp)
        assert [one for one in others.culprits if one.cause == Cause.NETWORK] == []


def test_real_trace_with_a_bad_worker(tmp_path: Path, traces: Path) -> None:
    """AR's bad worker is rank 0: its transfers are slow too, and nobody else's; ST has no bad machine."""
    expected = {"AR": [(0,)], "ST": []}
    for name, ranks in expected.items():
        trace = traces / "bytedance_whatif" / f"trace-{name}.parquet"
        import_run([trace], tmp_path / name)
        with Store(tmp_path / name) as store:
            found = network_of(store)
            assert [one.ranks for one in found.culprits] == ranks
            if found.culprits:
                assert any("whole machine" in one.statement for one in found.culprits[0].evidence)


def test_too_few_windows_tell_nothing(tmp_path: Path) -> None:
    with simulated(tmp_path / "store", recording=ROLLUPS, steps=30) as store:
        assert ["too few" in one.reason for one in network_of(store).abstained if one.signal == "network"] == [True]


def test_counters_of_the_network_are_further_evidence(tmp_path: Path) -> None:
    """Retransmissions on the accused's host alone stand beside the transfers; what all hosts have does not."""
    with simulated(tmp_path / "store", "degraded-nic:host=5:bandwidth=0.2", recording=ROLLUPS) as store:
        attempt = store.attempt()
        begun = "SELECT host, min(start_ns) AS at FROM steps JOIN ranks USING (rank) WHERE step = 30 GROUP BY host"
        rows = [
            {"host": row["host"], "moment_ns": row["at"], "metric": metric, "value": value}
            for row in store.query(begun).to_pylist()
            for metric, value in (
                ("rdma_retransmits_per_s", 40.0 if row["host"] == "node0005" else 0.0),
                ("network_sent_bytes_per_s", 2e8 if row["host"] == "node0005" else 1e9),
                ("network_received_bytes_per_s", 1e9),
                ("cpu_percent", 90.0 if row["host"] == "node0005" else 10.0),
            )
        ]
        with TableWriter(tmp_path / "store", "agent") as writer:
            writer.write("health", attempt.run, attempt.attempt, {key: [row[key] for row in rows] for key in rows[0]})
            writer.commit()
        store.refresh()
        (culprit,) = network_of(store).culprits
        said = [one for one in culprit.evidence if one.table == "health"]
        assert [(one.value, one.peers) for one in said] == [(2e8, 1e9), (40.0, 0.0)]
        assert said[1].statement == "rdma_retransmits_per_s of node0005 is 40, on the other hosts 0"
        assert all(store.query(one.sql).column(0)[0].as_py() == one.value for one in said)


def test_a_link_that_is_slow_in_parts_of_windows_shows_in_their_means(tmp_path: Path) -> None:
    """Sixteen steps that fill no window of ten: the least transfer of each is as ever."""
    fault = "degraded-nic:host=5:bandwidth=0.15:steps=32-47"
    with simulated(
        tmp_path / "store", fault, recording=ROLLUPS, layout={"pp": 2, "dp": 16, "tp": 2}, steps=80
    ) as store:
        (culprit,) = network_of(store).culprits
        assert (culprit.kind, culprit.hosts, culprit.steps) == (CulpritKind.HOST, ("node0005",), (30, 49))
        assert "a bound of the mean" in culprit.evidence[0].statement
        for one in culprit.evidence[:-1]:
            assert one.value == pytest.approx(store.query(one.sql).column(0)[0].as_py())
