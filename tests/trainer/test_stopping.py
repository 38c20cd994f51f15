"""A request to save and stop: seen by one rank alone, agreed upon by all, and at the same step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megascope.profiler.null import NullRecorder
from megascope.trainer.checkpoints.files import committed_steps
from megascope.trainer.config import CheckpointConfig
from megascope.trainer.loop import TrainResult
from megascope.trainer.stopping import CONTROL_VARIABLE, StopRequest
from megascope.trainer.supervisor.ranks import write_control
from megascope.trainer.worker import run_worker
from support.forkrun import run_ranks
from support.training import run_config, small_config


def test_a_request_is_seen_from_its_step_on(tmp_path: Path) -> None:
    path = tmp_path / "a.control"
    request = StopRequest({CONTROL_VARIABLE: str(path)})
    assert not request.is_seen(5)
    write_control(path, 7)
    assert [step for step in range(5, 10) if request.is_seen(step)] == [7, 8, 9]
    path.write_text("soon")
    assert not request.is_seen(7)
    assert not StopRequest({}).is_seen(7)
    assert StopRequest({}).settled_by(7) is None


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("early", [0, 1, 2])
def test_all_ranks_stop_after_the_same_step_however_early_they_know(tmp_path: Path, lag: int, early: int) -> None:
    """Two ranks had seen it in step 3. A rank knows what a step summed up by ``lag`` steps later at the latest."""
    request = StopRequest({CONTROL_VARIABLE: str(tmp_path / "a.control")}, lag=lag)
    known, stopped = 0, []
    for step in range(8):
        settled = request.settled_by(step)
        assert settled == step - lag
        while known <= max(settled, min(step, settled + early)):
            request.agree(known, 2.0 * (known >= 3))
            known += 1
        if request.is_due(step):
            stopped.append(step)
    assert stopped[0] == 3 + lag


@pytest.mark.timeout(60)
def test_a_request_that_only_one_rank_has_seen_stops_all_of_them_at_one_step(tmp_path: Path) -> None:
    """From four updates on it lies on the host of rank 1, and never on that of rank 0."""
    checkpoint = CheckpointConfig(folder=tmp_path / "checkpoints", every=0)
    config = small_config(dp=2, steps=8, checkpoint=checkpoint)

    def work() -> TrainResult:
        control = tmp_path / f"control-{os.environ['RANK']}"
        os.environ[CONTROL_VARIABLE] = str(control)
        if os.environ["RANK"] == "1":
            write_control(control, 4)
        return run_worker(config, NullRecorder())

    results = run_ranks(2, work)
    expected = run_config(small_config(steps=8))[0].losses
    assert [(one.stopped, len(one.losses)) for one in results] == [(True, 4)] * 2
    assert results[0].losses == pytest.approx(expected[:4], rel=1e-5)
    assert committed_steps(tmp_path / "checkpoints") == [4]
