"""Communication through the host's memory: the same results, and nothing but results comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from megascope.profiler.errors import MegascopeError
from megascope.profiler.null import NullRecorder
from megascope.trainer import building
from megascope.trainer.comm import Funnel
from megascope.trainer.config import Backend, load_config
from megascope.trainer.loop import TrainResult
from megascope.trainer.staging import HostStage
from megascope.trainer.worker import Place, _choose_device, run_worker
from support.fake_cuda import FakeCuda
from support.forkrun import run_ranks
from support.training import small_config


def test_a_staged_training_has_the_same_results_and_traffic() -> None:
    config = small_config(pp=2, dp=2, steps=3)

    def train(*, is_staged: bool) -> TrainResult:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(building, "Funnel", lambda *arguments, **_: Funnel(*arguments, is_staged=is_staged))
            return run_worker(config, NullRecorder())

    plain = run_ranks(4, lambda: train(is_staged=False))
    staged = run_ranks(4, lambda: train(is_staged=True))
    assert [(one.losses, one.grad_norms) for one in staged] == [(one.losses, one.grad_norms) for one in plain]
    assert [one.traffic for one in staged] == [one.traffic for one in plain]


def double(seen: list[torch.Tensor]) -> Callable[..., Any]:
    def operation(is_async: bool, source: torch.Tensor, target: torch.Tensor) -> None:
        assert not is_async
        seen.extend((source, target))
        target.copy_(2 * source)
        source.zero_()

    return operation


def test_only_what_an_operation_writes_comes_back() -> None:
    source, target = torch.ones(3, requires_grad=True), torch.zeros(3)
    seen: list[torch.Tensor] = []
    run = HostStage(None, None).prepare(double(seen), (source, target), (target,))
    with torch.no_grad():
        source.fill_(5)  # what was to be sent is on its way already
        assert run(False) is None
    assert (source.tolist(), target.tolist()) == ([5, 5, 5], [2, 2, 2])
    assert all(one.data_ptr() not in {source.data_ptr(), target.data_ptr()} for one in seen)


def test_on_a_device_copies_and_events_are_on_the_side_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    side = cuda.Stream()
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, dtype, pin_memory: empty(*size, dtype=dtype))
    run = HostStage(cuda, side).prepare(double([]), (torch.ones(3), torch.zeros(3)), ())
    side.launch(4.0)
    event = run(False)
    assert event.moment_ms == 4.0
    assert cuda.current.drained_ms == 0.0
    assert cuda.synchronizations == 1  # the thread of the operation, not that of the training


def test_the_backend_is_a_setting_and_nccl_needs_a_gpu() -> None:
    assert load_config(None, ["--backend", "gloo"]).parallel.backend is Backend.GLOO
    assert load_config(None).parallel.backend is Backend.AUTO
    with pytest.raises(MegascopeError, match="there is no GPU"):
        _choose_device(Place(0, 1, 0, 1), Backend.NCCL)
    assert _choose_device(Place(0, 1, 0, 1), Backend.GLOO) == torch.device("cpu")


def test_ranks_share_a_gpu_with_gloo_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert _choose_device(Place(3, 4, 3, 4), Backend.GLOO) == torch.device("cuda", 0)
    with pytest.raises(MegascopeError, match="has no GPU: this host has 1"):
        _choose_device(Place(3, 4, 3, 4), Backend.AUTO)
    assert chosen == [torch.device("cuda", 0)]
