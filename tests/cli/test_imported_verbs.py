"""Every verb that takes a store, on runs imported from every kind of file there is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from megascope.cli import main
from support.imports import REAL_FILES, ImportedFile
from support.otlp_receiver import receiver

FEW_SPANS = 5_000

KINDS = ("trace-ST.parquet", "dlrm_kineto.tar.gz", "trace_filter", "h100.json", "1999618.out.gz", "deepspeed.log")
one_of_each_kind = pytest.mark.parametrize(
    "run", [one for one in REAL_FILES if one.path.endswith(KINDS)], ids=str, indirect=True
)


@dataclass(frozen=True, slots=True)
class Run:
    """An imported file, its store, and how verbs are asked about it; they must have nothing to complain of."""

    file: ImportedFile
    store: str
    capsys: pytest.CaptureFixture[str]

    def ask(self, *argv: str) -> dict[str, Any]:
        """The object that a verb prints."""
        found: dict[str, Any] = json.loads(self.say(*argv, "--json"))
        return found

    def say(self, *argv: str) -> str:
        """The text that a verb prints."""
        code = main(list(argv))
        captured = self.capsys.readouterr()
        assert (code, captured.err) == (0, ""), captured.err
        return captured.out

    def steps(self) -> tuple[int, int]:
        """The first and the last step with spans."""
        row = self.ask("sql", self.store, "SELECT min(step) AS first, max(step) AS last FROM spans")["rows"][0]
        return row[0], row[1]


@pytest.fixture(params=REAL_FILES, ids=str)
def run(
    request: pytest.FixtureRequest, imported_store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> Run:
    """Each file, imported once."""
    file: ImportedFile = request.param
    return Run(file, str(imported_store(file.path)), capsys)


def test_verdicts_of_every_file(run: Run) -> None:
    slow, stuck = run.ask("stragglers", run.store), run.ask("hang", run.store)
    assert slow["verdict"] == run.file.stragglers
    assert [one["ranks"] for one in slow["culprits"]] == run.file.accused
    assert bool(slow["abstained"]) or slow["verdict"] == "findings"
    assert (stuck["verdict"], stuck["culprits"]) == (run.file.hang, [])
    assert (slow["slowdown"] is None) == (run.file.slowdown is None)
    if run.file.slowdown is not None:
        assert slow["slowdown"] == pytest.approx(run.file.slowdown, rel=0.01)
    if run.file.spans <= FEW_SPANS:  # in words it is the same analysis once more
        assert run.say("stragglers", run.store)
    assert run.say("hang", run.store)


def test_reports_over_time_and_of_machines(run: Run) -> None:
    mfu, health = run.ask("mfu", run.store), run.ask("health", run.store)
    assert {mfu["run"], health["run"]} == {run.file.run}
    assert mfu["bins"] or mfu["abstained"]
    assert len(health["hosts"]) == run.file.ranks  # no file tells the hosts: each rank has one of its own
    fleet = run.ask("stragglers", run.store, "--fleet")
    assert (fleet["runs"], fleet["host_count"]) == (1, run.file.ranks)
    assert fleet["judged"] == (run.file.stragglers != "insufficient-evidence")
    if run.file.spans <= FEW_SPANS:
        assert run.say("mfu", run.store)
    assert run.say("health", run.store)


def test_spans_are_the_same_wherever_they_go(run: Run, tmp_path: Path) -> None:
    counted = "SELECT count(*), count(duration_ns) FROM spans WHERE step = (SELECT max(step) FROM spans)"
    assert run.ask("sql", run.store, "SELECT count(*) AS n FROM spans")["rows"] == [[run.file.spans]]
    last, (spans, measured) = run.steps()[1], run.ask("sql", run.store, counted)["rows"][0]
    out = tmp_path / "trace.json"
    run.say("timeline", run.store, "--steps", f"{last}:{last}", "--out", str(out))
    drawn = [event for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(drawn) == measured
    if spans <= FEW_SPANS:
        with receiver() as server:
            sent = run.ask("export", "otlp", run.store, "--steps", f"{last}:{last}", "--endpoint", server.url)
        assert sent["spans_rejected"] == 0
        assert sent["spans_sent"] >= measured


@one_of_each_kind
def test_questions_of_all_spans(run: Run) -> None:
    first, last = run.steps()
    windows = run.ask("batch", "rollups", run.store)["result"]
    assert windows["windows"] == windows["equal"] > 0
    assert run.ask("batch", "whatif", run.store)["result"]["slowdown"] == (
        None if run.file.slowdown is None else pytest.approx(run.file.slowdown, rel=0.01)
    )
    worst = [one["rank"] for one in run.ask("batch", "worst", run.store)["result"]]
    assert not worst or run.file.worst in (None, worst[0])
    assert isinstance(run.ask("batch", "align", run.store)["result"]["hosts"], list)
    if last > first:
        assert isinstance(run.ask("batch", "changed", run.store)["result"], dict)


@one_of_each_kind
def test_a_run_is_compared_with_another(run: Run, imported_store: Callable[[str], Path]) -> None:
    other = "superbench/megatron_deepspeed.log"
    options = ["--against", str(imported_store(other))]
    if run.file.path == other:
        options = ["--steps", "0:2", "--against-steps", "3:4"]
    found = run.ask("stragglers", run.store, *options)
    assert (found["now"]["run"], found["then"]["run"]) == (run.file.run, "megatron_deepspeed")
    assert found["verdict"] == "insufficient-evidence"


@one_of_each_kind
def test_a_store_that_is_tidied_up_says_the_same(run: Run, tmp_path: Path) -> None:
    store = str(shutil.copytree(run.store, tmp_path / "store"))
    report = run.ask("prune", store, "--grace", "0")
    assert report["damaged"] == report["problems"] == []
    after = run.ask("stragglers", store)
    assert (after["verdict"], [one["ranks"] for one in after["culprits"]]) == (run.file.stragglers, run.file.accused)
    assert run.ask("sql", store, "SELECT count(*) AS n FROM spans")["rows"] == [[run.file.spans]]


@one_of_each_kind
def test_the_store_is_watched_and_examined(run: Run) -> None:
    looked = run.ask("watch", run.store, "--once", "--no-keep")
    assert looked["changes"] == []  # what was recorded elsewhere goes on nowhere
    main(["doctor", run.store, "--json"])
    examined = json.loads(run.capsys.readouterr().out)["findings"]
    place = [one for one in examined if (one["area"], one["check"]) == ("store", "place")]
    assert [one["state"] for one in place] == ["ok"]
