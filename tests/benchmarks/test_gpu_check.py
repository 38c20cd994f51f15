"""The check of a GPU, as far as a machine without one goes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gpu_check, gpu_training
from megascope.profiler.device_clock import CudaTimer
from support.fake_cuda import FakeCuda
from support.recording import Recorded, settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    from megascope.profiler.opening import open_recorder
    from megascope.profiler.recorder import Recorder

    recorder = open_recorder(settings(tmp_path))
    assert isinstance(recorder, Recorder)
    return Recorded(recorder, tmp_path / "run" / "0")


@pytest.mark.parametrize(("slowness", "is_ok"), [(1.0, True), (1.05, False)])
def test_times_of_known_kernels_are_compared(recorded: Recorded, slowness: float, is_ok: bool) -> None:
    cuda = FakeCuda()
    recorder = recorded.recorder
    timer = recorder.device = CudaTimer(cuda, recorder, clock=cuda.host_ns)

    def settle() -> None:
        cuda.now_ms = cuda.current.drained_ms + 1
        assert timer.poll() == 0

    check = gpu_check.event_times(recorder, recorded.box, lambda ms: cuda.current.launch(ms * slowness), settle)
    assert check["ok"] is is_ok
    assert check["measured_ms"] == pytest.approx([ms * slowness for ms in gpu_check.LENGTHS_MS], abs=1e-3)
    assert cuda.synchronizations == 1  # that of the timer's own start
    recorder.device = None
    recorder.close()


def test_times_by_the_hosts_clock_do_not_pass(recorded: Recorded) -> None:
    check = gpu_check.event_times(recorded.recorder, recorded.box, lambda ms: None, lambda: None)
    assert check["ok"] is False
    recorded.recorder.close()


def test_what_synchronises_is_reported(recorded: Recorded) -> None:
    modes: list[str] = []

    class Cuda:
        set_sync_debug_mode = staticmethod(modes.append)

    assert gpu_check.nothing_synchronises(Cuda, recorded.recorder, lambda: None)["ok"]

    def wait() -> None:
        raise RuntimeError("called a synchronizing CUDA operation")

    check = gpu_check.nothing_synchronises(Cuda, recorded.recorder, wait)
    assert check == {"ok": False, "error": "called a synchronizing CUDA operation"}
    assert modes == ["error", "default"] * 2
    recorded.recorder.close()


def test_each_part_is_looked_at_by_itself(recorded: Recorded) -> None:
    class Cuda:
        set_sync_debug_mode = staticmethod(lambda mode: None)

    numbers: list[int] = []

    def wait(number: int) -> None:
        raise RuntimeError("called a synchronizing CUDA operation\nand more")

    parts = {"reads": wait, "step": numbers.append}
    check = gpu_check.nothing_synchronises(Cuda, recorded.recorder, lambda: None, parts)
    assert numbers == list(range(gpu_check.STEPS))
    assert check["ok"] is False
    assert check["parts"] == {"reads": "called a synchronizing CUDA operation", "step": "ok"}
    recorded.recorder.close()


def test_the_automatic_parts_run_on_another_backend(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the device: gloo for NCCL, tensors of the CPU, and a graph that repeats a call."""
    calls: list[str] = []

    class Graph:
        def replay(self) -> None:
            calls.append("replay")

    real: Any = torch.distributed
    stand_in = SimpleNamespace(
        ones=lambda size, device: torch.ones(size),
        cuda=SimpleNamespace(
            CUDAGraph=Graph, graph=lambda graph: contextlib.nullcontext(), synchronize=lambda: calls.append("wait")
        ),
        distributed=SimpleNamespace(
            HashStore=real.HashStore,
            all_reduce=real.all_reduce,
            destroy_process_group=real.destroy_process_group,
            init_process_group=lambda backend, **named: real.init_process_group("gloo", **named),
        ),
    )
    with gpu_check.automatic_parts(stand_in, recorded.recorder, lambda: calls.append("captured")) as parts:
        assert calls == ["captured", "replay", "wait"]
        for part in parts.values():
            part(1)
    assert set(parts) == {"step", "all_reduce", "async_all_reduce", "graph_replay"}
    segments = {line["name"] for line in recorded.metadata() if line["kind"] == "segment"}
    assert any("all_reduce" in name for name in segments)
    assert not real.is_initialized()


CAUSE = "import sys; sys.stderr.write('x' * 1_000_000 + chr(10)); open(sys.argv[1], 'w'); sys.exit('the cause')"
CONSEQUENCE = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
time.sleep(1)
sys.exit('a peer is gone')
"""


def test_the_rank_that_failed_first_is_reported(tmp_path: Path) -> None:
    """Though it is not rank 0, and though it says more than a pipe holds."""
    script = "import os\nexec(os.environ['SCRIPT'])"
    environments = [{**os.environ, "SCRIPT": each} for each in (CONSEQUENCE, CAUSE)]
    command = [sys.executable, "-c", script, str(tmp_path / "mark")]
    assert gpu_training.first_error(command, environments, tmp_path, 30.0) == "the cause"
    idle = [{**os.environ, "SCRIPT": "import time; time.sleep(60)"}]
    assert gpu_training.first_error(command, idle, tmp_path, 0.3) == "not done after 0 s"
    assert gpu_training.first_error(command, [{**os.environ, "SCRIPT": ""}], tmp_path, 30.0) == ""


def test_only_waits_for_the_device_are_counted() -> None:
    with warnings.catch_warnings(record=True) as others, gpu_training.counted_waits() as waits:
        warnings.simplefilter("always")
        for text in (*[gpu_training.SYNCHRONISING + " (Triggered internally)"] * 3, "something else"):
            warnings.warn(text, stacklevel=1)
    assert waits == [3]
    assert [str(other.message) for other in others] == ["something else"]


def test_the_overhead_is_paired_and_has_an_interval(recorded: Recorded) -> None:
    percent = gpu_check.overhead(recorded.recorder, lambda: None, lambda: None, pairs=5)["percent"]
    assert percent["low"] <= percent["median"] <= percent["high"]
    recorded.recorder.close()


@pytest.mark.timeout(240)
def test_the_trainer_part_runs_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_training, "TIMEOUT_S", 110.0)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    check = gpu_training.train_on_gpu(tmp_path, ranks=1, backend="gloo")
    assert (check["ok"], check["losses_identical"], check["device"]) == (True, True, "cpu"), check
    assert check["spans_by_clock"]["host"] > 100


def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (1, "", gpu_check.NO_CUDA)
