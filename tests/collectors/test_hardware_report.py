"""What is read of hardware again: the report on machines, and evidence beside verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.hardware.evidence import hardware_evidence
from megascope.collectors.hardware.kernel_lines import Severity
from megascope.collectors.hardware.machine import machines_of
from megascope.collectors.hardware.news import MOST_NEWS, hardware_news
from megascope.collectors.hardware.report import HealthReport, health_report, sentence
from megascope.collectors.hardware.rules import of_gpu, of_host, of_port
from megascope.collectors.hardware.telling import AGAIN_S, Key
from megascope.collectors.reading.store import Store
from megascope.collectors.verdicts import Evidence, to_json
from megascope.collectors.writing.writer import TableWriter
from support.hardware_store import Trouble, add_hardware, device_of
from support.synthetic_store import SyntheticJob, write_synthetic_store

JOB = SyntheticJob(steps=12, ranks_per_host=2)
WRONG = Trouble(hot_rank=5, ecc_rank=3, errors_host="node0003", down_host="node0000", lost_rank=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run ``wrong`` has trouble on every host but the last but one's sound ranks; run ``sound`` has none."""
    root = tmp_path_factory.mktemp("hardware") / "store"
    for job, trouble in ((replace(JOB, run="sound"), Trouble(spare_ports=True)), (replace(JOB, run="wrong"), WRONG)):
        write_synthetic_store(root, job)
        add_hardware(root, job, trouble)
    write_synthetic_store(root, replace(JOB, run="none"))
    return root


@pytest.fixture(scope="module")
def store(root: Path) -> Iterator[Store]:
    with Store(root) as store:
        yield store


def report(store: Store, run: str) -> HealthReport:
    return health_report(store, store.attempt(run))


def test_sound_machines_have_no_remarks(store: Store) -> None:
    found = report(store, "sound")
    assert [one.host for one in found.hosts] == ["node0000", "node0001", "node0002", "node0003"]
    assert {(told.severity, told.text) for one in found.hosts for told in one.remarks} == {
        (Severity.NOTE, "mlx5_1/1 is not up")
    }
    assert sentence(found).startswith("Nothing wrong")
    gpu = found.hosts[0].gpus[1]
    assert (gpu.device, gpu.ranks, gpu.values["sm_clock_mhz"], gpu.throttled) == (device_of(1), (1,), 1755.0, ())
    assert found.hosts[0].ports[0].values["rdma_link_up"] == 1
    (text,) = found.not_sampled
    assert found.not_sampled[text] == ("node0000",)


def test_the_worst_machines_come_first_and_say_what_is_wrong(store: Store) -> None:
    found = report(store, "wrong")
    told = {one.host: {remark.text for remark in one.remarks} for one in found.hosts}
    assert found.hosts[-1].host == "node0003"
    assert {one.severity for one in found.hosts[:3]} == {Severity.ERROR}
    assert "the GPU of rank 5 is held back (thermal slowdown by hardware) in 50% of its samples" in told["node0002"]
    assert "the GPU of rank 5 is hot: 91 °C" in told["node0002"]
    assert "the GPU of rank 3 had 2 errors that ECC cannot correct" in told["node0001"]
    assert any(text.startswith("Xid 94") for text in told["node0001"])
    assert "mlx5_0/1 went down" in told["node0000"]
    assert told["node0003"] == {"mlx5_0/1 counted 100 errors (most: symbol errors)"}
    lost = next(gpu for host in found.hosts for gpu in host.gpus if gpu.device == device_of(0))
    assert lost.values["temperature_celsius"] is None


def test_the_report_is_json_without_nan(store: Store) -> None:
    text = json.dumps(to_json(report(store, "wrong")), allow_nan=False)
    assert json.loads(text)["hosts"][0]["gpus"][0]["values"]


def test_without_samples_the_hosts_are_there_and_nothing_is_said_of_them(store: Store) -> None:
    found = report(store, "none")
    assert [one.host for one in found.hosts] == [f"node000{index}" for index in range(4)]
    assert {(one.gpus, one.ports, one.remarks) for one in found.hosts} == {((), (), ())}


def _evidence(store: Store, run: str, ranks: tuple[int, ...], hosts: tuple[str, ...] = ()) -> tuple[Evidence, ...]:
    attempt = store.attempt(run)
    assert attempt.start_ns is not None
    return hardware_evidence(store, attempt, ranks, hosts, (attempt.start_ns, attempt.start_ns + 10**12))


