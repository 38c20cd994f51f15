"""Checks of Python, packages, extras, torch and GPUs, on installations that are made up."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.doctor import devices, installation
from megascope.doctor.asking import Drivers
from megascope.doctor.finding import Answer, State
from megascope.doctor.machine import Machine
from support.fake_machine import expect, fake_machine

OK, ADVICE, PROBLEM, NOT_CHECKED = State.OK, State.ADVICE, State.PROBLEM, State.NOT_CHECKED

GPU = {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}
AUDIO = {"sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n"}
DRIVER = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC 12"}
FOR_CUDA_12 = "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"


def told(drivers: Drivers) -> Callable[[], Drivers]:
    return lambda: drivers


def of_torch(text: str | None) -> Callable[[str], str | None]:
    return lambda name: text


def no_package() -> list[str]:
    raise importlib.metadata.PackageNotFoundError("megascope")


CASES: list[tuple[Callable[[Machine], Answer], dict[str, Any], State, str]] = [
    (installation.python, {}, OK, "3.12.4"),
    (installation.python, {"python": (3, 10, 1)}, PROBLEM, "3.10.1"),
    (installation.python, {"system": "darwin"}, PROBLEM, "darwin"),
    (installation.packages, {}, OK, "1 requirements"),
    (installation.packages, {"installed": {"numpy": "1.21.0"}}, PROBLEM, "numpy 1.21.0 (wanted: >=1.26)"),
    (installation.packages, {"installed": {"numpy": None}}, PROBLEM, "numpy (not installed)"),
    (installation.packages, {"requirements": no_package}, NOT_CHECKED, "folder of sources"),
    (installation.extras, {}, OK, "trainer"),
    (installation.extras, {"installed": {"dash": None}}, ADVICE, "no serve, demo"),
    (installation.extras, {"installed": {"dash": "5.0.0"}}, ADVICE, "dash 5.0.0 (wanted: <5)"),
    (
        installation.extras, {"installed": {"prometheus-client": None}, "env": {"MEGASCOPE_METRICS": "9477"}}, PROBLEM,
        "prometheus-client",
    ),
    (installation.extras, {"installed": {"s3fs": None}, "env": {"MEGASCOPE_STORE": "s3://bucket/x"}}, PROBLEM, "s3fs"),
    (installation.extras, {"requirements": no_package}, NOT_CHECKED, "folder of sources"),
    (devices.torch_version, {}, OK, "2.13.0+cpu"),
    (devices.torch_version, {"installed": {"torch": "2.7.1"}}, ADVICE, "2.7.1"),
    (devices.torch_version, {"installed": {"torch": None}}, OK, "not installed"),
    (devices.torch_build, {}, OK, "built for CPUs"),
    (devices.torch_build, {"files": AUDIO}, OK, "built for CPUs"),
    (devices.torch_build, {"files": GPU}, PROBLEM, "built for CPUs"),
    (devices.torch_build, {"files": DRIVER}, PROBLEM, "driver 550.54.15"),
    (devices.torch_build, {"files": DRIVER, "torch_file": of_torch(FOR_CUDA_12)}, OK, "CUDA 12.8, driver 550.54.15"),
    (devices.torch_build, {"torch_file": of_torch(FOR_CUDA_12)}, ADVICE, "no NVIDIA driver"),
    (devices.torch_build, {"files": DRIVER, "torch_file": of_torch("cuda = '13.0'")}, ADVICE, "CUDA 13.0"),
    (devices.torch_build, {"torch_file": of_torch("cuda = None\nhip = '6.4.1'")}, OK, "ROCm 6.4.1"),
    (devices.torch_build, {"torch_file": of_torch(None)}, NOT_CHECKED, "no version.py"),
    (devices.gpus, {}, OK, "no NVIDIA GPU"),
    (devices.gpus, {"files": GPU}, PROBLEM, "driver not loaded"),
    (devices.gpus, {"files": {**GPU, **DRIVER}}, PROBLEM, "NVML: the library is not found"),
    (
        devices.gpus, {"files": {**GPU, **DRIVER}, "drivers": told(Drivers("550.54.15", ("H200", "H200")))}, OK,
        "2 GPUs (H200)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "changes", "state", "words"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_what_is_installed(
    tmp_path: Path, check: Callable[[Machine], Answer], changes: dict[str, Any], state: State, words: str
) -> None:
    expect(check, fake_machine(tmp_path, **changes), state, words)


def test_versions_are_compared_by_their_numbers() -> None:
    assert installation.as_numbers("2.13.0+cpu") == (2, 13, 0)
    assert installation.as_numbers("2.8.0a0+git") < installation.as_numbers("2.13")
    assert installation.as_numbers("unknown") == ()


def test_every_extra_of_the_package_has_its_verbs() -> None:
    named = importlib.metadata.metadata("megascope").get_all("Provides-Extra") or []
    assert set(named) - {"all", "dev"} == set(installation.VERBS)
