"""Rows of ``health`` from what GPUs, ports and the host have told: rates and differences, judged by their ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..health import RESET, Metric, judged
from .counters import Deltas
from .metrics import DEVICE, HOST, PORT, by_name
from .nvml import COUNTED
from .rdma import BYTES_PER_WORD, TRAFFIC, TROUBLE

Row = dict[str, Any]

_HOST, _PORT = by_name(HOST), by_name(PORT)


class Rows:
    """Makes rows without host and moment, which the caller fills in; remembers counters from one sample to the next."""

    def __init__(self) -> None:
        self._deltas = Deltas()
        self._at: dict[str, float] = {}

    def of_host(self, readings: list[tuple[str, float | None]]) -> list[Row]:
        """Rows of the host itself."""
        rows = []
        for name, value in readings:
            row = {"device": None, **judged(_HOST[name], value)}
            rows.append(row | {"flag": RESET} if value is None and _HOST[name].is_delta else row)
        return rows

    def of_gpu(self, device: str, values: Mapping[str, float | None], now_s: float) -> list[Row]:
        """Rows of a GPU, of every metric; without ``values`` all are blank."""
        seconds = self._since(device, now_s)
        rates = {f"{name}_per_s": self._rate(device, name, values.get(name), seconds) for name in COUNTED}
        found = {**values, **rates}
        return [{"device": device, **judged(metric, found.get(metric.name))} for metric in DEVICE]

    def of_port(self, port: Mapping[str, Any], now_s: float) -> list[Row]:
        """Rows of an RDMA port: of the counters that it has."""
        device = str(port["port"])
        seconds = self._since(device, now_s)
        rows = [
            {"device": device, **judged(_PORT[name], port[key])}
            for name, key in (("rdma_link_up", "up"), ("rdma_rate_bits_per_s", "rate"))
        ]
        counters: Mapping[str, int] = port["counters"]
        for name, metric in TRAFFIC.items():
            if name in counters:
                words = self._rate(device, name, counters[name], seconds)
                value = None if words is None else words * BYTES_PER_WORD
                rows.append({"device": device, **judged(_PORT[metric], value)})
        return [*rows, *self._trouble(device, counters)]

    def of_silent_port(self, device: str) -> list[Row]:
        """Rows of a port of which nothing is known now: its gauges are blank; what it counted counts from here on."""
        self._deltas.forget(device)
        return [{"device": device, **judged(metric, None)} for metric in PORT if not metric.is_delta]

    def _trouble(self, device: str, counters: Mapping[str, int]) -> Iterator[Row]:
        for name, metric in TROUBLE.items():
            change, is_statement = self._deltas.take(device, name, counters.get(name))
            if is_statement:
                yield {"device": device, **_delta(_PORT[metric], change)}

    def _since(self, device: str, now_s: float) -> float | None:
        before, self._at[device] = self._at.get(device), now_s
        return None if before is None or now_s <= before else now_s - before

    def _rate(self, device: str, name: str, value: float | None, seconds: float | None) -> float | None:
        change, _ = self._deltas.take(device, name, None if value is None else int(value))
        return None if change is None or seconds is None else change / seconds


def _delta(metric: Metric, change: int | None) -> Row:
    row = judged(metric, change)
    return row | {"flag": RESET} if change is None else row
