"""Metrics of this host and of its devices; what is blank or absurd becomes NULL with the reason beside it."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from ..profiler.host import host_name

log = logging.getLogger(__name__)

BLANK, OUT_OF_RANGE = "blank", "out-of-range"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, named with its unit, and the values that it can have."""

    name: str
    lowest: float
    highest: float


CPU = Metric("cpu_percent", 0, 100)
MEMORY = Metric("memory_percent", 0, 100)
MEMORY_USED = Metric("memory_used_bytes", 0, 2**60)
LOAD = Metric("load_1min", 0, 1e6)
SENT = Metric("network_sent_bytes_per_s", 0, 1e13)
RECEIVED = Metric("network_received_bytes_per_s", 0, 1e13)
TEMPERATURE = Metric("temperature_celsius", 1, 130)
POWER = Metric("power_watts", 0.001, 5000)
SM_CLOCK = Metric("sm_clock_mhz", 1, 10_000)
UTILIZATION = Metric("utilization_percent", 0, 100)
DEVICE_MEMORY = Metric("device_memory_used_bytes", 0, 2**50)
ECC_ERRORS = Metric("ecc_uncorrected_errors", 0, 1e12)
"""Uncorrectable memory errors since the driver was loaded; a device without ECC gives none."""
RECORDER_SPAN = Metric("recorder_span_ns", 1, 1e6)
"""What recording one span costs a rank, as it measured when it began; one row a rank."""
OVERHEAD = Metric("recording_overhead_percent", -100, 1000)
OVERHEAD_LOW = Metric("recording_overhead_percent_low", -100, 1000)
OVERHEAD_HIGH = Metric("recording_overhead_percent_high", -100, 1000)
"""How much longer a timed step of this host's ranks takes than a shadow step, and its interval of 95 %."""


def judged(metric: Metric, value: float | None) -> dict[str, Any]:
    """Value and flag of a metric, as columns of ``health``: NULL where there is no value that can be true."""
    if value is None or math.isnan(value):
        return {"metric": metric.name, "value": None, "flag": BLANK}
    if not metric.lowest <= value <= metric.highest:
        return {"metric": metric.name, "value": None, "flag": OUT_OF_RANGE}
    return {"metric": metric.name, "value": float(value), "flag": None}


class HealthSampler:
    """Reads the host's metrics through psutil and the devices' through NVML, where there is one."""

    def __init__(self, nvml: Any = None) -> None:
        self._host = host_name()
        self._network: tuple[float, int, int] | None = None
        self._devices: list[str] = []
        self._nvml = _load_nvml() if nvml is None else nvml
        psutil.cpu_percent()  # the first call only starts the measurement

    def sample(self) -> list[dict[str, Any]]:
        """Rows of ``health`` at this moment, which the caller fills in."""
        common = {"host": self._host}
        rows = [{**common, "device": None, **judged(metric, value)} for metric, value in self._host_values()]
        if self._nvml is not None:
            rows += [{**common, **row} for row in self._device_rows(self._nvml)]
        return rows

    def _device_rows(self, nvml: Any) -> Iterator[dict[str, Any]]:
        """Rows of all devices, also of those that were there once and do not answer any more."""
        with contextlib.suppress(nvml.NVMLError):
            for index in range(len(self._devices), nvml.nvmlDeviceGetCount()):
                self._devices.append(f"index {index}")
        for index in range(len(self._devices)):
            handle = None
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                self._devices[index] = str(nvml.nvmlDeviceGetUUID(handle))
            for metric, read in _DEVICE_READS:
                value = None
                with contextlib.suppress(nvml.NVMLError):
                    value = None if handle is None else float(read(nvml, handle))
                yield {"device": self._devices[index], **judged(metric, value)}

    def _host_values(self) -> Iterator[tuple[Metric, float | None]]:
        memory = psutil.virtual_memory()
        yield CPU, psutil.cpu_percent()
        yield MEMORY, memory.percent
        yield MEMORY_USED, memory.used
        yield LOAD, psutil.getloadavg()[0]
        counters = psutil.net_io_counters()
        now = (time.monotonic(), counters.bytes_sent, counters.bytes_recv) if counters else None
        before, self._network = self._network, now
        if now is not None and before is not None and now[0] > before[0]:
            yield SENT, (now[1] - before[1]) / (now[0] - before[0])
            yield RECEIVED, (now[2] - before[2]) / (now[0] - before[0])


def _load_nvml() -> Any:
    """The initialised NVML binding; None where there is no driver."""
    try:
        import pynvml  # noqa: PLC0415  (present everywhere, of use only beside a driver)

        pynvml.nvmlInit()
    except Exception as error:  # an absent driver shows in many ways
        log.debug("No NVML: %s", error)
        return None
    return pynvml


_DEVICE_READS: tuple[tuple[Metric, Callable[[Any, Any], float]], ...] = (
    (TEMPERATURE, lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    (POWER, lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    (SM_CLOCK, lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
    (UTILIZATION, lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    (DEVICE_MEMORY, lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used),
    (
        ECC_ERRORS,
        lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    ),
)
