"""One look at one GPU through NVML: values as the driver gives them, None for what it does not tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

Values = dict[str, float | None]

MILLI = 1000
KIBI = 1024
ALL_LINKS = 0xFFFFFFFF
MOST_LINKS = 36

_READS: Mapping[str, Callable[[Any, Any], float]] = {
    "temperature_celsius": lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
    "slowdown_temperature_celsius": lambda n, h: n.nvmlDeviceGetTemperatureThreshold(
        h, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    ),
    "power_watts": lambda n, h: n.nvmlDeviceGetPowerUsage(h) / MILLI,
    "power_limit_watts": lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h) / MILLI,
    "sm_clock_mhz": lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    "sm_clock_max_mhz": lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
    "pcie_generation": lambda n, h: n.nvmlDeviceGetCurrPcieLinkGeneration(h),
    "pcie_generation_max": lambda n, h: n.nvmlDeviceGetMaxPcieLinkGeneration(h),
    "pcie_width": lambda n, h: n.nvmlDeviceGetCurrPcieLinkWidth(h),
    "pcie_width_max": lambda n, h: n.nvmlDeviceGetMaxPcieLinkWidth(h),
    "pcie_replay_errors": lambda n, h: n.nvmlDeviceGetPcieReplayCounter(h),
}
"""Metrics that one call gives; the arguments are the module ``pynvml`` and the device's handle."""

_ECC = {
    "ecc_corrected_errors": ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_VOLATILE_ECC"),
    "ecc_uncorrected_errors": ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"),
    "ecc_corrected_errors_lifetime": ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_AGGREGATE_ECC"),
    "ecc_uncorrected_errors_lifetime": ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_AGGREGATE_ECC"),
}

_ROWS = ("remapped_rows_corrected", "remapped_rows_uncorrected", "remapping_pending", "remapping_failed")

_FIELDS = {
    "memory_temperature_celsius": ("NVML_FI_DEV_MEMORY_TEMP", None, 1),
    "nvlink_replay_errors": ("NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", None, 1),
    "nvlink_recovery_errors": ("NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", None, 1),
    "nvlink_crc_errors": ("NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", None, 1),
    "nvlink_symbol_errors": ("NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS", ALL_LINKS, 1),
    "nvlink_sent_bytes": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS, KIBI),
    "nvlink_received_bytes": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS, KIBI),
}
"""Metrics among the field values: the field, its scope (all links together, or none), and the unit's factor."""

COUNTED = ("nvlink_sent_bytes", "nvlink_received_bytes")
"""Totals of which the sampler makes rates."""


def read_device(nvml: Any, handle: Any) -> Values:
    """All metrics of a device by name; None where the driver does not tell. Never raises NVMLError."""
    values: Values = {name: _asked(nvml, read, handle) for name, read in _READS.items()}
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    older = getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
    values["clocks_event_reasons"] = None
    for ask in filter(None, (reasons, older)):
        if values["clocks_event_reasons"] is None:
            values["clocks_event_reasons"] = _asked(nvml, partial(_of_handle, ask), handle)
    for name, kinds in _ECC.items():
        codes = [getattr(nvml, kind) for kind in kinds]
        values[name] = _asked(nvml, partial(_of_handle, nvml.nvmlDeviceGetTotalEccErrors, *codes), handle)
    values |= dict(_several(nvml, handle))
    return values | _fields(nvml, handle) | _links(nvml, handle)


def _asked(nvml: Any, read: Callable[[Any, Any], Any], handle: Any) -> float | None:
    try:
        return float(read(nvml, handle))
    except (nvml.NVMLError, ValueError, TypeError, AttributeError):
        return None


def _of_handle(ask: Callable[..., Any], *rest: Any) -> Any:
    """Call a function of the handle, which comes last here behind the module, and of other arguments."""
    *arguments, _, handle = rest
    return ask(handle, *arguments)


def _several(nvml: Any, handle: Any) -> Iterator[tuple[str, float | None]]:
    """Metrics that come together from one call."""
    names = ("utilization_percent", "memory_utilization_percent")
    yield from _together(nvml, names, lambda: _pair(nvml.nvmlDeviceGetUtilizationRates(handle)))
    yield from _together(nvml, ("device_memory_used_bytes",), lambda: (nvml.nvmlDeviceGetMemoryInfo(handle).used,))
    yield from _together(nvml, _ROWS, lambda: nvml.nvmlDeviceGetRemappedRows(handle))


def _pair(rates: Any) -> tuple[float, float]:
    return rates.gpu, rates.memory


def _together(nvml: Any, names: tuple[str, ...], ask: Callable[[], Any]) -> Iterator[tuple[str, float | None]]:
    try:
        found = tuple(float(one) for one in ask())
    except (nvml.NVMLError, ValueError, TypeError, AttributeError):
        found = ()
    yield from zip(names, found if len(found) == len(names) else (None,) * len(names), strict=True)


def _fields(nvml: Any, handle: Any) -> Values:
    """Metrics among the field values; one that the device does not have is None."""
    values: Values = dict.fromkeys(_FIELDS)
    known = [(name, *what) for name, what in _FIELDS.items() if hasattr(nvml, what[0])]
    asked = [getattr(nvml, code) if scope is None else (getattr(nvml, code), scope) for _, code, scope, _ in known]
    try:
        answers = nvml.nvmlDeviceGetFieldValues(handle, asked)
    except (nvml.NVMLError, AttributeError):
        return values
    for (name, _, _, factor), answer in zip(known, answers, strict=True):
        if answer.nvmlReturn == nvml.NVML_SUCCESS:
            value = _of_type(nvml, answer)
            values[name] = None if value is None else value * factor
    return values


def _of_type(nvml: Any, answer: Any) -> float | None:
    kinds = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    kind = kinds.get(answer.valueType)
    return None if kind is None else float(getattr(answer.value, kind))


def _links(nvml: Any, handle: Any) -> Values:
    """How many NVLinks the device has, and how many of them are up; None where it has none."""
    states = []
    for link in range(MOST_LINKS):
        state = _asked(nvml, partial(_of_handle, nvml.nvmlDeviceGetNvLinkState, link), handle)
        if state is None:
            break  # links are numbered without gaps: the first that is not there is behind the last
        states.append(state)
    if not states:
        return {"nvlinks": None, "nvlinks_up": None}
    return {"nvlinks": float(len(states)), "nvlinks_up": float(sum(state == 1 for state in states))}
