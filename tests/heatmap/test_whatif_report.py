"""What-if in the verdict's object and in its report: the sentence, the table, and when there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from megascope.heatmap.report import render
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Outcome, StragglerVerdict, to_json
from megascope.heatmap.whatif.result import WhatIf
from megascope.heatmap.whatif.words import sentence, share_words
from megascope.trainer.simulator.faults import parse_fault
from support.small_job import ALL, COSTS, job_of, open_simulated

EVEN = replace(COSTS, gc_ns=0.0, gc_every_steps=0, checkpoint_ns=0.0, checkpoint_every_steps=0)


def test_under_a_healthy_verdict_there_is_one_line_and_no_table(tmp_path: Path) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=EVEN, steps=40), ALL)
    with store:
        verdict = find_stragglers(store, attempt)
    assert verdict.whatif is not None
    text = printed(replace(verdict, verdict=Outcome.HEALTHY, culprits=()))
    assert "Part of the difference is how the stages share the work." in text
    assert "if it were at its ideal" not in text
    assert "if it were at its ideal" in printed(replace(verdict, verdict=Outcome.INSUFFICIENT, culprits=()))


def printed(verdict: StragglerVerdict) -> str:
    console = Console(width=140, record=True, file=None)
    with console.capture() as captured:
        console.print(render(verdict))
    return " ".join(captured.get().split())


def test_shares_in_words() -> None:
    assert [share_words(one) for one in (1.22, 1.0, 0.4, 0.001, -0.002, -0.2)] == [
        "all of it and more", "100%", "40%", "nothing", "nothing", "nothing",
    ]  # fmt: skip
    found = WhatIf(1.2, 0.5, 1.3, (0, 9), 10, 1.0, 1.0, 0.8, workers=8, slowest=1)
    assert "the slowest 1 of 8 workers (a worker is one stage of one replica)" in sentence(found)
    assert "the last stage all of it and more" in sentence(found)


def test_verdict_and_report_carry_the_ratios(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"layout": {"pp": 2, "dp": 4}, "chunks": 1, "costs": EVEN, "steps": 40}
    store, attempt = open_simulated(
        tmp_path / "store", job_of(**shape), ALL, faults=[parse_fault("slow-gpu:rank=3:factor=1.5")]
    )
    with store:
        verdict = find_stragglers(store, attempt)
    assert [culprit.ranks for culprit in verdict.culprits] == [(3,)]
    assert verdict.whatif is not None
    assert verdict.slowdown is not None
    assert 1.1 < verdict.slowdown < 1.5
    value = to_json(verdict)
    assert value["slowdown"] == value["whatif"]["slowdown"] == verdict.slowdown
    assert value["m_w"] == pytest.approx(1, abs=0.1)
    assert value["whatif"]["contributions"][0]["name"] == "3"
    assert not any(one["signal"] == "what-if" for one in value["abstained"])
    text = printed(verdict)
    assert f"the job would run x{verdict.whatif.slowdown:.2f} as fast" in text
    assert "rank 3" in text