@pytest.mark.parametrize(
    ("ranks", "hosts", "expected"),
    [
        ((5,), (), ["is held back (thermal slowdown by hardware) in 50%", "SM clock"]),
        ((3,), (), ["Xid 94", "2 memory errors that ECC cannot correct"]),
        ((4,), (), []),
        ((2,), (), []),
        ((), ("node0003",), ["counted 100 errors"]),
        ((6, 7), ("node0003",), ["counted 100 errors"]),
        ((0,), ("node0000",), ["Link down", "did not answer", "was down"]),
    ],
)
def test_evidence_of_the_accused(store: Store, ranks: Any, hosts: Any, expected: list[str]) -> None:
    found = _evidence(store, "wrong", ranks, hosts)
    statements = [one.statement for one in found]
    for text in expected:
        assert any(text in statement for statement in statements), statements
    assert bool(found) == bool(expected), statements
    for one in found:
        assert one.table in ("health", "hardware_events")
        (again,) = store.query(one.sql).column(0).to_pylist()
        assert again == pytest.approx(one.value)


@pytest.mark.parametrize("run", ["sound", "none"])
def test_there_is_no_evidence_where_nothing_is_wrong_or_known(store: Store, run: str) -> None:
    assert _evidence(store, run, tuple(range(2))) == ()


@pytest.mark.parametrize(("window_ns", "told"), [((80, 110), 3), ((96, 110), None), ((0, 200), 3), ((40, 70), None)])
def test_errors_of_a_counter_that_is_seldom_written_are_those_since_it_was_written_before(
    tmp_path: Path, window_ns: tuple[int, int], told: float | None
) -> None:
    """Counters at rest are written once a minute, and steps may take less."""
    rows = [("a", 0, 0.0), ("a", 60, 0.0), ("a", 95, 3.0), ("a", 155, 3.0), ("b", 0, 7.0), ("b", 60, 7.0)]
    second = 10**9
    with TableWriter(tmp_path, "w") as writer:
        writer.write("runs", "r", 0, {"world_size": [2], "start_ns": [1]})
        writer.write("ranks", "r", 0, {"rank": [0, 1], "host": ["a", "b"], "device": ["GPU-a", "GPU-b"]})
        columns = {
            "host": [host for host, *_ in rows], "device": [f"GPU-{host}" for host, *_ in rows],
            "moment_ns": [at * second for _, at, _ in rows], "metric": ["ecc_uncorrected_errors"] * len(rows),
            "value": [value for *_, value in rows],
        }  # fmt: skip
        writer.write("health", "r", 0, columns)
        writer.commit()
    with Store(tmp_path) as store:
        between = (window_ns[0] * second, window_ns[1] * second)
        found = hardware_evidence(store, store.attempt(), (0,), (), between)
        assert [one.value for one in found] == ([] if told is None else [told])
        assert [store.query(one.sql).column(0).to_pylist() for one in found] == [[one.value] for one in found]


def test_many_hosts_are_none_in_particular(store: Store) -> None:
    assert _evidence(store, "wrong", (3,)) != ()
    names = tuple(f"node000{index}" for index in range(4))
    assert _evidence(store, "wrong", (3,), (*names, "node0009")) == ()


def test_rules_say_nothing_of_what_is_not_known() -> None:
    assert list(of_gpu("it", {}, {}, None, None, {})) == []
    assert list(of_port("it", {}, {}, {}, 0.0)) == []
    assert list(of_host({}, None, 0)) == []


def test_rules_of_links_and_memory() -> None:
    last = {"pcie_width": 8.0, "pcie_width_max": 16.0, "nvlinks_up": 17.0, "nvlinks": 18.0, "remapping_pending": 1.0}
    usual = {"pcie_width": 16.0, "nvlinks_up": 18.0}
    texts = [one.text for one in of_gpu("it", last, {"ecc_corrected_errors": 400.0}, 0.05, 0x4, usual)]
    assert texts == [
        "it has 8 of 16 lanes of PCIe, the others 16",
        "it has 17 of 18 NVLinks up, the others 18",
        "it waits for a reset to remap a row of its memory",
        "it had 400 errors that ECC corrected",
    ]
    alike = {"pcie_width": 8.0, "nvlinks_up": 17.0}
    assert [one.text for one in of_gpu("it", last, {}, None, None, alike)] == texts[2:3]
    assert [one.severity for one in of_port("it", {"rdma_link_up": 0.0}, {}, {"rdma_link_up": 0.0}, 0.0)] == [
        Severity.NOTE
    ]
    errors = {"rdma_symbol_errors": 30.0}
    assert [len(list(of_port("it", {}, errors, {}, usual))) for usual in (0.0, 9.0, 10.0)] == [1, 1, 0]
    assert [one.text for one in of_host({"memory_percent": 97.0}, 20.0, 3)] == [
        "no heartbeat for 20 s", "memory is 97 % full", "3 spans were lost",
    ]  # fmt: skip


