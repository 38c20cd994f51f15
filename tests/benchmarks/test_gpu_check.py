"""The check of a GPU, as far as a machine without one goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
