"""What an agent shows to Prometheus, scraped over HTTP: what its ranks did, within its bounds, behind its door."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.cli import main
from megascope.collectors.agent.agent import Agent, AgentSettings
from megascope.collectors.metrics import agent_metrics, attempt_watch, endpoint, hardware_gauges
from megascope.collectors.metrics.address import MetricsAddress, metrics_address
from megascope.collectors.metrics.agent_families import AGENT_FAMILIES, MOST_RUNS
from megascope.collectors.metrics.agent_metrics import AgentMetrics
from megascope.collectors.metrics.endpoint import MOST_AT_ONCE, Endpoint
from megascope.collectors.metrics.family import Samples
from megascope.collectors.metrics.hardware_gauges import MOST_DEVICES, STALE_S, HardwareGauges
from megascope.collectors.metrics.job_totals import JobTotals
from megascope.collectors.metrics.rank_totals import RankTotals
from megascope.collectors.metrics.straggling import COMPARED_STEPS, straggler_ratios
from megascope.collectors.storage.quota import Quota
from megascope.profiler.errors import UsageError
from megascope.profiler.recorder import Recorder
from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import SegmentKind
from support.collecting import collective, drain_all
from support.scraping import Scrape, scrape_page

HERE = MetricsAddress("127.0.0.1", 0)
TOKEN = "a-token-that-is-long"

Open = Callable[..., Recorder]
Make = Callable[..., Agent]


@pytest.fixture(autouse=True)
def every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are taken at every turn, not at most once a second."""
    monkeypatch.setattr(agent_metrics, "SHOW_S", 0.0)


def port_of(agent: Agent) -> int:
    assert agent._metrics is not None
    port = agent._metrics.port
    assert port is not None
    return port


def scrape(agent: Agent) -> Scrape:
    status, body, _ = scrape_page(port_of(agent))
    assert status == 200
    return Scrape(body)


def steps(rank: Recorder, last: int, *, first: int = 0, work_s: float = 0.0) -> None:
    forward = rank.segment("forward")
    for step in range(first, last + 1):
        rank.step(step)
        with rank.span(forward):
            time.sleep(work_s)
        collective(rank, step + 1)
        rank.step_metrics(step, loss=3.0 - step, tokens=128, mfu=0.4)


def test_what_ranks_did_is_what_a_scrape_shows(recorder: Open, agent: Make, store_root: Path) -> None:
    ranks = [recorder(rank=rank, world_size=3) for rank in range(3)]
    for rank, one in enumerate(ranks):
        one.topology(Topology.of(pp=1, dp=3), rank)
        steps(one, 4, work_s=0.02 if rank == 2 else 0.002)
    watched = agent(metrics=HERE)
    watched.poll()
    watched.poll(flush=True)
    found = scrape(watched)
    for rank in range(3):
        where = {"run": "run", "rank": str(rank)}
        assert found.value("megascope_step", **where) == 4
        assert found.value("megascope_step_seconds_count", **where) == 4
        assert found.value("megascope_step_seconds_sum", **where) >= 4 * (0.02 if rank == 2 else 0.002)
        assert found.value("megascope_spans_total", **where) == 10
        assert found.value("megascope_rank_alive", **where) == 1
        assert 0 <= found.value("megascope_heartbeat_age_seconds", **where) < 60
        assert found.value("megascope_exposed_wait_seconds_total", **where) > 0
        assert found.value("megascope_lost_spans_total", **where, reason="overwritten") == 0
    assert found.value("megascope_work_seconds_total", run="run", rank="2", stage="0") >= 5 * 0.02
    assert found.value("megascope_straggler_ratio", run="run", rank="2", stage="0") > 1.5
    assert found.value("megascope_tokens_total", run="run") == 4 * 128  # those of the last step come with its end
    assert found.value("megascope_mfu_ratio", run="run") == 0.4
    assert found.value("megascope_loss", run="run") == 3.0 - 3
    assert found.value("megascope_tokens_per_second", run="run") > 0
    assert found.value("megascope_local_ranks", run="run") == 3
    assert found.value("megascope_agent_turn_seconds_count") >= 1
    assert found.value("megascope_spool_bytes") > 0
    assert found.value("megascope_host_memory_used_ratio") < 1
    assert found.value("megascope_store_writable", run="run") == 1
    with pytest.raises(KeyError):  # nothing is in flight: no age, which 0 would claim
        found.value("megascope_in_flight_age_seconds", run="run", rank="0")


