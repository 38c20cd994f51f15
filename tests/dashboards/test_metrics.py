"""What a server shows to Prometheus of its newest run: as the analysers say it, and without a query of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from megascope.collectors.reading.store import Store
from megascope.dashboards import metrics
from megascope.dashboards.app import create_app
from megascope.dashboards.metrics import state_of
from megascope.dashboards.metrics_families import ANALYSERS, SERVER_FAMILIES
from megascope.heatmap.stragglers import find_stragglers
from megascope.profiler.topology import Topology
from megascope.viz3d.hang import diagnose
from support.hang_now import looks
from support.hang_scenes import cascade
from support.hang_store import write_scene
from support.scraping import Scrape, has_both_verdicts, scrape, scraped_until

TOKEN = "a-token-that-is-long"
RUN = "synthetic"


@pytest.fixture(scope="module")
def client(slow_store: Path) -> Iterator[FlaskClient]:
    """A server over the slow store that has judged."""
    with Store(slow_store) as store:
        app = create_app(store)
        client = app.server.test_client()
        scraped_until(client, has_both_verdicts)
        yield client
        app.server.extensions["megascope"].close()


def test_the_newest_run_is_shown_as_the_analysers_judge_it(client: FlaskClient, slow_store: Path) -> None:
    found = scrape(client)
    with Store(slow_store) as store:
        slow, stuck = find_stragglers(store, store.attempt()), diagnose(store, store.attempt())
    for analyser, verdict in (("stragglers", slow.verdict), ("hang", stuck.verdict)):
        for name in ANALYSERS[analyser]:
            value = found.value("megascope_verdict", run=RUN, analyser=analyser, verdict=name)
            assert value == (name == str(verdict)), name
    assert found.value("megascope_culprits", run=RUN, analyser="stragglers") == len(slow.culprits) == 1
    (culprit,) = found.labels("megascope_culprit_confidence_ratio")
    assert (culprit["ranks"], culprit["kind"], culprit["hosts"]) == ("5", "rank", ", ".join(slow.culprits[0].hosts))
    assert found.value("megascope_culprit_confidence_ratio", **culprit) == slow.culprits[0].confidence
    assert found.value("megascope_job_active", run=RUN) == 0
    assert found.value("megascope_job_step", run=RUN) == 29
    assert found.value("megascope_job_ranks", run=RUN) == 8
    assert found.value("megascope_job_mfu_ratio", run=RUN) == pytest.approx(0.41)
    assert found.value("megascope_job_incidents_open", run=RUN, kind="stalled") == 0
    assert found.value("megascope_job_data_age_seconds", run=RUN) > 0


def test_incidents_and_a_hang_are_counted(stuck_store: Path) -> None:
    with Store(stuck_store) as store:
        app = create_app(store)
        found = scraped_until(app.server.test_client(), has_both_verdicts)
        app.server.extensions["megascope"].close()
        rows = store.query("SELECT kind FROM incidents WHERE closed_ns IS NULL", attempt=store.attempt()).to_pylist()
        stuck = diagnose(store, store.attempt())
    counted = sum(found.series["megascope_job_incidents_open"].values())
    assert counted == len(rows)
    assert found.value("megascope_victims", run=RUN) == stuck.victims > 0
    assert found.value("megascope_culprits", run=RUN, analyser="hang") == len(stuck.culprits) > 0


def test_an_incident_of_a_watch_is_no_supervisors(tmp_path: Path) -> None:
    same: dict[str, object] = {"opened_ns": 1, "closed_ns": None, "verdict": None, "actions": "[]"}
    kinds = ["watched", "recovery-death", "sign-memory", "stalled"]
    rows = [{**same, "incident": f"job/0/{kind}/0", "kind": kind} for kind in kinds]
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    with write_scene(tmp_path / "store", looks(scene), incidents=rows) as store:
        bench = create_app(store).server.extensions["megascope"]
        found = state_of(bench).incidents
        bench.close()
    assert found == {"rank-died": 0, "stalled": 1, "watched": 1, "supervisor": 2}


def test_a_scrape_runs_no_query(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = client.application.extensions["megascope"]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a scrape asked the store")

    monkeypatch.setattr(bench.store, "query", refuse)
    monkeypatch.setattr(bench, "latest", refuse)
    assert has_both_verdicts(scrape(client))


def test_newer_values_are_asked_for_after_a_while_and_no_earlier(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    bench = client.application.extensions["megascope"]
    latest = bench.latest

    def noting(key: object, *arguments: object, **keywords: object) -> object:
        asked.append(key)
        return latest(key, *arguments, **keywords)

    monkeypatch.setattr(bench, "latest", noting)
    scrape(client)
    assert asked == []
    monkeypatch.setitem(metrics.EVERY_S, "state", 0.0)
    monkeypatch.setattr(metrics, "REST", 0)
    scrape(client)
    assert asked == ["metrics"]


def test_a_failing_analysis_is_told_and_leaves_the_rest(slow_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    def is_told(found: Scrape) -> bool:
        return {"run": RUN, "analyser": "stragglers"} in found.labels("megascope_verdict_failed")

    monkeypatch.setattr("megascope.dashboards.verdicts.find_stragglers", fail)
    with Store(slow_store) as store:
        app = create_app(store)
        found = scraped_until(app.server.test_client(), is_told)
        app.server.extensions["megascope"].close()
    assert found.value("megascope_verdict_failed", run=RUN, analyser="stragglers") == 1
    assert not [one for one in found.labels("megascope_verdict") if one["analyser"] == "stragglers"]
    assert found.value("megascope_job_step", run=RUN) == 29


def test_requests_for_data_are_timed_by_route(client: FlaskClient) -> None:
    client.get("/data/curves")
    client.get("/data/curves?run=nobody")
    client.get("/data/nothing-here")
    found = scrape(client)
    assert found.value("megascope_server_query_seconds_count", route="/data/curves") == 2
    assert found.value("megascope_server_query_seconds_sum", route="/data/curves") > 0
    assert len(found.labels("megascope_server_query_seconds_count")) == 1


def test_the_token_is_taken_from_a_header(slow_store: Path) -> None:
    with Store(slow_store) as store:
        app = create_app(store, token=TOKEN)
        client = app.server.test_client()
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        app.server.extensions["megascope"].close()


def test_the_list_of_states_is_that_of_the_verdicts() -> None:
    assert "findings" in ANALYSERS["stragglers"]
    assert "hang" in ANALYSERS["hang"]
    assert all(name.startswith("megascope_") for name in SERVER_FAMILIES)
