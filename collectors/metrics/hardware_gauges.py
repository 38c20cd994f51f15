"""Metrics of table ``health`` as families: a fixed list, in base units, newest values only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..hardware.throttling import HARD, THERMAL
from ..hardware.xids import explain
from .family import Family, Samples

MOST_DEVICES = 32
"""GPUs and ports of one host, each: those beyond are left out."""

STALE_S = 120.0
"""Without a new row of a value for so long, it is not known any more. What is steady is written once a minute."""

How = Literal["newest", "sum", "hardware-xids", "held-back"]

_DEVICE, _PORT = ("device",), ("port",)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a metric of ``health`` goes; ``factor`` makes base units of it, ``extra`` is one more label's value."""

    family: str
    factor: float = 1.0
    how: How = "newest"
    extra: tuple[str, ...] = ()


HARDWARE: tuple[Family, ...] = (
    Family("megascope_device_temperature_celsius", "gauge", "Temperature of the GPU.", _DEVICE),
    Family("megascope_device_memory_temperature_celsius", "gauge", "Temperature of the GPU's memory.", _DEVICE),
    Family("megascope_device_power_watts", "gauge", "Power that the GPU draws.", _DEVICE),
    Family("megascope_device_sm_clock_hertz", "gauge", "Clock of the GPU's multiprocessors.", _DEVICE),
    Family("megascope_device_utilization_ratio", "gauge", "Share of time in which a kernel ran, 0 to 1.", _DEVICE),
    Family("megascope_device_memory_used_bytes", "gauge", "Memory of the GPU that is in use.", _DEVICE),
    Family(
        "megascope_device_throttled", "gauge", "1 while heat or the hardware holds the clock back, else 0.", _DEVICE
    ),
    Family("megascope_device_ecc_uncorrected_errors_total", "counter", "Uncorrected memory errors.", _DEVICE),
    Family("megascope_device_row_remapping_failed", "gauge", "1 where a memory row could not be replaced.", _DEVICE),
    Family("megascope_device_pcie_replay_errors_total", "counter", "Packets sent again over PCIe.", _DEVICE),
    Family("megascope_device_nvlinks_up", "gauge", "NVLinks that are up.", _DEVICE),
    Family("megascope_device_xid_errors_total", "counter", "Xids that speak against the GPU or a link.", _DEVICE),
    Family("megascope_port_up", "gauge", "1 while the link of the RDMA port is up, else 0.", _PORT),
    Family("megascope_port_sent_bytes_per_second", "gauge", "Sent through the RDMA port.", _PORT),
    Family("megascope_port_received_bytes_per_second", "gauge", "Received through the RDMA port.", _PORT),
    Family("megascope_port_errors_total", "counter", "Errors of the RDMA port, by counter.", (*_PORT, "counter")),
    Family("megascope_host_cpu_ratio", "gauge", "Share of the host's CPU time in use, 0 to 1."),
    Family("megascope_host_load1", "gauge", "Processes that run or wait to run, over one minute."),
    Family("megascope_host_memory_used_ratio", "gauge", "Share of the host's memory in use, 0 to 1."),
    Family("megascope_host_network_sent_bytes_per_second", "gauge", "Sent by the host."),
    Family("megascope_host_network_received_bytes_per_second", "gauge", "Received by the host."),
    Family("megascope_host_network_errors_total", "counter", "Packets with errors at the host's interfaces."),
)

