"""The launcher: exit codes, signals, and no process left over."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from megascope.profiler.errors import UsageError
from megascope.trainer.config import DataConfig, RecordConfig, TrainConfig
from megascope.trainer.launch import launch, train
from megascope.trainer.worker import place_from_environment
from support.forkrun import fork_ranks
from support.training import small_config


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def config_in(folder: Path, *, steps: int = 3, fault: tuple[str, ...] = ()) -> TrainConfig:
    record = RecordConfig(run="run", attempt=2, spool=folder / "spool")
    return replace(small_config(dp=2, steps=steps, fault=fault), record=record)


@pytest.mark.timeout(60)
def test_a_job_runs_to_its_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(config_in(tmp_path), 2, environment={}) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1/3", "step 2/3", "step 3/3"]
    assert "tokens/s  MFU n/a  grad norm" in lines[0]
    assert sorted(path.name for path in (tmp_path / "spool" / "run" / "2").glob("*.box")) == [
        "rank-00000.box",
        "rank-00001.box",
    ]


@pytest.mark.timeout(60)
def test_one_rank_that_is_killed_ends_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = launch(config_in(tmp_path, steps=1000, fault=("kill rank=1 step=3",)), 2, environment={})
    assert code in (128 + signal.SIGKILL, 1)  # the other rank may report the broken connection first
    assert "all ranks are ended" in capfd.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all(tmp_path: Path, number: signal.Signals) -> None:
    def send_when_training() -> None:
        boxes = tmp_path / "spool" / "run" / "2"
        while len(list(boxes.glob("*.box"))) < 2:
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send_when_training)
    sender.start()
    assert launch(config_in(tmp_path, steps=100_000), 2, environment={}) == 128 + number
    sender.join()


@pytest.mark.timeout(60)
def test_ranks_die_with_their_launcher(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forking beside threads
        launcher = os.fork()
    if launcher == 0:
        try:
            launch(config_in(tmp_path, steps=100_000), 2, environment={})
        finally:
            os._exit(1)
    while len(list((tmp_path / "spool" / "run" / "2").glob("*.box"))) < 2:
        time.sleep(0.02)
    ranks = psutil.Process(launcher).children()
    assert len(ranks) == 2
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert alive == []


def test_an_error_of_a_rank_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = replace(config_in(tmp_path), data=DataConfig(text=tmp_path / "none.txt"))
    assert launch(config, 2, environment={}) == 1
    errors = capfd.readouterr().err
    assert f"Cannot read the text {tmp_path / 'none.txt'}: No such file or directory. Check the path." in errors
    assert "Traceback" not in errors


def test_a_wrong_layout_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pp 1 x dp 2 x tp 1 = 2, but 3 processes were started"):
        launch(config_in(tmp_path), 3, environment={})


@pytest.mark.timeout(60)
def test_under_another_launcher_the_same_call_runs_one_rank(tmp_path: Path) -> None:
    """As torchrun starts it: the rank and the rendezvous are in the environment, and no group exists yet."""
    import torch.distributed as dist

    port = _free_port()

    def work() -> int:
        dist.destroy_process_group()
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_WORLD_SIZE="2")
        return train(config_in(tmp_path))

    outcomes = fork_ranks(2, work)
    assert [outcome.value for outcome in outcomes] == [0, 0]


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_place_is_read_from_the_environment() -> None:
    assert place_from_environment({}) is None
    place = place_from_environment({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (3, 8, 1, 2)
    with pytest.raises(UsageError, match="is not a number"):
        place_from_environment({"RANK": "three", "WORLD_SIZE": "8"})
