"""The machine that a benchmark ran on, for the JSON object that every benchmark prints."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """Commit of the code, CPU model, cores that this process may use, memory in GiB, load, and versions."""
    return {
        "commit": commit(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }


def commit() -> str | None:
    """Short hash of what is checked out, with "-dirty" behind it where a tracked file differs; None outside a clone."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        told = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None


def report(name: str, values: Mapping[str, Any]) -> None:
    """Print the one JSON object."""
    sys.stdout.write(json.dumps({"benchmark": name, **values, "machine": machine()}) + "\n")


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
