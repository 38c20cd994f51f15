"""The utilization of one GPU, as far as a machine without one goes: on the CPU, with a peak that is given."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_mfu
from megascope.trainer.config import Precision
from megascope.trainer.flops import flops_per_token, matrix_parameters

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30


@pytest.mark.parametrize("case", gpu_mfu.CASES)
@pytest.mark.parametrize("memory", [None, 24 * GIB, 141 * GIB])
def test_every_case_can_be_trained(case: str, memory: int | None) -> None:
    config = gpu_mfu.configuration(case, memory, "auto")
    config.validate(1)
    assert config.model.precision is Precision.BF16
    assert config.train.compile is case.startswith("compiled")
    assert (config.train.recompute == "selective") is case.endswith("selective")
    assert config.train.steps > gpu_mfu.WARM_UP


@pytest.mark.parametrize(("memory", "least"), [(24 * GIB, 0.2e9), (80 * GIB, 0.6e9)])
def test_the_model_fills_a_gpu_and_fits_it(memory: int, least: float) -> None:
    """bf16 weights, float32 masters, both moments and gradients: 18 bytes a parameter, with room for activations."""
    config = gpu_mfu.configuration("eager", memory, "auto")
    parameters = matrix_parameters(config.model) + config.model.vocabulary * config.model.width
    assert parameters > least
    assert 18 * parameters < 0.4 * memory
    tokens = config.train.batch * config.model.sequence
    assert flops_per_token(config.model) * tokens > 1e13  # tens of milliseconds even at 1e15 a second


def test_steady_steps_are_timed_from_the_end_of_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    waits: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    steady = gpu_mfu.SteadySteps(lambda: waits.append(now[0]))
    for step in range(gpu_mfu.STEPS):
        steady.step(step)
        steady.step_metrics(step, mfu=None if step == 7 else 0.1 * step, loss=1.0)
        now[0] += 100.0 if step < gpu_mfu.WARM_UP else 2.0
    steady.end_step()
    ended, now[0] = now[0], now[0] + 50.0  # the end of the training
    assert steady.step_s() == 2.0
    assert waits == [100.0 * gpu_mfu.WARM_UP, ended]
    assert len(steady.utilizations) == gpu_mfu.STEPS - gpu_mfu.WARM_UP - 1


@pytest.mark.timeout(240)
def test_the_check_runs_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(gpu_mfu, "CASES", {"recompute_selective": {}})
    check = gpu_mfu.mfu_on_gpu(tmp_path, backend="gloo", peak=1e12)
    assert check["ok"], check
    found = check["cases"]["recompute_selective"]
    rate = found["model_tflop_per_step"] / (found["step_ms"] / 1e3)
    assert found["mfu"] == pytest.approx(rate / found["peak_tflops"])
    assert (found["device"], found["peak_tflops"], found["mfu_of_steps"]) == ("cpu", 1.0, None)


def outcome(**changes: Any) -> dict[str, Any]:
    return {"mfu": 0.4, "mfu_of_steps": 0.41, "losses": [5.0, 4.0], **changes}


@pytest.mark.parametrize(
    ("found", "is_ok"),
    [
        (outcome(), True),
        (outcome(mfu=None, mfu_of_steps=None), True),  # a device without a known peak
        (outcome(mfu=1.02), False),  # no device is faster than its peak
        (outcome(mfu_of_steps=1.02), False),
        (outcome(losses=[5.0, 5.1]), False),
        ({"error": "out of memory"}, False),
    ],
)
def test_what_cannot_be_is_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], is_ok: bool
) -> None:
    monkeypatch.setattr(gpu_mfu, "_run", lambda *_: found)
    check = gpu_mfu.mfu_on_gpu(tmp_path, backend="nccl")
    assert check["ok"] is is_ok
    assert set(check["cases"]) == set(gpu_mfu.CASES)


def test_an_error_of_a_case_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_mfu, "first_error", lambda command, *_: f"no {command[4]}")
    check = gpu_mfu.mfu_on_gpu(tmp_path, backend="nccl")
    assert check["ok"] is False
    assert check["cases"]["compiled"] == {"error": "no compiled"}
    assert json.dumps(check)
