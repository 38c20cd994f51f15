"""Behind a straggler verdict on the Overview: evidence with its SQL, what was not judged, what each part costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from dash.development.base_component import Component
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Attempt
from megascope.collectors.verdicts import Abstention, Evidence
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.contributions import what_if
from megascope.dashboards.evidence import LONGEST_ADDRESS, evidence_of, not_judged
from megascope.dashboards.server import background_server
from megascope.dashboards.verdicts import straggler_banner, stragglers_of
from megascope.dashboards.view import View, parse_view
from megascope.dashboards.workbench import Latest, Workbench
from megascope.heatmap.report import PRINTED
from megascope.heatmap.verdict import (
    Cause,
    Culprit,
    CulpritKind,
    Outcome,
    Pattern,
    Severity,
    StragglerVerdict,
)
from megascope.heatmap.whatif.result import Contribution, Part, WhatIf
from support.page_checks import Visit, visit, wait_judged, wait_painted
from support.synthetic_store import START_NS, Slow, SyntheticJob, write_synthetic_store

NUMBER = Evidence("rank 5 takes 60 ms", 60.0, 40.0, "events", "SELECT 60")
CULPRIT = Culprit(
    (5,), ("node0001",), 0.97, Severity.HIGH, CulpritKind.RANK, Cause.SLOW_COMPUTE, "forward", 1.5, (8, 29),
    Pattern.CHRONIC, 0.2, (NUMBER,),
)  # fmt: skip
VERDICT = StragglerVerdict("synthetic", 0, None, Outcome.FINDINGS, (CULPRIT,))


def links_in(parts: Sequence[Component]) -> list[str]:
    """Addresses of all links, in their order."""
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if "href" in value:
                found.append(value["href"])
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)

    look(json.loads(json.dumps(list(parts), default=lambda one: one.to_plotly_json())))
    return found


def test_every_number_of_the_real_verdict_can_be_asked_for_again(bench: Workbench, attempt: Attempt) -> None:
    verdict = stragglers_of(bench, attempt, wait_s=60).value
    assert verdict is not None
    (culprit,) = verdict.culprits
    assert culprit.evidence
    addresses = links_in(evidence_of(verdict, attempt))
    assert len(addresses) == len(culprit.evidence)
    for address, evidence in zip(addresses, culprit.evidence, strict=True):
        view = parse_view(urlsplit(address).query)
        assert urlsplit(address).path == "/sql"
        assert (view.run, view.attempt, view.q) == (attempt.run, attempt.attempt, evidence.sql)
        assert view.q is not None
        rows = run_sql(bench.store, view.q, attempt=attempt).table
        assert rows.column(0)[0].as_py() == pytest.approx(evidence.value)


def test_confidence_numbers_and_peers_stand_beside_each_other(attempt: Attempt) -> None:
    text = str(evidence_of(VERDICT, attempt))
    for part in ("97% sure", "severity high", "slow-compute", "rank 5 takes 60 ms", "60.00", "40.00", "1 number and"):
        assert part in text
    assert evidence_of(None, attempt) == evidence_of(replace(VERDICT, culprits=()), attempt) == []
    nothing = replace(NUMBER, peers=None, value=None)
    assert (
        str(evidence_of(replace(VERDICT, culprits=(replace(CULPRIT, evidence=(nothing,)),)), attempt)).count("'–'") == 2
    )
    without = replace(VERDICT, culprits=(replace(CULPRIT, evidence=()),))
    assert "Its numbers were not asked for" in str(evidence_of(without, attempt))


def test_of_a_hundred_findings_the_costliest_have_theirs_and_the_others_are_counted(attempt: Attempt) -> None:
    culprits = tuple(replace(CULPRIT, ranks=(rank,)) for rank in range(100))
    text = str(evidence_of(replace(VERDICT, culprits=culprits), attempt))
    assert text.count("97% sure") == PRINTED
    assert f"Evidence of 100 findings: {PRINTED} numbers" in text
    assert "80 more findings cost less" in text


def test_a_query_that_no_address_can_hold_is_told_where_it_is(attempt: Attempt) -> None:
    long = replace(NUMBER, sql="SELECT " + "1, " * LONGEST_ADDRESS + "1")
    shown = evidence_of(replace(VERDICT, culprits=(replace(CULPRIT, evidence=(NUMBER, long)),)), attempt)
    assert len(links_in(shown)) == 1
    assert "SQL in --json" in str(shown)


def test_what_was_not_judged_is_told_by_its_reason() -> None:
    kernels = [Abstention(f"kernel {number}", "too few spans") for number in range(5)]
    text = str(not_judged([*kernels, Abstention("network", "no clock")]))
    assert "Not judged (6)" in text
    assert "5 segments, such as kernel 0, kernel 1: too few spans" in text
    assert "network: no clock" in text
    many = str(not_judged([Abstention("a", f"reason {number}") for number in range(PRINTED + 3)]))
    assert "3 more reasons" in many
    assert not_judged([]) == []


@given(st.lists(st.tuples(st.text(), st.text()), max_size=30))
def test_no_signal_is_lost(pairs: list[tuple[str, str]]) -> None:
    abstained = [Abstention(signal, reason) for signal, reason in pairs]
    shown = json.dumps(not_judged(abstained), default=lambda one: one.to_plotly_json())
    told = {reason for _, reason in pairs}
    assert shown.count('"title"') == min(len(told), PRINTED)
    assert f"({len(abstained)})" in shown or not abstained


@pytest.mark.parametrize(
    ("verdict", "link"),
    [
        (VERDICT, "evidence"),
        (replace(VERDICT, culprits=(CULPRIT, CULPRIT)), "all 2 findings"),
        (StragglerVerdict("r", 0, None, Outcome.HEALTHY, abstained=(Abstention("network", "x"),)), "not judged"),
    ],
)
def test_other_pages_lead_to_it(
    bench: Workbench, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, verdict: StragglerVerdict, link: str
) -> None:
    latest = Latest(verdict, 0.0, None, stale=False, stamp="1")
    monkeypatch.setattr("megascope.dashboards.verdicts.stragglers_of", lambda *_, **__: latest)
    assert f"'{link}'" in str(straggler_banner(bench, attempt, View()).banner)
    assert f"'{link}'" not in str(straggler_banner(bench, attempt, View(), listed=True).banner)


PARTS = (
    *(Contribution(Part.RANK, str(rank), 0.9 - rank / 20, 0.1, 1.1) for rank in range(10)),
    Contribution(Part.HOST, "node/ü", 0.5, 0.05, 1.05),
    Contribution(Part.LINK, "3>7", 0.2, 0.02, 1.02),
    Contribution(Part.STAGE, "1", 0.3, 0.03, 1.03),
    Contribution(Part.SEGMENT, "forward", 1.2, 0.12, 1.12),
    Contribution(Part.SEGMENT, "backward", 0.001, -0.0001, 1.0),
)
WHATIF = WhatIf(1.25, 0.4, None, (0, 9), 10, 0.5, 0.5, 0.4, workers=8, slowest=1, contributions=PARTS)


def test_what_each_part_costs_leads_to_where_it_is_seen(attempt: Attempt) -> None:
    shown = what_if(replace(VERDICT, whatif=WHATIF), attempt)
    addresses = [urlsplit(one) for one in links_in(shown)]
    where = [(one.path, parse_qs(one.query)) for one in addresses]
    job = {"run": ["synthetic"], "attempt": ["0"]}
    assert len(where) == 8 + 4
    assert [path for path, _ in where[:8]] == ["/timeline"] * 8
    assert where[8] == ("/health", {**job, "host": ["node/ü"]})
    assert where[9] == ("/timeline", {**job, "rank": ["3"], "ranks": ["3,7"]})
    assert where[10] == ("/heatmap", {**job, "show": ["value"], "group": ["pp"]})
    assert where[11] == ("/heatmap", {**job, "segment": ["forward"]})
    text = str(shown)
    for part in (
        "Cost less: 2 ranks",
        "Recover less than 0.5% each: 1 segment.",
        "all of it and more",
        "x1.120",
        "12.0%",
    ):
        assert part in text
    for address in addresses:
        parse_view(address.query)


def test_ranks_of_which_nothing_was_computed_are_counted(attempt: Attempt) -> None:
    shown = str(what_if(replace(VERDICT, whatif=replace(WHATIF, unlisted_ranks=12_272)), attempt))
    assert "Not computed, for they cost less: 12,272 ranks." in shown
    assert "Not computed" not in str(what_if(replace(VERDICT, whatif=WHATIF), attempt))


def test_without_parts_there_is_the_sentence_alone(attempt: Attempt) -> None:
    assert len(what_if(replace(VERDICT, whatif=replace(WHATIF, contributions=())), attempt)) == 1
    assert what_if(VERDICT, attempt) == []


@pytest.mark.timeout(120)
def test_a_person_unfolds_the_evidence_and_asks_again(slow_visit: Visit) -> None:
    page = slow_visit.go("/heatmap")
    wait_judged(page)
    page.click(".banner a:has-text('evidence')")
    wait_painted(page, "curves")
    wait_judged(page)
    assert not page.is_visible("#evidence table")
    page.click("#evidence summary")
    assert "rank 5 takes" in page.inner_text("#evidence table")
    number = page.inner_text("#evidence tbody tr:first-child td:nth-child(2)")
    page.click("#not-judged summary")
    assert page.locator("#not-judged li").count() >= 1
    page.click("#evidence tbody tr:first-child a")
    page.wait_for_selector("#sql-result")
    assert float(page.inner_text("#sql-result tbody td")) == pytest.approx(float(number), rel=1e-3)
    slow_visit.check_clean()


@pytest.mark.timeout(120)
def test_what_is_unfolded_stays_so_while_data_comes(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_synthetic_store(root, SyntheticJob(steps=30, slow=Slow(5, 1.5, 8)))
    with background_server(root) as server, visit(browser, server.url) as seen:
        page = seen.go("/")
        wait_judged(page)
        for name in ("#evidence", "#not-judged"):
            page.click(f"{name} summary")
        source = page.get_attribute("#widget-curves", "data-source")
        beat = {"rank": [0], "moment_ns": [START_NS + 10**12], "step": [30], "process_state": ["running"]}
        with TableWriter(root, "later") as writer:
            writer.write("heartbeats", "synthetic", 0, beat)
            writer.commit()
        page.wait_for_function(
            "(source) => document.querySelector('#widget-curves').dataset.source !== source", arg=source
        )
        wait_judged(page)
        assert page.locator("details[open]").evaluate_all("all => all.map(one => one.id)") == ["evidence", "not-judged"]
        seen.check_clean()