def test_spans_that_wait_for_a_commit_count_once(recorder: Open, agent: Make) -> None:
    rank = recorder()
    watched = agent(metrics=HERE, flush_s=1000.0)
    watched.poll()  # the first turn commits
    steps(rank, 3, work_s=0.01)
    watched.poll()
    work = scrape(watched).value("megascope_work_seconds_total", run="run", rank="0", stage="")
    assert scrape(watched).value("megascope_pending_spans", run="run") > 0
    watched.poll()
    found = scrape(watched)
    assert found.value("megascope_work_seconds_total", run="run", rank="0", stage="") == work >= 4 * 0.01
    watched.poll(flush=True)
    watched.poll()
    found = scrape(watched)
    assert found.value("megascope_work_seconds_total", run="run", rank="0", stage="") == work
    assert found.value("megascope_pending_spans", run="run") == 0


def test_a_store_that_cannot_be_written_is_told(recorder: Open, agent: Make, store_root: Path) -> None:
    store_root.write_text("a file where the store should be")
    steps(recorder(), 2)
    watched = agent(metrics=HERE)
    watched.poll(flush=True)
    assert scrape(watched).value("megascope_store_writable", run="run") == 0
    store_root.unlink()
    watched.poll(flush=True)
    watched.poll()
    assert scrape(watched).value("megascope_store_writable", run="run") == 1


def test_what_is_in_flight_has_an_age_and_an_end_leaves_the_run(recorder: Open, agent: Make) -> None:
    rank = recorder()
    watched = agent(metrics=HERE, heartbeat_s=0.0)
    rank.step(0)
    stuck = rank.begin(rank.segment("load", SegmentKind.DATA))
    time.sleep(0.05)
    watched.poll()
    found = scrape(watched)
    assert 0.05 <= found.value("megascope_in_flight_age_seconds", run="run", rank="0") < 60
    assert found.value("megascope_active", run="run") == 1
    rank.end(stuck)
    rank.close("finished")
    drain_all(watched)
    found = scrape(watched)
    assert found.value("megascope_active", run="run") == 0
    assert found.value("megascope_attempt", run="run") == 0
    assert "megascope_step" not in found.names()


def test_a_newer_attempt_takes_the_place_of_the_older(recorder: Open, agent: Make) -> None:
    watched = agent(metrics=HERE)
    first = recorder(attempt=0)
    steps(first, 2)
    watched.poll()
    first.close("interrupted")
    drain_all(watched)
    second = recorder(attempt=1)
    steps(second, 1)
    watched.poll()
    found = scrape(watched)
    assert found.value("megascope_attempt", run="run") == 1
    assert found.value("megascope_step", run="run", rank="0") == 1
    assert found.value("megascope_step_seconds_count", run="run", rank="0") == 1


def test_ranks_beyond_the_bound_are_counted_and_have_no_series(
    recorder: Open, agent: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_watch, "MOST_RANKS", 2)
    for rank in range(3):
        steps(recorder(rank=rank, world_size=3), 1)
    watched = agent(metrics=HERE)
    watched.poll()
    found = scrape(watched)
    assert found.value("megascope_hidden_ranks", run="run") == 1
    assert {labels["rank"] for labels in found.labels("megascope_step")} == {"0", "1"}


def test_of_too_many_runs_those_that_ended_first_are_left_out(tmp_path: Path) -> None:
    shown = agent_metrics.AgentMetrics(HERE, tmp_path)
    try:
        for number in range(MOST_RUNS + 4):
            shown.observe(f"run {number:02d}", 0)
            shown.show({}, Quota(tmp_path, 10**9))
        assert shown.port is not None
        found = Scrape(scrape_page(shown.port)[1])
    finally:
        shown.close()
    runs = {labels["run"] for labels in found.labels("megascope_active")}
    assert runs == {f"run {number:02d}" for number in range(4, MOST_RUNS + 4)}


def test_a_scrape_is_answered_while_a_turn_takes_long(recorder: Open, agent: Make) -> None:
    steps(recorder(), 1)
    watched = agent(metrics=HERE)
    watched.poll()
    hold, held = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> None:
        held.set()
        hold.wait(10)

    watched.flush = slow  # type: ignore[method-assign]
    turn = threading.Thread(target=lambda: watched.poll(flush=True))
    turn.start()
    try:
        assert held.wait(5)
        first, second = (scrape(watched).value("megascope_agent_turn_age_seconds") for _ in range(2))
        assert 0 <= first < second  # the age goes on growing, also where no turn ends
    finally:
        hold.set()
        turn.join()


