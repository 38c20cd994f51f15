"""The pages Health and Incidents: in a browser once, and their parts without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from megascope.cli import main
from megascope.collectors.hardware.report import GpuHealth, HealthReport, HostHealth, PortHealth
from megascope.collectors.reading.store import Store
from megascope.dashboards.health_history import BINS, lines_of_gpus, lines_of_hosts
from megascope.dashboards.incident_data import incidents_of_run
from megascope.dashboards.pages import PAGES, health
from megascope.dashboards.server import background_server
from megascope.dashboards.sparkline import sparkline
from megascope.dashboards.view import View, parse_view
from megascope.dashboards.workbench import Workbench
from support.hardware_store import Trouble, add_hardware, device_of
from support.incident_store import add_incidents
from support.page_checks import visit
from support.synthetic_store import SyntheticJob, write_synthetic_store

WRONG = SyntheticJob(steps=6, ranks_per_host=2)
CALM = SyntheticJob(steps=6, ranks_per_host=2, run="calm", first_ns=WRONG.first_ns - 10**14)
MINUTE = 60 * 10**9
TROUBLE = Trouble(hot_rank=5, ecc_rank=3, errors_host="node0003", down_host="node0000", lost_rank=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The newest run has trouble with its hardware, and incidents; run ``calm`` has neither, nor samples."""
    root = tmp_path_factory.mktemp("health") / "store"
    write_synthetic_store(root, CALM)
    write_synthetic_store(root, WRONG)
    add_hardware(root, WRONG, TROUBLE, after_ns=MINUTE)
    add_incidents(root, WRONG)
    return root


@pytest.fixture(scope="module")
def bench(root: Path) -> Iterator[Workbench]:
    """Pages that wait for their first result, however busy the machine is."""
    store = Store(root)
    bench = Workbench(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "FIRST_WAIT_S", 60.0)
        yield bench
    bench.close()
    store.close()


def text_of(rendered: Any) -> str:
    """Everything that a page shows, as JSON."""
    return json.dumps([rendered.banner, rendered.children], default=lambda one: one.to_plotly_json())


@pytest.mark.timeout(120)
def test_both_pages_in_a_browser(browser: Browser, root: Path) -> None:
    with background_server(root) as server, visit(browser, server.url, dark=True) as seen:
        page = seen.go("/health")
        page.wait_for_selector("#hosts")
        rows = page.locator("#hosts tbody tr")
        assert rows.count() == 4
        assert "3 of 4 machines in trouble" in page.inner_text(".banner")
        assert "node0003" in rows.last.inner_text()
        assert "100" in rows.last.inner_text()
        lines = page.locator("#hosts .sparkline")
        assert lines.count() == 4
        assert lines.first.evaluate("e => getComputedStyle(e).maskImage").startswith('url("data:image/svg+xml')
        page.click("#hosts a:has-text('node0002')")
        page.wait_for_selector("#opened:has-text('node0002')")
        assert "host=node0002" in page.url
        assert "1,215 of 1,980 MHz" in page.inner_text("#gpus")
        assert "thermal slowdown by hardware" in page.inner_text("#gpus")
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        page.reload()
        page.wait_for_selector("#opened:has-text('node0002')")

        page.click("#nav-incidents")
        page.wait_for_selector("#incidents")
        assert page.locator("#incidents tbody tr").count() == 4
        assert "fenced" in page.inner_text("#actions")
        page.locator("#incidents a").last.click()
        page.wait_for_selector("#opened:has-text('stalled')")
        assert "rank 5 has been in forward for 41 s" in page.inner_text("#evidence")
        assert "forward (model.py:10)" in page.inner_text("#actions")
        assert page.locator("#next li").all_inner_texts() == ["look for Xid errors on node0002", "fence node0002"]
        assert page.is_visible("#next li")
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        page.click("text=health of the host")
        page.wait_for_selector("#opened:has-text('node0002')")
        seen.check_clean()


def test_lost_gpus_and_what_is_not_sampled_are_told(bench: Workbench) -> None:
    shown = text_of(PAGES["/health"].body(View(host="node0000"), bench))
    assert "did not answer within 5 s" in shown
    assert "1 of them without a value" in shown
    assert "The kernel's log is not read" in shown
    assert "There is no host nowhere" in text_of(PAGES["/health"].body(View(host="nowhere"), bench))
    assert "No host has that in its name." in text_of(PAGES["/health"].body(View(find="nothing"), bench))


def test_a_run_without_samples_and_incidents_is_not_called_well(bench: Workbench) -> None:
    shown = text_of(PAGES["/health"].body(View(run="calm"), bench))
    assert "NOT SAMPLED" in shown
    assert "the GPUs of 4 are not sampled" in shown
    assert "NONE NOTED" in text_of(PAGES["/incidents"].body(View(run="calm"), bench))


