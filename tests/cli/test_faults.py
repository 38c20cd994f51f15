"""Real trainings that die, stop or go astray: what was recorded is kept, and the right rank is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.cli import main
from megascope.collectors.reading.store import Store
from support.commands import finished, interrupt, started, wait_for

pytestmark = pytest.mark.alone

Ask = Callable[[], dict[str, Any] | None]

SMALL = """
[model]
layers = 4
width = 32
heads = 2
sequence = 32
[parallel]
tp = 2
pp = 2
dp = 2
[train]
steps = 1000000
batch = 8
microbatches = 2
log_every = 5
[data]
limit_bytes = 200000
[record]
run = "faulty"
store = "store"
"""


@pytest.fixture
def hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Asks `megascope hang` of the store; None while there is nothing to say.

    In this process: one of its own takes longer to start than to answer, from processors that the ranks need.
    """

    def ask() -> dict[str, Any] | None:
        capsys.readouterr()
        code = main(["hang", str(tmp_path / "store"), "--json"])
        return json.loads(capsys.readouterr().out) if code == 0 else None

    return ask


def config(folder: Path) -> str:
    path = folder / "small.toml"
    path.write_text(SMALL)
    return str(path)


def test_kill_9_of_a_rank_loses_nothing_and_is_named(tmp_path: Path, hang: Ask) -> None:
    done = finished(tmp_path, "train", config(tmp_path), "--fault", "kill rank=3 step=6 segment=backward")
    assert done.returncode == 128 + 9
    store = Store(tmp_path / "store")
    assert store.attempt().exit_reason == "crashed"
    spans = store.query("select max(spans) as n, max(lost_spans) as lost from heartbeats where rank = 3").to_pylist()[0]
    stored = store.query("select count(*) as n, max(step) as step from events where rank = 3").to_pylist()[0]
    assert stored["n"] >= spans["n"] > 0
    assert (stored["step"], spans["lost"]) == (6, 0)
    dying = store.query("select * from in_flight where rank = 3 order by begun_ns").to_pylist()
    assert dying[-1]["segment"] == "backward"  # before it stand the receives that were posted ahead
    assert {row["step"] for row in dying} == {6}
    assert store.query("select count(distinct rank) as n from in_flight").to_pylist()[0]["n"] > 1
    found = hang()
    assert found is not None
    assert found["verdict"] == "crashed"
    assert [(culprit["ranks"], culprit["kind"]) for culprit in found["culprits"]] == [([3], "dead")]


def hung(found: dict[str, Any] | None) -> dict[str, Any] | None:
    return found if found is not None and found["verdict"] == "hang" else None


def test_a_stopped_rank_is_named_while_all_others_wait(tmp_path: Path, hang: Ask) -> None:
    with started(tmp_path, "train", config(tmp_path), "--fault", "stop rank=6 segment=forward step=6") as child:
        found = wait_for(lambda: hung(hang()), 90, "the verdict")
        assert [(culprit["ranks"], culprit["kind"]) for culprit in found["culprits"]] == [([6], "host-stuck")]
        assert found["culprits"][0]["segment"] == "forward"
        assert (found["victims"], found["explained"], found["unexplained"]) == (7, 7, [])
        interrupt(child)
        assert child.wait(60) == 130


def test_a_skipped_collective_is_a_missing_call(tmp_path: Path, hang: Ask) -> None:
    fault = "skip-collective rank=5 segment=tp_all_gather step=6"
    with started(tmp_path, "train", config(tmp_path), "--fault", fault) as child:
        found = wait_for(lambda: hung(hang()), 90, "the verdict")
        assert [culprit["ranks"] for culprit in found["culprits"]] == [[5]]
        assert found["culprits"][0]["kind"] == "missing-call"
        interrupt(child)
        assert child.wait(60) == 130


def test_a_training_without_a_fault_is_running(tmp_path: Path, hang: Ask) -> None:
    def running() -> bool:
        found = hang()
        assert found is None or found["verdict"] in {"running", "inconclusive", "slow"}, found
        return found is not None and found["verdict"] == "running"

    with started(tmp_path, "train", config(tmp_path)) as child:
        wait_for(running, 90, "the verdict")
        interrupt(child)
        assert child.wait(60) == 130


def test_a_resumed_run_keeps_both_attempts(tmp_path: Path) -> None:
    arguments = ["train", config(tmp_path), "--checkpoint.folder", "checkpoints", "--checkpoint.every", "3"]
    killed = finished(tmp_path, *arguments, "--train.steps", "12", "--fault", "kill rank=0 step=7")
    assert killed.returncode == 128 + 9
    resumed = finished(tmp_path, *arguments, "--train.steps", "12")
    assert resumed.returncode == 0, resumed.stdout
    assert "resumed at step 6/12" in resumed.stdout
    attempts = Store(tmp_path / "store").attempts()
    assert [(one.run, one.attempt, one.exit_reason) for one in attempts] == [
        ("faulty", 0, "crashed"),
        ("faulty", 1, "finished"),
    ]
