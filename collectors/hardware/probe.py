"""A child of the agent that asks GPUs and network adapters, because what is sick may not answer for seconds.

It reads one JSON object a line, ``{"skip": [index, ...], "ports": true}``, and answers in lines: ``{"begin": what}``
before each thing that may hang (``"nvml"``, a GPU's index, ``"ports"``), then what it found, and at last
``{"end": true}``. Whoever asked knows from the last ``begin`` what does not answer. It ends with its standard input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO

from .nvml import read_device
from .rdma import ROOT, read_ports

NVML, PORTS = "nvml", "ports"


class Probe:
    """Answers requests; ``ports_root`` is where the kernel shows RDMA adapters."""

    def __init__(self, out: TextIO, ports_root: Path = ROOT) -> None:
        self._out, self._root = out, ports_root
        self._nvml: Any = None
        self._has_failed = False

    def answer(self, request: dict[str, Any]) -> None:
        """One sample."""
        if request.get("gpus", True) and not self._has_failed:
            self._gpus(set(request.get("skip", ())))
        if request.get("ports"):
            self._say(begin=PORTS)
            self._say(ports=read_ports(self._root))
        self._say(end=True)

    def _say(self, **what: Any) -> None:
        self._out.write(json.dumps(what) + "\n")
        self._out.flush()

    def _gpus(self, skip: set[int]) -> None:
        if self._nvml is None:
            self._say(begin=NVML)
            self._nvml = self._started()
        if self._nvml is None:
            self._has_failed = True
            return
        nvml = self._nvml
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            self._say(unreadable=str(error))
            return
        for index in range(count):
            if index not in skip:
                self._say(begin=index)
                self._say(**_device(nvml, index))

    def _started(self) -> Any:
        """The initialised binding; None where there is no driver, which is said."""
        try:
            import pynvml  # noqa: PLC0415

            pynvml.nvmlInit()
        except Exception as error:  # an absent driver shows in many ways
            self._say(absent=str(error) or type(error).__name__)
            return None
        return pynvml


def _device(nvml: Any, index: int) -> dict[str, Any]:
    """What one GPU tells: ``gpu``, ``uuid`` and ``pci`` (None where it has to be guessed), ``lost``, ``values``."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError as error:
        return {"gpu": index, "uuid": None, "pci": None, "lost": str(error), "values": {}}
    try:
        pci = str(nvml.nvmlDeviceGetPciInfo(handle).busId)
    except nvml.NVMLError:
        pci = None
    return {"gpu": index, "uuid": uuid, "pci": pci, "lost": None, "values": read_device(nvml, handle)}


def main() -> None:
    """Answer until the standard input ends."""
    probe = Probe(sys.stdout, Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    for line in sys.stdin:
        probe.answer(json.loads(line))


if __name__ == "__main__":
    main()