def test_hosts_of_several_runs_are_one_machine_by_their_gpus(store: Store) -> None:
    found = machines_of(store)
    assert {host for run, _, host in found if run == "wrong"} == {f"node000{index}" for index in range(4)}
    assert all(found["wrong", 0, f"node000{index}"] == found["sound", 0, f"node000{index}"] for index in range(4))
    assert len(set(found.values())) == 4


@pytest.mark.parametrize(("counts", "told"), [((5, 5), 0), ((0, 3), 3), ((9, 0), 0), ((9, 2), 2)])
def test_a_counter_that_began_anew_is_not_taken_for_errors(tmp_path: Path, counts: tuple[int, int], told: int) -> None:
    columns = {
        "host": ["a"] * 4, "device": ["GPU-1"] * 4, "moment_ns": [1000, 2000, 2000, 2000],
        "metric": ["ecc_uncorrected_errors", "ecc_uncorrected_errors", "temperature_celsius", "of_somebody_else"],
        "value": [float(counts[0]), float(counts[1]), 50.0, 1e300],
    }  # fmt: skip
    with TableWriter(tmp_path, "w") as writer:
        writer.write("runs", "r", 0, {"world_size": [1], "start_ns": [1]})
        writer.write("ranks", "r", 0, {"rank": [0], "host": ["a"], "local_rank": [0], "device": ["GPU-1"]})
        writer.write("health", "r", 0, columns)
        writer.commit()
    with Store(tmp_path) as store:
        attempt = store.attempt()
        (host,) = health_report(store, attempt).hosts
        assert host.gpus[0].counted.get("ecc_uncorrected_errors", 0) == told
        assert [one.value for one in hardware_evidence(store, attempt, (0,), (), (0, 3000))] == ([told] if told else [])


@pytest.mark.parametrize(
    ("up_at", "severity"), [(3000, Severity.WARNING), (1500, Severity.ERROR), (None, Severity.ERROR)]
)
def test_what_is_over_is_only_worth_a_look(tmp_path: Path, up_at: int | None, severity: Severity) -> None:
    rows = [("link-down", "error", 2000), *([("link-up", "note", up_at)] if up_at is not None else [])]
    columns: dict[str, list[Any]] = {
        "host": ["a"] * len(rows), "device": ["eth0"] * len(rows), "moment_ns": [moment for *_, moment in rows],
        "kind": [kind for kind, *_ in rows], "severity": [how for _, how, _ in rows], "text": ["a line"] * len(rows),
    }  # fmt: skip
    with TableWriter(tmp_path, "w") as writer:
        writer.write("runs", "r", 0, {"world_size": [1], "start_ns": [1]})
        writer.write("hardware_events", "r", 0, columns)
        writer.write("health", "r", 0, {"host": ["a"], "moment_ns": [4000], "metric": ["cpu_percent"], "value": [1.0]})
        writer.commit()
    with Store(tmp_path) as store:
        (host,) = health_report(store, store.attempt()).hosts
    assert [one.severity for one in host.remarks] == [severity]


def test_news_name_the_ranks_are_told_again_after_a_while_and_stay_few(tmp_path: Path) -> None:
    second, now = 10**9, 2_000_000_000 * 10**9
    rows = [("a", "GPU-0", now - 100 * second, "xid", 79), ("a", None, now - 7200 * second, "oom-kill", None)]
    rows += [("b", f"ens{port}", now - 50 * second, "link-down", None) for port in range(MOST_NEWS + 4)]
    with TableWriter(tmp_path, "test") as writer:
        writer.write("runs", "job", 0, {"world_size": [2]})
        writer.write("ranks", "job", 0, {"rank": [0, 1], "host": ["a", "b"], "device": ["GPU-0", "GPU-1"]}, axes=())
        events = dict(zip(("host", "device", "moment_ns", "kind", "code"), zip(*rows, strict=True), strict=True))
        same = {"severity": ["error"] * len(rows), "text": [f"{row[3]}." for row in rows]}
        writer.write("hardware_events", "job", 0, {name: list(values) for name, values in events.items()} | same)
        writer.commit()
    told: dict[Key, int] = {}
    with Store(tmp_path) as store:
        found = list(hardware_news(store, store.attempt(), told, now))
        assert [one.sentence for one in found[:2]] == ["a (rank 0): xid", "b: link-down"]
        assert found[0].alarm is not None
        assert (found[0].alarm.ranks, found[0].alarm.sentence) == ((0,), "a (rank 0): xid.")
        assert (len(found), found[-1].alarm, found[-1].sentence[:7]) == (MOST_NEWS + 1, None, "5 more ")
        assert list(hardware_news(store, store.attempt(), told, now + second)) == []
        told["a", "GPU-0", "xid", 79] -= int(AGAIN_S * 1e9)
        assert [one.sentence for one in hardware_news(store, store.attempt(), told, now)] == ["a (rank 0): xid"]