SOURCES: Mapping[str, _Source] = {
    "temperature_celsius": _Source("megascope_device_temperature_celsius"),
    "memory_temperature_celsius": _Source("megascope_device_memory_temperature_celsius"),
    "power_watts": _Source("megascope_device_power_watts"),
    "sm_clock_mhz": _Source("megascope_device_sm_clock_hertz", 1e6),
    "utilization_percent": _Source("megascope_device_utilization_ratio", 0.01),
    "device_memory_used_bytes": _Source("megascope_device_memory_used_bytes"),
    "clocks_event_reasons": _Source("megascope_device_throttled", how="held-back"),
    "ecc_uncorrected_errors": _Source("megascope_device_ecc_uncorrected_errors_total"),
    "remapping_failed": _Source("megascope_device_row_remapping_failed"),
    "pcie_replay_errors": _Source("megascope_device_pcie_replay_errors_total"),
    "nvlinks_up": _Source("megascope_device_nvlinks_up"),
    "xid": _Source("megascope_device_xid_errors_total", how="hardware-xids"),
    "rdma_link_up": _Source("megascope_port_up"),
    "rdma_sent_bytes_per_s": _Source("megascope_port_sent_bytes_per_second"),
    "rdma_received_bytes_per_s": _Source("megascope_port_received_bytes_per_second"),
    **{
        f"rdma_{counter}": _Source("megascope_port_errors_total", how="sum", extra=(counter,))
        for counter in ("symbol_errors", "link_downed", "receive_errors", "ack_timeouts", "retries_exceeded_errors")
    },
    "cpu_percent": _Source("megascope_host_cpu_ratio", 0.01),
    "load_1min": _Source("megascope_host_load1"),
    "memory_percent": _Source("megascope_host_memory_used_ratio", 0.01),
    "network_sent_bytes_per_s": _Source("megascope_host_network_sent_bytes_per_second"),
    "network_received_bytes_per_s": _Source("megascope_host_network_received_bytes_per_second"),
    "network_errors": _Source("megascope_host_network_errors_total", how="sum"),
}

_ONE_DEVICE = frozenset(family.name for family in HARDWARE if family.labels)


_Key = tuple[str, tuple[str, ...]]
"""A family, and the values of its labels."""


class HardwareGauges:
    """The newest values of this host's hardware, by family and labels."""

    def __init__(self) -> None:
        self._values: dict[_Key, tuple[float, float]] = {}  # value, and when it was told
        self._sums: dict[_Key, float] = {}
        self.seen_at = float("-inf")

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of ``health`` as they are sampled; a value that is NULL takes the one before away."""
        for row in rows:
            source = SOURCES.get(row["metric"])
            if source is None or (source.how == "hardware-xids" and not _accuses_hardware(row["value"])):
                continue
            self.seen_at = time.monotonic()
            where = (str(row.get("device")),) if source.family in _ONE_DEVICE else ()
            self._take((source.family, (*where, *source.extra)), source, row["value"])

    def _take(self, key: _Key, source: _Source, value: float | None) -> None:
        if source.how in ("sum", "hardware-xids"):
            more = value if source.how == "sum" else 1.0
            self._sums[key] = self._sums.get(key, 0.0) + (more or 0.0)
        elif value is None:
            self._values.pop(key, None)
        elif source.how == "held-back":
            self._values[key] = float(bool(int(value) & (HARD | THERMAL))), self.seen_at
        else:
            self._values[key] = value * source.factor, self.seen_at

    def add_to(self, samples: Samples) -> None:
        """The values as they are, each as long as it is still sampled; sums as long as anything is."""
        now = time.monotonic()
        if now - self.seen_at > STALE_S:
            return
        values = {key: value for key, (value, told_at) in self._values.items() if now - told_at <= STALE_S}
        shown: dict[str, set[str]] = {"device": set(), "port": set()}
        for (family, labels), value in sorted({**values, **self._sums}.items()):
            if labels:
                of = shown["port" if family.startswith("megascope_port_") else "device"]
                of.add(labels[0])
                if len(of) > MOST_DEVICES:
                    of.discard(labels[0])
                    continue
            samples.add(family, value, *labels)


def _accuses_hardware(xid: float | None) -> bool:
    """Whether an Xid is an error of the GPU or of a link: programs that fail or are ended have Xids too."""
    return xid is not None and explain(int(xid)).accuses_hardware