def test_a_taken_port_is_tried_again(
    recorder: Open, agent: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_metrics, "RETRY_S", 0.0)
    steps(recorder(), 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        watched = agent(metrics=MetricsAddress("127.0.0.1", taken.getsockname()[1]))
        watched.poll()
        watched.poll()
        assert watched._metrics is not None
        assert watched._metrics.port is None
    watched.poll()
    assert scrape(watched).value("megascope_active", run="run") == 1
    assert sum("trying again" in line for line in caplog.messages) == 1


def test_only_who_is_meant_gets_an_answer(agent: Make) -> None:
    port = port_of(agent(metrics=HERE))
    assert scrape_page(port, path="/other")[0] == 404
    assert scrape_page(port, Host="evil.example:80")[0] == 403
    assert scrape_page(port, Host="[::1]:80")[0] == 200
    locked = port_of(agent(metrics=MetricsAddress("127.0.0.1", 0, TOKEN)))
    assert scrape_page(locked)[0] == 401
    assert scrape_page(locked, Authorization="Bearer wrong")[0] == 401
    assert scrape_page(locked, Authorization=f"Bearer {TOKEN}", Host="node7:9477")[0] == 200


def test_openmetrics_is_given_to_who_asks_for_it(agent: Make) -> None:
    port = port_of(agent(metrics=HERE))
    _, body, kind = scrape_page(port, Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_who_hangs_up_leaves_the_port_open(agent: Make) -> None:
    port = port_of(agent(metrics=HERE))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
    assert scrape_page(port)[0] == 200


@pytest.mark.parametrize(
    ("text", "token", "part"),
    [
        ("eighty", None, "is no [HOST:]PORT"),
        ("70000", None, "is no [HOST:]PORT"),
        ("127.0.0.1:", None, "is no [HOST:]PORT"),
        ("0.0.0.0:9477", None, "set $MEGASCOPE_METRICS_TOKEN"),
        ("[::]:9477", None, "set $MEGASCOPE_METRICS_TOKEN"),
        ("9477", "short", "at least 16"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(text: str, token: str | None, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        MetricsAddress.parse(text, token)
    assert part in str(caught.value)


def test_an_address_comes_from_the_option_or_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"MEGASCOPE_METRICS": "9477", "MEGASCOPE_METRICS_TOKEN": TOKEN}
    assert metrics_address(None, {}) is None
    assert metrics_address(None, environment) == MetricsAddress("127.0.0.1", 9477, TOKEN)
    assert metrics_address("[::1]:80", {}) == MetricsAddress("::1", 80)
    assert metrics_address("0.0.0.0:9478", environment) == MetricsAddress("0.0.0.0", 9478, TOKEN)
    assert TOKEN not in repr(metrics_address(None, environment))
    assert metrics_address(None, {"MEGASCOPE_METRICS": "nonsense"}) is None
    assert "$MEGASCOPE_METRICS is not used" in caplog.text


def test_the_option_is_checked_before_anything_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["collect", str(tmp_path / "spool"), "--store", str(tmp_path / "store"), "--metrics", "nonsense"]
    assert main(arguments) == 2
    assert "--metrics nonsense is no [HOST:]PORT" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_hardware_is_in_base_units_and_what_is_null_is_gone() -> None:
    gauges = HardwareGauges()

    def row(metric: str, value: float | None, device: str | None = "GPU-1") -> dict[str, object]:
        return {"metric": metric, "value": value, "device": device}

    def values() -> dict[str, dict[tuple[str, ...], float]]:
        samples = Samples(AGENT_FAMILIES)
        gauges.add_to(samples)
        return {family.name: {one.labels: one.value for one in found} for family, found in samples.families()}

    assert values() == {}
    gauges.take([
        row("sm_clock_mhz", 1980.0), row("utilization_percent", 50.0), row("clocks_event_reasons", 0x4),
        row("cpu_percent", 25.0, None), row("xid", 79.0), row("rdma_link_up", 1.0, "mlx5_0/1"),
        row("rdma_link_downed", 1.0, "mlx5_0/1"), row("rdma_link_downed", 2.0, "mlx5_0/1"), row("no such metric", 1.0),
    ])  # fmt: skip
    found = values()
    assert found["megascope_device_sm_clock_hertz"] == {("GPU-1",): 1.98e9}
    assert found["megascope_device_utilization_ratio"] == {("GPU-1",): 0.5}
    assert found["megascope_device_throttled"] == {("GPU-1",): 0.0}  # a power cap is common at full load
    assert found["megascope_host_cpu_ratio"] == {(): 0.25}
    assert found["megascope_device_xid_errors_total"] == {("GPU-1",): 1.0}
    assert found["megascope_port_up"] == {("mlx5_0/1",): 1.0}
    assert found["megascope_port_errors_total"] == {("mlx5_0/1", "link_downed"): 3.0}
    gauges.take(
        [row("sm_clock_mhz", None), row("clocks_event_reasons", 0x40), row("rdma_link_downed", None, "mlx5_0/1")]
    )
    found = values()
    assert "megascope_device_sm_clock_hertz" not in found
    assert found["megascope_device_throttled"] == {("GPU-1",): 1.0}
    assert found["megascope_port_errors_total"] == {("mlx5_0/1", "link_downed"): 3.0}
    gauges.take([row("power_watts", 700.0, f"GPU-{n:03d}") for n in range(MOST_DEVICES + 8)])
    assert (
        sum(len(labels) for name, labels in values().items() if name == "megascope_device_power_watts") <= MOST_DEVICES
    )


def test_a_value_that_is_not_told_any_more_goes_though_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges, now = HardwareGauges(), [0.0]
    monkeypatch.setattr(hardware_gauges, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def names() -> set[str]:
        samples = Samples(AGENT_FAMILIES)
        gauges.add_to(samples)
        return {family.name for family, _ in samples.families()}

    gauges.take([{"metric": "clocks_event_reasons", "device": "GPU-1", "value": 0x40}])
    gauges.take([{"metric": "network_errors", "device": None, "value": 1.0}])
    for now[0] in range(5, int(STALE_S) + 10, 5):
        gauges.take([{"metric": "cpu_percent", "device": None, "value": 3.0}])
        assert ("megascope_device_throttled" in names()) == (now[0] <= STALE_S)
    assert names() == {"megascope_host_cpu_ratio", "megascope_host_network_errors_total"}


def test_only_xids_that_speak_against_the_hardware_count() -> None:
    gauges, samples = HardwareGauges(), Samples(AGENT_FAMILIES)
    gauges.take([{"metric": "xid", "device": "GPU-1", "value": float(code)} for code in (13, 31, 43, 45, 79, 74)])
    gauges.take([{"metric": "xid", "device": "GPU-2", "value": 45.0}])
    gauges.add_to(samples)
    assert [(one.labels, one.value) for _, found in samples.families() for one in found] == [(("GPU-1",), 2.0)]


@pytest.mark.timeout(60)
def test_a_port_with_many_connections_closes_the_others_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody without a token holds more than a few sockets and threads of an agent."""
    monkeypatch.setattr(endpoint, "REQUEST_S", 600.0)
    monkeypatch.setattr(endpoint._Handler, "timeout", 600.0)
    served, before = Endpoint(HERE, lambda _: (b"x", "text/plain")), threading.active_count()
    held = [socket.create_connection(("127.0.0.1", served.port), timeout=20) for _ in range(MOST_AT_ONCE * 3)]
    try:
        assert [one.recv(1) for one in held[MOST_AT_ONCE:]] == [b""] * 2 * MOST_AT_ONCE
        assert threading.active_count() - before <= 2 * MOST_AT_ONCE  # a thread and its timer
        for one in held[:MOST_AT_ONCE]:
            one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert one.makefile("rb").read().startswith(b"HTTP/1.0 200 ")
        deadline = time.monotonic() + 20  # a thread ends a moment after its answer
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert scrape_page(served.port)[0] == 200
    finally:
        for one in held:
            one.close()
        served.close()


@pytest.mark.timeout(60)
def test_a_request_that_comes_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.1)
    monkeypatch.setattr(endpoint._Handler, "timeout", 600.0)
    served = Endpoint(HERE, lambda _: (b"x", "text/plain"))
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as one:
        one.sendall(b"GET")
        assert one.recv(100) == b""
    served.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError(24, "Too many open files")])
def test_a_thread_that_cannot_be_started_is_said_and_the_port_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    made: list[Any] = []

    class NoThread:
        def __init__(self, **given: Any) -> None:
            made.append(given["target"].__self__)

        def start(self) -> None:
            raise error

    monkeypatch.setattr(endpoint, "Thread", NoThread)
    metrics = AgentMetrics(MetricsAddress("127.0.0.1", 0), tmp_path)
    assert metrics.port is None
    assert "trying again" in caplog.text
    assert made[0].socket.fileno() == -1
    metrics.close()


def test_nobody_is_shown_an_agent_that_only_compacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = AgentSettings(spool=tmp_path / "spool", store=tmp_path / "store", idle_exit_s=0.0, metrics=HERE)
    (tmp_path / "spool").mkdir()
    agent, ports = Agent(settings, threading.Event()), []

    def compact(*_: object, **__: object) -> None:
        assert agent._metrics is not None
        ports.append(agent._metrics.port)

    assert port_of(agent)
    monkeypatch.setattr("megascope.collectors.agent.agent.compact_if_alone", compact)
    agent.run()
    agent.close()
    assert ports == [None]


def test_tokens_of_a_step_count_once_whoever_tells_them() -> None:
    job = JobTotals()
    for rank in range(3):
        job.add_step({"rank": rank, "step": 7, "tokens": 100, "duration_ns": 2 * 10**9})
    job.add_step({"rank": 0, "step": 8, "tokens": None, "duration_ns": 10**9})
    job.add_step({"rank": 0, "step": 8, "tokens": 50, "duration_ns": 10**9})
    samples = Samples(AGENT_FAMILIES)
    job.add_to(samples, "run")
    found = {family.name: [one.value for one in many] for family, many in samples.families()}
    assert found == {"megascope_tokens_total": [150.0], "megascope_tokens_per_second": [50.0]}


def test_a_step_that_is_told_again_counts_once() -> None:
    totals = RankTotals()
    totals.add_step({"step": 4, "duration_ns": None})
    totals.add_step({"step": 4, "duration_ns": 2 * 10**9})
    totals.add_step({"step": 4, "duration_ns": 2 * 10**9, "loss": 1.0})
    totals.add_step({"step": 5, "duration_ns": 10**9})
    assert (totals.steps, totals.steps_s, totals.last_step_s) == (2, 3.0, 1.0)


@given(
    st.dictionaries(st.integers(0, 6), st.integers(1, 1000), min_size=1, max_size=6),
    st.integers(1, 40),
    st.booleans(),
)
def test_the_ratio_is_that_of_peers_alone(work: dict[int, int], count: int, in_stages: bool) -> None:
    """Ranks that take the same time in every step: the ratio is theirs over the median of the others in the stage."""
    stages = {rank: rank % 2 if in_stages else None for rank in work}
    ratios = straggler_ratios({rank: dict.fromkeys(range(count), took) for rank, took in work.items()}, stages)
    for rank, took in work.items():
        others = sorted(work[one] for one in work if one != rank and stages[one] == stages[rank])
        if not others:
            assert rank not in ratios
            continue
        middle = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
        assert ratios[rank] == pytest.approx(took / middle)


def test_only_steps_that_all_have_are_compared() -> None:
    same = dict.fromkeys(range(10), 100)
    assert straggler_ratios({0: same, 1: {**same, 10: 10**6}}, {}) == {0: 1.0, 1: 1.0}
    assert straggler_ratios({0: {1: 5}, 1: {2: 5}}, {}) == {}
    old = {step: 1000 if step < 50 else 100 for step in range(50 + COMPARED_STEPS)}
    assert straggler_ratios({0: old, 1: dict.fromkeys(old, 100)}, {}) == {0: 1.0, 1: 1.0}


def test_a_sample_must_be_as_its_family_says() -> None:
    samples = Samples(AGENT_FAMILIES)
    with pytest.raises(KeyError):
        samples.add("megascope_nothing", 1.0)
    with pytest.raises(ValueError, match="has the labels"):
        samples.add("megascope_step", 1.0, "run")
    with pytest.raises(ValueError, match="is a summary"):
        samples.add("megascope_agent_turn_seconds", 1.0)
    samples.add("megascope_step", None, "run", 0)
    assert not list(samples.families())


def test_without_the_library_an_agent_works_and_says_so(
    recorder: Open, agent: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("agent_metrics", "exposition"):
        monkeypatch.delitem(sys.modules, f"megascope.collectors.metrics.{name}")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    steps(recorder(), 1)
    watched = agent(metrics=HERE)
    watched.poll(flush=True)
    assert watched._metrics is None
    assert "pip install 'megascope[metrics]'" in caplog.text


def test_closing_ends_the_port(agent: Make) -> None:
    watched = agent(metrics=HERE)
    port = port_of(watched)
    watched.close()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()
