"""The dashboard and the alert rules: every expression finds its series, its labels and its values in real scrapes."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from megascope.cli import main
from megascope.collectors.agent.agent import Agent, AgentSettings
from megascope.collectors.metrics import agent_metrics
from megascope.collectors.metrics.address import MetricsAddress
from megascope.collectors.metrics.agent_families import AGENT_FAMILIES
from megascope.collectors.metrics.hardware_gauges import SOURCES
from megascope.collectors.reading.store import Attempt, Store
from megascope.dashboards.app import create_app
from megascope.dashboards.grafana_files import FILES, FOLDER
from megascope.dashboards.metrics_families import SERVER_FAMILIES
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import StragglerVerdict
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support.collecting import collective
from support.promql import OF_PROMETHEUS, resolve
from support.scraping import Scrape, has_both_verdicts, scrape_page, scraped_until

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {"$run": ".*", "$__rate_interval": "5m"}
DASHBOARD, RULES = FILES


def _agent_page(folder: Path) -> str:
    """What an agent shows of two ranks, one of them in the middle of something, beside hardware of every kind."""
    recorders = []
    for rank in range(2):
        opened = open_recorder(RecorderSettings(run="job", attempt=0, rank=rank, world_size=2, spool=folder / "spool"))
        assert isinstance(opened, Recorder)
        recorders.append(opened)
        for step in range(3):
            opened.step(step)
            with opened.span(opened.segment("forward")):
                pass
            collective(opened, step + 1)
            opened.step_metrics(step, loss=2.0, tokens=64, mfu=0.4, grad_norm=1.0)
    open_span = recorders[0].begin(recorders[0].segment("load", SegmentKind.DATA))
    settings = AgentSettings(
        spool=folder / "spool", store=folder / "store", heartbeat_s=0.0, metrics=MetricsAddress("127.0.0.1", 0)
    )
    agent = Agent(settings, threading.Event())
    try:
        agent.poll(flush=True)
        values = {**dict.fromkeys(SOURCES, 1.0), "xid": 79.0}
        rows = [
            {"host": "h", "device": "d", "metric": name, "value": one, "flag": None} for name, one in values.items()
        ]
        cost = {"host": "h", "device": None, "metric": "recording_overhead_percent", "value": 0.5, "flag": None}
        agent.runs["job"].attempts[0].add_health([*rows, cost])
        agent.poll(flush=True)
        assert agent._metrics is not None
        assert agent._metrics.port is not None
        return scrape_page(agent._metrics.port)[1]
    finally:
        recorders[0].end(open_span)
        for opened in recorders:
            opened.close("finished")
        agent.close()


def _server_page(root: Path, patch: pytest.MonkeyPatch) -> Scrape:
    """What a server shows once both analysers have judged; the what-if of a store without a schedule is put in."""

    def with_slowdown(store: Store, attempt: Attempt, **keywords: Any) -> StragglerVerdict:
        return replace(find_stragglers(store, attempt, **keywords), slowdown=1.25)

    patch.setattr("megascope.dashboards.verdicts.find_stragglers", with_slowdown)
    with Store(root) as store:
        app = create_app(store)
        client = app.server.test_client()
        client.get("/data/curves")
        found = scraped_until(client, has_both_verdicts)
        app.server.extensions["megascope"].close()
    return found


@pytest.fixture(scope="module")
def everything(slow_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Scrape:
    """One scrape of an agent and one of a server together, as a Prometheus that has both sees them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_metrics, "SHOW_S", 0.0)
        agent = Scrape(_agent_page(tmp_path_factory.mktemp("agent")))
        found = _server_page(slow_store, patch)
    agent.series |= found.series
    return agent


def panels() -> list[dict[str, Any]]:
    return [one for one in json.loads((FOLDER / DASHBOARD).read_text())["panels"] if one["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((FOLDER / RULES).read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_every_panel_finds_what_it_asks_for(panel: dict[str, Any], everything: Scrape) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        asked = resolve(target["expr"], everything, VARIABLES)
        assert asked.problems == ()
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert named <= asked.labels | OF_PROMETHEUS, "the legend names labels that the result does not have"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_every_rule_finds_what_it_asks_for(rule: dict[str, Any], everything: Scrape) -> None:
    asked = resolve(rule["expr"], everything, {})
    assert asked.problems == ()
    told = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= asked.labels | OF_PROMETHEUS
    for query in re.findall(r'printf "(.*?)" \$labels', told):  # what an alert asks to name the culprits
        inner = resolve(query.replace('\\"', '"').replace("%q", '"synthetic"'), everything, {})
        assert [one for one in inner.problems if not one.startswith("no series fits")] == []  # nobody is stuck there
        assert set(re.findall(r" \.Labels\.(\w+)", told)) <= inner.labels


def test_every_metric_of_the_lists_is_shown(everything: Scrape) -> None:
    families = [*AGENT_FAMILIES.values(), *SERVER_FAMILIES.values()]
    missing = [name for family in families for name in family.series_names if name not in everything.names()]
    assert missing == []
    listed = {name for family in families for name in family.series_names}
    assert everything.names() - listed == set()


def test_names_follow_the_rules_of_prometheus() -> None:
    for family in [*AGENT_FAMILIES.values(), *SERVER_FAMILIES.values()]:
        assert re.fullmatch(r"megascope(_[a-z0-9]+)+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert not re.search(r"_(ms|ns|percent|mhz|mib|gb|minutes|kb)(_|$)", family.name)
        assert family.doc.endswith(".")


def test_a_wrong_expression_is_noticed(everything: Scrape) -> None:
    for wrong in (
        "megascope_no_such_metric",
        'megascope_step{runn="job"}',
        'megascope_verdict{verdict="stuck"}',
        "sum by (stage) (megascope_step)",
        "megascope_step / on (stage) group_left () megascope_attempt",
    ):
        assert resolve(wrong, everything, {}).problems, wrong


def test_the_dashboard_fits_its_grid_and_asks_the_chosen_source() -> None:
    dashboard = json.loads((FOLDER / DASHBOARD).read_text())
    every = dashboard["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "run"]


def test_the_verb_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "monitoring"
    assert main(["export", "grafana", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": [str(folder / name) for name in FILES]}
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert (folder / DASHBOARD).read_bytes() == (FOLDER / DASHBOARD).read_bytes()
    (tmp_path / "file").write_text("")
    assert main(["export", "grafana", str(tmp_path / "file")]) == 1
    assert "give another folder" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed here")
def test_promtool_takes_the_rules() -> None:
    command = ["promtool", "check", "rules", str(FOLDER / RULES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_of_metrics_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("render_metrics", ROOT / "docs" / "render_metrics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text()
    assert text == module.render(text), "run: python docs/render_metrics.py"
