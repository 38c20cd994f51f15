"""The alert rules by their values: they fire for what is wrong now, and not for sound hosts and jobs that are over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from megascope.collectors.reading.store import Store
from megascope.dashboards.app import create_app
from megascope.dashboards.grafana_files import FILES, FOLDER
from support.promql_value import Series, Vector, value
from support.scraping import Scrape, has_both_verdicts, scraped_until

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
RULES: Mapping[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / FILES[1]).read_text())["groups"]
    for rule in group["rules"]
}


def series(name: str, one: float, **labels: str) -> Series:
    return {name: {frozenset(labels.items()): one}}


def fired(alert: str, *history: tuple[float, Series], at_s: float | None = None) -> Vector:
    """What an alert finds at the last moment of a history."""
    return value(RULES[alert]["expr"], history, history[-1][0] if at_s is None else at_s)


def _scrape(root: Path) -> Series:
    with Store(root) as store:
        app = create_app(store)
        found: Scrape = scraped_until(app.server.test_client(), has_both_verdicts)
        app.server.extensions["megascope"].close()
    return found.series


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("which", "alert", "verdict"),
    [("slow_store", "MegascopeStraggler", "findings"), ("stuck_store", "MegascopeStuck", "hang")],
)
def test_a_verdict_alerts_while_the_job_lives_and_not_where_its_store_is_only_kept(
    request: pytest.FixtureRequest, which: str, alert: str, verdict: str
) -> None:
    kept = dict(_scrape(request.getfixturevalue(which)))
    assert any(one == 1 and ("verdict", verdict) in labels for labels, one in kept["megascope_verdict"].items())
    for each in ("MegascopeStuck", "MegascopeStraggler", "MegascopeDataOld"):
        assert fired(each, (0.0, kept)) == {}, each

    def with_job(age_s: float, active: float) -> Series:
        (run,) = {dict(labels)["run"] for labels in kept["megascope_verdict"]}
        job = {
            **series("megascope_job_data_age_seconds", age_s, run=run),
            **series("megascope_job_active", active, run=run),
        }
        return {**kept, **job}

    assert len(fired(alert, (0.0, with_job(30, 1)))) == 1
    assert fired(alert, (0.0, with_job(2 * HOUR, 1))) == {}
    assert len(fired(alert, (0.0, with_job(30, 0)))) == (alert == "MegascopeStuck")  # a crash ends the attempt


def test_a_port_is_down_only_where_it_was_up() -> None:
    up, down = (series("megascope_port_up", one, port="mlx5_0/1") for one in (1.0, 0.0))
    assert fired("MegascopeLinkDown", *((at * MINUTE, down) for at in range(60))) == {}
    assert fired("MegascopeLinkDown", (0, down), (60, up)) == {}
    assert len(fired("MegascopeLinkDown", (0, up), *((at * MINUTE, down) for at in range(1, 60)))) == 1
    assert fired("MegascopeLinkDown", (0, up), (2 * DAY, down)) == {}


@pytest.mark.parametrize(
    ("free", "disk", "fires"),
    [(60e6, 64e6, False), (2e6, 64e6, True), (0.5e9, 100e9, True), (40e9, 1e12, False), (0.9e9, 8e9, False)],
)
def test_a_spool_is_full_by_its_own_disk(free: float, disk: float, fires: bool) -> None:
    room = {**series("megascope_spool_free_bytes", free), **series("megascope_spool_disk_bytes", disk)}
    assert bool(fired("MegascopeSpoolDiskFull", (0.0, room))) is fires


def test_an_agent_is_stuck_only_after_some_time() -> None:
    assert fired("MegascopeAgentStuck", (0.0, series("megascope_agent_turn_age_seconds", 61.0)))
    assert fired("MegascopeAgentStuck", (0.0, series("megascope_agent_turn_age_seconds", 59.0))) == {}
    assert RULES["MegascopeAgentStuck"]["for"] == "2m"


def test_a_gpu_is_held_back_or_has_errors_as_long_as_it_is_so() -> None:
    def held(*values: float) -> Vector:
        history = [
            (at * MINUTE, series("megascope_device_throttled", one, device="G")) for at, one in enumerate(values)
        ]
        return fired("MegascopeGpuHeldBack", *history)

    assert held(*[0.0] * 8, 1.0, 1.0) == {}
    assert held(*[1.0] * 20)
    assert held(*[1.0] * 10, *[0.0] * 10) == {}

    def errors(*values: float | None) -> Vector:
        name = "megascope_device_xid_errors_total"
        history = [(at * MINUTE, {} if one is None else series(name, one, device="G")) for at, one in enumerate(values)]
        return fired("MegascopeGpuErrors", *history)

    assert errors(*[None] * 20) == {}
    assert errors(*[None] * 18, 1.0)  # a counter that appears
    assert errors(*[1.0] * 18, 2.0, 2.0)
    assert errors(*[2.0] * 20) == {}


def test_ranks_that_died_incidents_and_stores_alert_by_their_values() -> None:
    assert fired("MegascopeRankDied", (0.0, series("megascope_rank_alive", 0.0, run="r", rank="1")))
    assert fired("MegascopeRankDied", (0.0, series("megascope_rank_alive", 1.0, run="r", rank="1"))) == {}
    for name, one, fires in (("stalled", 1.0, True), ("stalled", 0.0, False), ("rank-died", 1.0, False)):
        found = series("megascope_incidents_open", one, run="r", kind=name)
        assert bool(fired("MegascopeStalled", (0.0, found))) is fires
    for one in (0.0, 1.0):
        found = series("megascope_store_writable", one, run="r")
        assert bool(fired("MegascopeStoreNotWritable", (0.0, found))) is (one == 0.0)
    for ratio in (1.1, 1.3):
        assert bool(fired("MegascopeRankSlow", (0.0, series("megascope_straggler_ratio", ratio)))) is (ratio > 1.2)
