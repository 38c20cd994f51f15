"""A driver library made by the system's C compiler, which tells what a text file says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"


def build_library(folder: Path) -> Path:
    """Compile the library into a folder. RuntimeError where there is no compiler: nothing is skipped for that."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError("There is no C compiler on this machine: install gcc for the tests of GPU sampling.")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LIBRARY
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return target


class FakeDriver:
    """What the library tells: keys such as ``0.temperature``; see the C source."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[str, int] = {}

    def set(self, **values: int) -> None:
        """Set values of the whole driver: count, init."""
        self.state |= values
        self._write()

    def gpu(self, index: int, **values: int) -> None:
        """Set values of one GPU."""
        self.state |= {f"{index}.{name}": value for name, value in values.items()}
        self._write()

    def forget(self, index: int, *names: str) -> None:
        """Take values of one GPU back."""
        for name in names:
            self.state.pop(f"{index}.{name}", None)
        self._write()

    def _write(self) -> None:
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self.state.items()))
        fresh.replace(self.path)


HEALTHY = {
    "temperature": 55, "slowdown": 90, "power": 650_000, "power_limit": 700_000, "sm_clock": 1755, "sm_max": 1980,
    "mem_clock": 2619, "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16,
    "pcie_replay": 0, "reasons": 0, "ecc_corrected": 0, "ecc_uncorrected": 0, "ecc_corrected_life": 3,
    "ecc_uncorrected_life": 0, "utilization": 98, "memory_used": 2**36, "remapped": 0, "nvlinks": 18,
    "field_82": 70, "field_138": 1000, "field_139": 2000,
}  # fmt: skip
"""One GPU under load; 82 is the memory's temperature, 138 and 139 count what NVLink sent and received in KiB."""
