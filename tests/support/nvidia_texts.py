"""What `nvidia-smi -q` and `ibstat` printed on real machines, as the driver and the kernel would have told it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from .sysfs import write_port

Places = Mapping[str, str]
"""The values of a GPU by the headings that they stand under, joined by slashes."""

MIB = 2**20
_METRICS: Mapping[str, tuple[str, float]] = {
    "temperature_celsius": ("Temperature/GPU Current Temp", 1),
    "memory_temperature_celsius": ("Temperature/Memory Current Temp", 1),
    "slowdown_temperature_celsius": ("Temperature/GPU Slowdown T.Limit Temp", 1),
    "power_watts": ("GPU Power Readings/Power Draw", 1),
    "power_limit_watts": ("GPU Power Readings/Current Power Limit", 1),
    "sm_clock_mhz": ("Clocks/SM", 1),
    "sm_clock_max_mhz": ("Max Clocks/SM", 1),
    "memory_clock_mhz": ("Clocks/Memory", 1),
    "utilization_percent": ("Utilization/Gpu", 1),
    "memory_utilization_percent": ("Utilization/Memory", 1),
    "device_memory_used_bytes": ("FB Memory Usage/Used", MIB),
    "ecc_corrected_errors": ("ECC Errors/Volatile/DRAM Correctable", 1),
    "ecc_uncorrected_errors": ("ECC Errors/Volatile/DRAM Uncorrectable", 1),
    "remapped_rows_corrected": ("Remapped Rows/Correctable Error", 1),
    "remapped_rows_uncorrected": ("Remapped Rows/Uncorrectable Error", 1),
    "remapping_failed": ("Remapped Rows/Remapping Failure Occurred", 1),
    "pcie_generation": ("PCI/GPU Link Info/PCIe Generation/Current", 1),
    "pcie_generation_max": ("PCI/GPU Link Info/PCIe Generation/Max", 1),
    "pcie_width": ("PCI/GPU Link Info/Link Width/Current", 1),
    "pcie_width_max": ("PCI/GPU Link Info/Link Width/Max", 1),
    "pcie_replay_errors": ("PCI/Replays Since Reset", 1),
}
_WORDS = {"No": 0.0, "Yes": 1.0}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def gpus_of(text: str) -> dict[str, dict[str, float | None]]:
    """UUID to values as `megascope.collectors.hardware.nvml.read_device` names them; None for what is not told."""
    found = {}
    for part in re.split(r"^GPU [0-9A-Fa-f]+:", text, flags=re.MULTILINE)[1:]:
        told = dict(_places(part.splitlines()[1:]))
        found[told["GPU UUID"]] = {
            metric: _value(told.get(place, ""), factor) for metric, (place, factor) in _METRICS.items()
        }
    return found


def _places(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Headings nest by their indentation, four blanks a level."""
    above: list[str] = []
    for line in filter(str.strip, lines):
        level = (len(line) - len(line.lstrip())) // 4 - 1
        name, colon, value = line.partition(" : ")
        above = [*above[:level], name.strip()]
        if colon:
            yield "/".join(above), value.strip()


def _value(text: str, factor: float) -> float | None:
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.match(text)
    return None if number is None else float(number[0]) * factor


def write_ports(root: Path, ibstat: str) -> None:
    """The adapters of `ibstat` as the kernel shows them."""
    for part in re.split(r"^CA '", ibstat, flags=re.MULTILINE)[1:]:
        told = dict(re.findall(r"^\s+(State|Rate): (.+)$", part, flags=re.MULTILINE))
        state = {"Active": "4: ACTIVE", "Down": "1: DOWN"}[told["State"]]
        write_port(root, part.partition("'")[0], state=state, rate=f"{told['Rate']} Gb/sec", symbol_error=0)
