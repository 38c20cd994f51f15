"""The counts and the table of a campaign of hangs: agents are counted apart from the judge, and nothing is left out."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.hang_table import summary, table


def result(case: str, *, fault: str = "stop", harms: bool = True, **more: Any) -> dict[str, Any]:
    expected = {"kinds": ["host-stuck"] if harms else [], "ranks": [[5]] if harms else []}
    return {"case": case, "fault": fault, "expected": expected, "right": True, "load_1min": 1.5, **more}


def agents(incident: str | None, opened: float | None, judged: float | None) -> dict[str, Any]:
    times = {"incident": incident, "seconds_to_incident": opened, "seconds_to_agent_verdict": judged}
    return times if judged is None else {**times, "told_by_agent": told("hang", 5)}


def told(verdict: str, *ranks: int) -> dict[str, Any]:
    return {"verdict": verdict, "culprits": [["host-stuck", [rank], "forward"] for rank in ranks]}


RESULTS = [
    result("tp2 pp2 dp2 none", fault="", harms=False, incident=None),
    result("tp2 pp2 dp2 slow", harms=False, right=False, incident="stalled"),
    result("tp2 pp2 dp2 stop", seconds_to_named=8.0, seconds_to_verdict=8.9, **agents("stalled", 6.4, 9.5)),
    result("tp2 pp2 dp2 data", seconds_to_named=9.0, seconds_to_verdict=18.0, **agents("stalled", 15.5, 19.0)),
    result("tp2 pp2 dp2 skip", seconds_to_named=9.0, seconds_to_verdict=9.1, **agents(None, None, None)),
    result("tp2 pp2 dp2 raise", seconds_to_named=1.0, seconds_to_verdict=1.4, **agents("rank-died", 0.2, None)),
    result("pp4 dp2 stop", right=False, **agents("stalled", 7.0, 11.0)),
]


def test_what_agents_did_not_notice_is_told() -> None:
    told = summary(RESULTS)
    assert (told["trials"], told["right"], told["with_fault"]) == (7, 5, 6)
    assert told["disturbed"] == ["tp2 pp2 dp2 slow"]
    assert told["judge"] == {"known": 4, "within_10_s": 3, "within_12_s": 3, "median": 9.0, "worst": 18.0}
    own = told["agents"]
    assert (own["ended_at_once"], own["stood_still"]) == (1, 4)
    assert own["without_incident"] == own["without_right_verdict"] == ["tp2 pp2 dp2 skip"]
    assert own["incident"] == {"known": 3, "within_10_s": 2, "within_12_s": 2, "median": 7.0, "worst": 15.5}
    assert own["verdict"] == {"known": 3, "within_10_s": 1, "within_12_s": 2, "median": 11.0, "worst": 19.0}


@pytest.mark.parametrize("other", [told("inconclusive"), told("inconclusive", 5), told("hang", 6), told("hang", 5, 6)])
def test_a_verdict_of_the_agents_that_is_not_firm_or_not_right_has_no_time(other: dict[str, Any]) -> None:
    own = summary([{**RESULTS[2], "told_by_agent": other}])["agents"]
    assert own["without_right_verdict"] == [RESULTS[2]["case"]]
    assert own["verdict"]["known"] == 0


def test_of_nothing_there_are_no_figures() -> None:
    assert summary([])["judge"] == {"known": 0, "within_10_s": 0, "within_12_s": 0, "median": None, "worst": None}


def test_a_trial_that_failed_is_counted_and_shown() -> None:
    failed = {"case": "tp2 pp2 dp2 kill", "right": False, "fault": "", "error": "the trial has failed"}
    assert summary([failed])["right"] == 0
    assert "wrong" in table([failed])


def test_the_table_has_judge_and_agents_side_by_side() -> None:
    lines = table(RESULTS).splitlines()
    assert lines[0].count("|") == lines[1].count("|") == 10
    assert "tp2 pp2 dp2: judge | tp2 pp2 dp2: incident | tp2 pp2 dp2: agents' verdict" in lines[0]
    assert lines[2:] == [
        "| none | nobody | none |  | 1.5 | not run |  |  |  |",
        "| slow | wrong | stalled |  | 1.5 | not run |  |  |  |",
        "| stop | 8.9 s (suspected 8.0 s) | 6.4 s | 9.5 s | 1.5 | not right | 7.0 s | 11.0 s | 1.5 |",
        "| data | 18.0 s (suspected 9.0 s) | 15.5 s | 19.0 s | 1.5 | not run |  |  |  |",
        "| skip | 9.1 s | none | none | 1.5 | not run |  |  |  |",
        "| raise | 1.4 s | 0.2 s (death) | none | 1.5 | not run |  |  |  |",
    ]
