"""The launcher: exit codes, signals, and no process left over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from megascope.profiler.box.box import BoxReader
from megascope.profiler.box.metadata import read_metadata
from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.exits import Exit, read_exits
from megascope.trainer.config import CheckpointConfig, DataConfig, RecordConfig, Tokenizer, TrainConfig
from megascope.trainer.launch import launch, train
from megascope.trainer.worker import place_from_environment, run_worker, threads_of
from support.forkrun import fork_ranks
from support.training import small_config


def _python_children() -> set[int]:
    """Ids of the Python processes below this one; a browser of other tests comes and goes with its own."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "python" in child.name():
                found.add(child.pid)
    return found


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = _python_children()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert _python_children() <= before
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
def test_a_run_that_is_started_again_gets_its_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RecordConfig(spool=tmp_path / "spool", store=tmp_path / "store")
    config = replace(small_config(steps=1), record=record)
    monkeypatch.setenv("MEGASCOPE_RUN", "again")
    for attempt in range(2):
        assert launch(config, 1, environment={}) == 0
        assert sorted(path.name for path in (tmp_path / "spool" / "again").iterdir()) == ["0", "1"][: attempt + 1]
    monkeypatch.delenv("MEGASCOPE_RUN")
    assert launch(config, 1, environment={}, name="small") == 0
    assert len(list((tmp_path / "spool").glob("small-*/0/rank-00000.box"))) == 1


@pytest.mark.timeout(60)
def test_one_rank_that_is_killed_ends_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = launch(config_in(tmp_path, steps=1000, fault=("kill rank=1 step=3",)), 2, environment={})
    assert code in (128 + signal.SIGKILL, 1)  # the other rank may report the broken connection first
    assert "all ranks are ended" in capfd.readouterr().err
    ended = {rank: one for (rank, _), one in read_exits(tmp_path / "spool" / "run" / "2").items()}
    assert ended[1] == Exit(-signal.SIGKILL), "it was killed, and not by the launcher"
    assert ended[0].asked == signal.SIGTERM or ended[0].code == 1


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
    ended = read_exits(tmp_path / "spool" / "run" / "2")
    assert [(one.asked, one.was_on_request) for one in ended.values()] == [(signal.SIGTERM, True)] * 2


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
    (tmp_path / "step-00000004").mkdir()
    (tmp_path / "step-00000004" / "commit.json").write_text("half")
    config = replace(config_in(tmp_path), checkpoint=CheckpointConfig(folder=tmp_path))
    assert launch(config, 2, environment={}) == 1
    errors = capfd.readouterr().err
    assert f"No checkpoint in {tmp_path} is intact on all ranks: remove them to start anew." in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": DataConfig(text=Path("none.txt"))}, r"Cannot read the text none.txt \(No such file or directory\)"),
        ({"data": DataConfig(text=Path("/"))}, r"Cannot read the text / \(Is a directory\): check data.text"),
        ({"data": DataConfig(limit_bytes=10)}, "The text has 10 tokens for training, fewer than one sequence of 33"),
        ({"data": DataConfig(tokenizer=Tokenizer.BPE)}, r"pip install 'megascope\[bpe\]'"),
        (
            {"checkpoint": CheckpointConfig(folder=Path("/dev/null/x"), every=1)},
            "Cannot write checkpoints to /dev/null",
        ),
        ({"record": RecordConfig(run="a/b")}, "The run name 'a/b' cannot be used"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:20],
)
def test_what_no_rank_could_use_starts_none(
    changes: dict[str, Any],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.chdir(tmp_path)
    config = small_config(dp=2)
    changes.setdefault("model", replace(config.model, vocabulary=512))
    with pytest.raises(MegascopeError, match=sentence) as caught:
        launch(replace(config, **changes), 2, environment={})
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_no_process_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="but 0 processes were started"):
        train(config_in(tmp_path), 0)


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


@pytest.mark.timeout(60)
def test_the_environment_is_there_before_a_rank_looks_for_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a host with one GPU, two ranks train on the CPU where it is hidden; the launcher itself asks for none."""
    import torch

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launcher = os.getpid()

    def is_available() -> bool:
        assert os.getpid() != launcher
        return os.environ.get("CUDA_VISIBLE_DEVICES") != ""

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert launch(config_in(tmp_path), 2, environment={"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert launch(config_in(tmp_path), 2, environment={}) == 1
    assert "has no GPU: this host has 0" in capfd.readouterr().err


@pytest.mark.timeout(60)
def test_a_rank_that_waits_for_the_others_at_the_rendezvous_shows_it(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    boxes = tmp_path / "spool" / "run" / "2"

    def in_flight() -> list[str]:
        described = boxes / "rank-00000.meta.jsonl"  # written once the box is whole
        if not described.exists():
            return []
        lines = [line for _, line in read_metadata(described) if line["kind"] == "segment"]
        names = {line["index"]: f"{line['name']} ({line['segment_kind']})" for line in lines}
        reader = BoxReader(boxes / "rank-00000.box")
        try:
            return [names[int(record["segment"])] for record in reader.slots() if int(record["segment"]) in names]
        finally:
            reader.close()

    def work() -> None:
        import torch.distributed as dist

        dist.destroy_process_group()
        os.environ.update(WORLD_SIZE="2", MEGASCOPE_PORT=str(_free_port()))
        run_worker(config)

    (outcome,) = fork_ranks(1, work, settle_s=0, until=lambda: len(in_flight()) == 2)
    assert outcome.code == -signal.SIGKILL
    assert in_flight() == ["rendezvous (init)", "rendezvous (collective)"]


@pytest.mark.timeout(120)
def test_two_hosts_under_torchrun_are_one_run(tmp_path: Path) -> None:
    """A torchrun of its own for each of two ranks, without a run id: as on two hosts, they meet only in the group."""
    script = tmp_path / "job.py"
    config = ["--parallel.dp", "2", "--train.steps", "2", "--data.limit-bytes", "50000", "--record.spool", "spool"]
    script.write_text(
        "import sys\nfrom megascope.trainer.config import load_config\nfrom megascope.trainer.launch import train\n"
        f"sys.exit(train(load_config(None, {config}), name='small'))\n"
    )
    port = str(_free_port())
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    hosts = [
        subprocess.Popen(
            [*command, f"--node-rank={number}", str(script)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        output = "".join(host.communicate(timeout=100)[0] for host in hosts)
    finally:
        for host in hosts:
            if host.poll() is None:
                for process in psutil.Process(host.pid).children(recursive=True):
                    process.kill()
                host.kill()
            host.wait(timeout=10)
    assert [host.returncode for host in hosts] == [0, 0], output
    assert "step 2/2" in output
    (run,) = (tmp_path / "spool").iterdir()
    assert run.name.startswith("small-")
    assert sorted(path.name for path in run.glob("0/*.box")) == ["rank-00000.box", "rank-00001.box"]


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("given", "threads"), [("", 8), ("3", 3), ("1", 1), ("99", 8), ("0", 8), ("4,2", 8), ("many", 8)]
)
def test_a_rank_has_its_share_of_the_cores_or_fewer_where_that_is_asked_for(
    given: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    place = place_from_environment({"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    assert place is not None
    assert threads_of(place, {"OMP_NUM_THREADS": given} if given else {}) == threads


def test_the_place_is_read_from_the_environment() -> None:
    assert place_from_environment({}) is None
    place = place_from_environment({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (3, 8, 1, 2)
    with pytest.raises(UsageError, match="is not a number"):
        place_from_environment({"RANK": "three", "WORLD_SIZE": "8"})
