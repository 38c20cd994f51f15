"""The faults that make a job hang: what they need of the layout, what they do to a call, and how they act."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.null import NullRecorder
from megascope.trainer.faults.acts import InjectedError, act
from megascope.trainer.faults.alter import Call, altered
from megascope.trainer.faults.kinds import ACTS, OPTIONAL, REQUIRED, FaultKind, parse_fault
from megascope.trainer.faults.switches import FaultSwitches
from megascope.trainer.finite import NotFiniteError
from support.commands import wait_for
from support.forkrun import fork_ranks, run_ranks
from support.training import small_config


def test_every_kind_says_what_it_takes() -> None:
    assert set(REQUIRED) == set(FaultKind)
    assert set(OPTIONAL) <= set(FaultKind)
    values = {"rank": "1", "step": "3", "segment": "forward", "factor": "2", "link": "0>1", "delay_ms": "4"}
    for kind, keys in REQUIRED.items():
        fault = parse_fault(" ".join([kind, *(f"{key}={values[key]}" for key in sorted(keys)), "attempt=0"]))
        assert fault.kind is kind
        assert fault.attempt == 0


@pytest.mark.parametrize(
    ("text", "layout", "sentence"),
    [
        (
            "receive-first rank=1 step=1",
            {"pp": 2},
            "a rank of the last pipeline stage (1), which gets no gradient",
        ),
        ("skip-send rank=1 step=1 segment=send_forward", {"pp": 2}, "names a rank of pipeline stage 1, which sends"),
        ("skip-send rank=0 step=1 segment=send_backward", {"pp": 2}, "names a rank of pipeline stage 0, which sends"),
        ("skip-send rank=0 step=1 segment=send_forward", {"dp": 2}, "does not act: one pipeline stage sends nothing"),
        ("skip-send rank=0 step=1 segment=forward", {"pp": 2}, "does not act: use send_forward, send_backward"),
        (
            "nan rank=0 step=1",
            {"pp": 2},
            "a rank that computes no loss: name ranks of the last pipeline stage (1)",
        ),
        ("swap-order rank=0 step=1", {"tp": 2}, "has no gradients to reduce over dp"),
        ("repeat-step rank=0 step=1", {"tp": 2}, "set parallel.dp above 1 and rank=0,1"),
        ("repeat-step rank=0,1,2 step=1", {"tp": 2, "dp": 2}, "set parallel.dp above 1 and rank=0,1,2,3"),
        ("wrong-size rank=0 step=1 segment=forward", {"dp": 2}, "where wrong-size does not act: use dp_all_gather"),
        ("hold-gil rank=0 step=1 segment=setup", {}, "where hold-gil does not act"),
    ],
)
def test_a_fault_that_would_not_act_is_refused(text: str, layout: Any, sentence: str) -> None:
    config = small_config(fault=(text,), **layout)
    with pytest.raises(UsageError) as caught:
        config.validate(config.topology().world_size)
    assert str(caught.value).startswith(f"The fault {text!r} ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("repeat-step rank=2,3 step=1", {"tp": 2, "dp": 2}),
        ("receive-first rank=0 step=1", {"pp": 2}),
        ("skip-send rank=1 step=1 segment=send_backward", {"pp": 2}),
        ("nan rank=1 step=1", {"pp": 2}),
        ("swap-order rank=1 step=1", {"dp": 2}),
        ("wrong-dtype rank=1 step=1 segment=world_all_reduce", {"dp": 2}),
    ],
)
def test_a_fault_that_fits_is_taken(text: str, layout: Any) -> None:
    config = small_config(fault=(text,), **layout)
    config.validate(config.topology().world_size)


def test_a_step_is_repeated_once() -> None:
    switches = FaultSwitches([parse_fault("repeat-step rank=0 step=2")], 0, NullRecorder())
    ran = []
    for step in range(4):
        switches.step(step)
        ran.append(step)
        if switches.repeats(step):
            switches.step(step)
            ran.append(step)
    assert ran == [0, 1, 2, 2, 3]


def test_a_call_is_altered_once() -> None:
    switches = FaultSwitches([parse_fault("wrong-size rank=0 step=1 segment=dp_all_gather")], 0, NullRecorder())
    switches.step(0)
    assert switches.alters("dp_all_gather") is None
    switches.step(1)
    told = [switches.alters(name) for name in ("tp_all_gather", "dp_all_gather", "dp_all_gather")]
    assert told == [None, FaultKind.WRONG_SIZE, None]


def test_raise_says_that_it_was_put_in() -> None:
    switches = FaultSwitches([parse_fault("raise rank=0 step=1 segment=optimizer")], 0, NullRecorder())
    switches.step(1)
    with pytest.raises(InjectedError, match=r"raise rank=0 step=1 segment=optimizer' was put in on purpose"):
        switches.enter("optimizer")


def call_of(payload: torch.Tensor, segment: str = "dp_all_gather") -> Call:
    shard = payload[: len(payload) // 2]
    return Call(segment, lambda is_async, output, shard: None, (payload, shard), (payload,), payload)


def test_a_longer_and_a_narrower_call_leave_the_tensors_alone() -> None:
    payload = torch.arange(8.0)
    group: Any = None
    longer = altered(FaultKind.WRONG_SIZE, call_of(payload), "dp", group)
    assert [len(one) for one in longer.tensors] == [16, 8]
    assert longer.written[0] is longer.tensors[0] is longer.payload
    narrower = altered(FaultKind.WRONG_DTYPE, call_of(payload), "dp", group)
    assert [one.dtype for one in narrower.tensors] == [torch.float16] * 2
    assert narrower.payload.nbytes == payload.nbytes // 2
    assert payload.tolist() == list(range(8))


def test_another_operation_is_issued_under_its_own_name() -> None:
    def work() -> tuple[list[float], str, str]:
        import torch.distributed as dist

        group = dist.group.WORLD
        assert group is not None
        payload = torch.full((4,), float(dist.get_rank() + 1))
        reduced = altered(FaultKind.WRONG_COLLECTIVE, call_of(payload), "dp", group)
        reduced.operation(False, *reduced.tensors)
        sent = altered(FaultKind.WRONG_COLLECTIVE, call_of(payload, "world_all_reduce"), "world", group)
        sent.operation(False, *sent.tensors)
        return [reduced.payload[0].item(), sent.payload[0].item()], reduced.segment, sent.segment

    assert run_ranks(2, work) == [([3.0, 1.0], "dp_all_reduce", "world_broadcast")] * 2


def test_a_loss_that_is_no_number_ends_the_rank_with_a_sentence() -> None:
    from megascope.trainer.worker import run_worker

    config = small_config(steps=4, fault=("nan rank=0 step=2",))
    (outcome,) = fork_ranks(1, lambda: run_worker(config, NullRecorder()))
    assert outcome.error is not None
    assert "NotFiniteError: The loss of micro-batch 0 on this rank is not finite" in outcome.error
    assert issubclass(NotFiniteError, MegascopeError)


def child_that(kind: FaultKind, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    code = f"from megascope.trainer.faults.acts import act; print('on', flush=True); act('{kind}', 'text')"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, **(environment or {})}
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"on\n"
    return child


def ended(child: subprocess.Popen[bytes]) -> int:
    child.kill()
    assert child.stdout is not None
    child.stdout.close()
    return child.wait(10)


def test_a_frozen_process_is_stopped() -> None:
    child = child_that(FaultKind.FREEZE)
    try:
        wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, 20, "a stop")
    finally:
        ended(child)


@pytest.mark.parametrize(("kind", "goes_on"), [(FaultKind.HOLD_GIL, False), (FaultKind.STOP, True)])
def test_only_a_rank_that_holds_the_interpreter_stops_its_other_threads(
    kind: FaultKind, goes_on: bool, tmp_path: Path
) -> None:
    ticks = tmp_path / "ticks"
    code = f"""
