"""Health metrics: what is blank or absurd is NULL with its reason, and a machine without devices has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megascope.collectors.health import POWER, TEMPERATURE, HealthSampler, judged
from megascope.collectors.processes import ProcessState, ProcessWatch
from megascope.profiler.box import BoxLayout, create_box


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (61.5, (61.5, None)),
        (None, (None, "blank")),
        (float("nan"), (None, "blank")),
        (0, (None, "out-of-range")),
        (2**31 / 1000, (None, "out-of-range")),
        (-1, (None, "out-of-range")),
    ],
)
def test_only_what_can_be_true_is_a_value(value: float | None, expected: tuple[float | None, str | None]) -> None:
    row = judged(POWER, value)
    assert (row["metric"], row["value"], row["flag"]) == ("power_watts", *expected)


class _NvmlError(Exception):
    pass


def _nvml(temperature: Any) -> Any:
    """A driver with one device; a failing read raises, as the real one does."""

    def read_temperature(*_: object) -> int:
        if isinstance(temperature, Exception):
            raise temperature
        return int(temperature)

    return SimpleNamespace(
        NVMLError=_NvmlError,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda _: "GPU-1",
        nvmlDeviceGetTemperature=read_temperature,
        nvmlDeviceGetPowerUsage=lambda _: 350_000,
        nvmlDeviceGetClockInfo=lambda *_: 1410,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=97),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=2**34),
        nvmlDeviceGetTotalEccErrors=lambda *_: 2,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
    )


@pytest.mark.parametrize(
    ("temperature", "value", "flag"),
    [(55, 55.0, None), (_NvmlError("gone"), None, "blank"), (255, None, "out-of-range")],
)
def test_devices_are_read_through_nvml(temperature: Any, value: float | None, flag: str | None) -> None:
    rows = {row["metric"]: row for row in HealthSampler(_nvml(temperature)).sample() if row["device"] == "GPU-1"}
    assert (rows[TEMPERATURE.name]["value"], rows[TEMPERATURE.name]["flag"]) == (value, flag)
    assert rows["power_watts"]["value"] == 350.0
    assert rows["utilization_percent"]["value"] == 97.0


@pytest.mark.parametrize("lost", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
@pytest.mark.parametrize("was_there", [True, False])
def test_a_device_that_is_lost_is_blank_and_harms_nothing(lost: str, was_there: bool) -> None:
    nvml = _nvml(55)
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetUUID = lambda index: f"GPU-{index}"
    sampler = HealthSampler(nvml)
    if was_there:
        sampler.sample()
    read = getattr(nvml, lost)

    def fails(*which: int) -> Any:
        if which in ((), (1,)):
            raise _NvmlError("GPU is lost")
        return read(*which)

    setattr(nvml, lost, fails)
    rows = [row for row in sampler.sample() if row["device"] is not None]
    by_device = {device: [row["value"] for row in rows if row["device"] == device] for device in ("GPU-0", "GPU-1")}
    if was_there or lost != "nvmlDeviceGetCount":
        assert by_device["GPU-0"][:2] == [55.0, 350.0]
        assert {row["device"] for row in rows} == {"GPU-0", "GPU-1" if was_there else "index 1"}
    if lost == "nvmlDeviceGetHandleByIndex":
        blank = [row for row in rows if row["device"] != "GPU-0"]
        assert {(row["value"], row["flag"]) for row in blank} == {(None, "blank")}


def test_the_host_has_its_metrics_and_rates_come_with_the_second_sample() -> None:
    sampler = HealthSampler()
    first = {row["metric"]: row for row in sampler.sample() if row["device"] is None}
    second = {row["metric"] for row in sampler.sample()}
    assert {"cpu_percent", "memory_percent", "memory_used_bytes", "load_1min"} <= set(first)
    assert first["memory_used_bytes"]["value"] > 2**20
    assert "network_sent_bytes_per_s" not in first
    assert "network_sent_bytes_per_s" in second


def _until(watch: ProcessWatch, state: ProcessState) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if watch.sample().state == state:
            return True
        time.sleep(0.01)
    return False


_HOLD = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    box = mmap.mmap(file.fileno(), 0)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.timeout(60)
def test_the_life_of_a_process(tmp_path: Path) -> None:
    box = tmp_path / "rank-00000.box"
    create_box(box, BoxLayout(4, 1, 8, 4), rank=0, pid=0).close()
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(box)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        watch = ProcessWatch(child.pid, box)
        assert _until(watch, ProcessState.SLEEPING)
        assert watch.sample().cpu_ns is not None
        os.kill(child.pid, signal.SIGSTOP)
        assert _until(watch, ProcessState.STOPPED)
        os.kill(child.pid, signal.SIGKILL)
        assert _until(watch, ProcessState.ZOMBIE)
        child.wait()
        assert watch.sample().state == ProcessState.GONE
        assert ProcessWatch(child.pid, box).sample().state == ProcessState.GONE


def test_a_reused_process_id_is_not_the_rank(tmp_path: Path) -> None:
    """This very process lives, but it does not have the box mapped: the rank that had its number is gone."""
    box = tmp_path / "rank-00000.box"
    create_box(box, BoxLayout(4, 1, 8, 4), rank=0, pid=0).close()
    assert ProcessWatch(os.getpid(), box).sample().state == ProcessState.GONE
