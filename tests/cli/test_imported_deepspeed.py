"""Verbs and pages on a store that came from DeepSpeed's own log: with ranks that log, without dates, without spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megascope.cli import main
from megascope.collectors.reading.store import Store
from megascope.dashboards.binary import unpack
from megascope.dashboards.heat.data import choose
from megascope.dashboards.pages import PAGES
from megascope.dashboards.scene.data import scene_payload
from megascope.dashboards.spans.data import spans_payload
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench

DATED = "[2024-04-21 02:{:02}:{:02},500] [INFO] [logging.py:96:log_dist] [Rank {}] "


def timers(head: str, forward: float) -> str:
    return (
        f"{head}time (ms) | fwd: {forward:.2f} | bwd: 400.00 | bwd_inner: 390.00 | bwd_allreduce: 10.00 | step: 90.00\n"
    )


def two_ranks() -> str:
    text = ""
    for step in range(1, 31):
        for rank in (0, 1):
            head = DATED.format(step // 60, step % 60, rank)
            text += f"{head}step={step}, skipped=0, lr=[0.1], mom=[0.9]\n" + timers(head, 200.0 + 100 * rank)
    return text


def steps_alone() -> str:
    return "".join(DATED.format(n, 0, 0) + f"step={10 * n}, skipped=0, lr=[0.1], mom=[0.9]\n" for n in range(1, 6))


LOGS = {"ranks": two_ranks(), "undated": timers("[Rank 0] ", 200.0) * 20, "steps": steps_alone()}


@pytest.mark.parametrize("log", LOGS)
def test_verbs_and_pages_open(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*argv: str) -> dict[str, Any]:
        code = main([*argv, "--json"])
        told = capsys.readouterr()
        assert (code, told.err) == (0, ""), told.err
        found: dict[str, Any] = json.loads(told.out)
        return found

    path, store = tmp_path / "job.log", str(tmp_path / "store")
    path.write_text(LOGS[log])
    assert ask("import", str(path), "--to", store)["format"] == "deepspeed-log"
    slow, stuck = ask("stragglers", store), ask("hang", store)
    assert (slow["culprits"], stuck["culprits"], stuck["verdict"]) == ([], [], "inconclusive")
    assert slow["abstained"]
    assert ask("mfu", store)["run"] == "job"
    assert len(ask("health", store)["hosts"]) == (2 if log == "ranks" else 1)
    out = tmp_path / "trace.json"
    assert main(["timeline", store, "--out", str(out)]) == 0
    assert any(event["ph"] == "X" for event in json.loads(out.read_text())["traceEvents"])
    with Store(tmp_path / "store") as opened:
        bench = Workbench(opened)
        for page in PAGES.values():
            assert page.body(View(), bench).children is not None, page.name
        _, drawn = unpack(spans_payload(bench, opened.attempt(), View()))
        assert len(drawn["start"]) > 0
        assert scene_payload(bench, opened.attempt(), View())
        assert choose(View(), bench, opened.attempt())
        bench.close()