import pathlib, threading, time
def tick():
    while True:
        pathlib.Path({str(ticks)!r}).write_text(str(time.monotonic_ns()))
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
time.sleep(0.2)
from megascope.trainer.faults.acts import act
print("on", flush=True)
act({str(kind)!r}, "text")
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"on\n"
        time.sleep(0.5)
        before = ticks.read_text()
        time.sleep(0.5)
        assert (ticks.read_text() != before) is goes_on
    finally:
        ended(child)


def test_a_killed_host_takes_its_launcher_and_all_that_it_started(tmp_path: Path) -> None:
    """A launcher with two ranks, of which one has the fault, and an agent."""
    pids = tmp_path / "pids"
    sleeper = "import time; time.sleep(60)"
    rank = "from megascope.trainer.faults.acts import act; act('kill-host', 'text')"
    launcher = f"""
import os, pathlib, subprocess, sys, time
started = [subprocess.Popen([sys.executable, "-c", {sleeper!r}], start_new_session=True) for _ in range(2)]
pathlib.Path({str(pids)!r}).write_text(" ".join(str(one.pid) for one in started))
subprocess.Popen([sys.executable, "-c", {rank!r}], env={{**os.environ, "MEGASCOPE_PORT": "1"}}).wait()
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", launcher])
    try:
        assert process.wait(30) == -signal.SIGKILL
        others = [int(pid) for pid in pids.read_text().split()]
        wait_for(lambda: not any(_runs(pid) for pid in others), 20, "the end of all")
    finally:
        process.kill()
        process.wait()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_host_without_a_launcher_loses_the_process_alone() -> None:
    environment = {"MEGASCOPE_PORT": "", "TORCHELASTIC_RUN_ID": ""}
    code = "import os\nfor name in ('MEGASCOPE_PORT', 'TORCHELASTIC_RUN_ID'): os.environ.pop(name, None)\n"
    code += "from megascope.trainer.faults.acts import act; act('kill-host', 'text')"
    child = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, check=False, timeout=30)
    assert child.returncode == -signal.SIGKILL


def test_a_process_without_memory_gets_an_exception_and_can_tell_of_it() -> None:
    code = (
        "from megascope.trainer.faults.acts import act\n"
        "try: act('out-of-memory', 'text')\n"
        "except RuntimeError as error: print(type(error).__name__, str(error)[-200:])"
    )
    child = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True)
    assert "can't allocate memory" in child.stdout
    assert child.returncode == 0


def test_what_acts_is_known() -> None:
    with pytest.raises(InjectedError):
        act(FaultKind.RAISE, "text")
    assert FaultKind.NAN not in ACTS