@pytest.mark.parametrize(
    ("gpus", "word"),
    [
        ([{"temperature_celsius": 50.0, "power_watts": None}] * 2, "NOTHING WRONG"),
        ([{"temperature_celsius": 50.0}, None], "NOT ALL SAMPLED"),
        ([{"temperature_celsius": 50.0}, {"temperature_celsius": None}], "NOT ALL SAMPLED"),
        ([{"temperature_celsius": None}, None], "NOT SAMPLED"),
        ([], "NOT SAMPLED"),
    ],
)
def test_nothing_is_wrong_only_where_all_gpus_are_known(gpus: list[dict[str, float | None] | None], word: str) -> None:
    found = [() if values is None else (GpuHealth("GPU-1", (0,), values, (), None, {}),) for values in gpus]
    hosts = tuple(HostHealth(f"h{at}", (at,), 1.0, {}, 0, known, (), (), ()) for at, known in enumerate(found))
    assert f"'{word}'" in str(health._banner(HealthReport("r", 0, 1.0, 1, 600.0, hosts)))


def test_incidents_tell_what_happened_and_how_long_it_took(bench: Workbench) -> None:
    found = {one.kind: one for one in incidents_of_run(bench.store, WRONG.run)}
    assert list(found) == ["recovery-hang", "rank-died", "sign-slow-rank", "stalled"]
    assert found["rank-died"].what.startswith("Rank 2 ended: RuntimeError: CUDA error")
    assert found["rank-died"].what.endswith("And 1 more.")
    assert found["stalled"].times == {"detection_s": 12.5, "diagnosis_s": 3.0}
    assert found["recovery-hang"].times["restart_s"] == 9.0
    assert found["sign-slow-rank"].what == "rank 5 takes 1.6 times the median step"
    assert "There is no incident x" in text_of(PAGES["/incidents"].body(View(incident="x"), bench))


def test_columns_of_errors_count_each_error_once_and_no_congestion() -> None:
    values = {"ecc_corrected_errors": 1.0, "ecc_corrected_errors_lifetime": 1.0}
    gpu = GpuHealth("GPU-1", (0,), values, (), 0.0, values)
    port = PortHealth("mlx5_0/1", {"rdma_link_up": 1.0}, {"rdma_cnp_sent": 2e6, "rdma_symbol_errors": 4.0})
    row = health._row(HostHealth("h", (0,), 1.0, {}, 0, (gpu,), (port,), (), ()), None, View())
    assert (row["ecc"], row["ports"]) == ("1", "4")
    blank = GpuHealth("GPU-1", (0,), {"ecc_corrected_errors_lifetime": 1.0}, (), 0.0, {})
    assert health._row(HostHealth("h", (0,), 1.0, {}, 0, (blank,), (), (), ()), None, View())["ecc"] is None


def test_what_is_not_sampled_has_an_end_on_the_page(bench: Workbench) -> None:
    many = HealthReport("r", 0, 1.0, 1, 600.0, (), {f"sentence {number}": ("a",) for number in range(1000)})
    shown = json.dumps(health._not_sampled(many), default=lambda one: one.to_plotly_json())
    assert shown.count("sentence ") == health.MOST_LEFT_OUT
    assert "970 more sentences" in shown


def test_lines_have_a_value_for_each_bin(bench: Workbench) -> None:
    attempt = bench.store.attempt()
    assert attempt.start_ns is not None
    end_ns = attempt.start_ns + MINUTE
    hosts = lines_of_hosts(bench.store, attempt, ["node0002", "node0003"], end_ns)
    assert max(value for value in hosts["node0002"] if value is not None) == 91
    assert len(hosts["node0003"]) <= BINS
    assert None not in hosts["node0003"]
    gpus = lines_of_gpus(bench.store, attempt, "node0002", end_ns)
    assert {device for device, _ in gpus} == {device_of(4), device_of(5)}
    assert lines_of_hosts(bench.store, attempt, [], end_ns) == {}


@pytest.mark.parametrize("values", [[], [None], [1.0], [1.0, None, 2.0], [float(i) for i in range(48)]])
def test_a_small_line_can_be_of_anything(values: list[float | None]) -> None:
    told = json.dumps(sparkline(values, "told", low=0, high=0), default=lambda one: one.to_plotly_json())
    shown = json.loads(told)["props"]
    assert shown["title"] == "told"
    assert "svg" in shown["style"]["maskImage"]


def test_hosts_and_incidents_stand_in_the_address() -> None:
    view = parse_view("?host=a%20b&incident=run%2F0%2Fx%2Fstalled%2F0")
    assert (view.host, view.incident) == ("a b", "run/0/x/stalled/0")
    assert parse_view(view.search()) == view


def test_the_verb_tells_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["host"] for one in found["hosts"]][-1] == "node0003"
    assert found["sentence"].startswith("3 of 4 machines in trouble")
    assert main(["health", str(root)]) == 0
    printed = capsys.readouterr().out
    assert "node0002: the GPU of rank 5 is held back" in " ".join(printed.split())
    assert main(["health", str(root / "none")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
