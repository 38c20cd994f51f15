"""Checks of GPUs: whether the driver, the library that agents ask, and torch's build fit together."""

from __future__ import annotations

import ast
import re

from .finding import Answer, advice, not_checked, ok, problem
from .installation import as_numbers, least_torch
from .machine import Machine

NVIDIA = "0x10de"
DISPLAY = "0x03"
"""Vendor, and the class that graphics adapters begin with, in /sys/bus/pci."""

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA's major version to the oldest branch of the driver that runs it without a compatibility package (NVIDIA, CUDA
Compatibility, table of minimum versions)."""


def gpus(machine: Machine) -> Answer:
    """Whether the GPUs of this machine can be sampled."""
    looked_at = "PCI bus, /proc/driver/nvidia, NVML"
    count, loaded = gpus_on_the_bus(machine), loaded_driver(machine)
    if not count and loaded is None and not machine.under("dev/dxg").exists():
        return ok(looked_at, "no NVIDIA GPU: only hosts and ports are sampled")
    told = machine.drivers()
    if told.error is None:
        return ok(looked_at, f"{len(told.gpus)} GPUs ({', '.join(dict.fromkeys(told.gpus))}), driver {told.driver}")
    seen = f"{count} NVIDIA GPUs on the bus, driver {loaded or 'not loaded'}; NVML: {told.error}"
    if loaded is None:
        return problem(looked_at, seen, "load NVIDIA's driver (nvidia-smi, dmesg), or run where it is loaded")
    return problem(
        looked_at, seen, "let nvidia-smi work here first; in a container, start it with the NVIDIA runtime (--gpus all)"
    )


def torch_version(machine: Machine) -> Answer:
    """Whether torch is there, and is new enough."""
    looked_at = "the package torch, which is not imported"
    version, least = machine.version_of("torch"), least_torch(machine)
    if version is None:
        return ok(looked_at, "not installed: analysis needs none, recording and training do")
    if least is not None and as_numbers(version) < as_numbers(least):
        return advice(looked_at, version, f"upgrade torch: {least} is the oldest that megascope is made for")
    return ok(looked_at, version)


def torch_build(machine: Machine) -> Answer:
    """Whether torch is built for the GPUs that are here, and the driver is new enough for it."""
    looked_at = "torch/version.py, PCI bus, /proc/driver/nvidia"
    text = machine.torch_file("version.py")
    if machine.version_of("torch") is None or text is None:
        return not_checked(looked_at, "there is no torch, or no version.py in it")
    built, driver = built_for(text), loaded_driver(machine)
    seen = f"built for {built or 'CPUs'}, {f'driver {driver}' if driver else 'no NVIDIA driver'}"
    if built is None and (driver is not None or gpus_on_the_bus(machine)):
        return problem(looked_at, seen, "install torch's build for CUDA (pytorch.org, Get Started)")
    if built is None or not built.startswith("CUDA"):
        return ok(looked_at, seen)
    if driver is None:
        return advice(looked_at, seen, "load NVIDIA's driver, or run where it is loaded: here jobs use CPUs")
    wanted = LEAST_DRIVER.get(as_numbers(built.removeprefix("CUDA "))[0])
    if wanted is not None and as_numbers(driver)[0] < wanted:
        to_do = f"upgrade the driver to {wanted} or newer, or install NVIDIA's cuda-compat package or an older torch"
        return advice(looked_at, seen, to_do)
    return ok(looked_at, seen)


def gpus_on_the_bus(machine: Machine) -> int:
    """NVIDIA's GPUs that the kernel lists, whether or not a driver knows them."""
    try:
        devices = list(machine.under("sys/bus/pci/devices").iterdir())
    except OSError:
        return 0
    texts = ((machine.text(str(one / "vendor")), machine.text(str(one / "class")) or "") for one in devices)
    return sum(vendor == NVIDIA and kind.startswith(DISPLAY) for vendor, kind in texts)


def loaded_driver(machine: Machine) -> str | None:
    """The version of NVIDIA's driver in the kernel; None where none is loaded."""
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", machine.text("proc/driver/nvidia/version") or "")
    return found[1] if found else None


def built_for(text: str) -> str | None:
    """``CUDA 12.8`` or ``ROCm 6.4`` of torch's version.py; None for a build without.

    >>> built_for("cuda: Optional[str] = '12.8'")
    'CUDA 12.8'
    """
    values: dict[str, object] = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
            if isinstance(target, ast.Name):
                values[target.id] = node.value.value
    for name, words in (("cuda", "CUDA"), ("hip", "ROCm"), ("rocm", "ROCm"), ("xpu", "XPU")):
        if values.get(name):
            return f"{words} {values[name]}"
    return None
