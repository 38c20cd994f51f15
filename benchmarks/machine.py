"""The machine that a benchmark ran on, for the JSON object that every benchmark prints."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """CPU model, cores that this process may use, memory in GiB, load, and versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }


def report(name: str, values: Mapping[str, Any]) -> None:
    """Print the one JSON object."""
    sys.stdout.write(json.dumps({"benchmark": name, **values, "machine": machine()}) + "\n")


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
