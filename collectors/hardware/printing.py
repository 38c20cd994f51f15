"""The health report for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .kernel_lines import Severity
from .report import HealthReport, HostHealth, sentence

MOST_HOSTS = 40
MOST_REMARKS = 8
MOST_LEFT_OUT = 30
_STYLES: Mapping[Severity | None, str] = {
    Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "dim", None: "green",
}  # fmt: skip


def render(report: HealthReport) -> RenderableType:
    """The sentence, a row for each machine, what is wrong with each, and what is not sampled."""
    worst = next((one.severity for one in report.hosts), None)
    parts: list[RenderableType] = [Text(sentence(report), _STYLES[worst]), Text()]
    table = Table(box=None, pad_edge=False)
    for heading in ("host", "ranks", "heartbeat", "GPUs", "hottest", "power", "slowest clock", "memory", "remarks"):
        table.add_column(heading, justify="left" if heading in ("host", "remarks") else "right")
    for host in report.hosts[:MOST_HOSTS]:
        table.add_row(host.host, *cells(host), Text(_count(host), _STYLES[host.severity]))
    parts.append(table)
    if len(report.hosts) > MOST_HOSTS:
        parts.append(Text(f"{len(report.hosts) - MOST_HOSTS} more machines are not shown: --json has them.", "dim"))
    for host in report.hosts[:MOST_HOSTS]:
        parts += [Text(f"{host.host}: {one.text}", _STYLES[one.severity]) for one in host.remarks[:MOST_REMARKS]]
        if len(host.remarks) > MOST_REMARKS:
            parts.append(Text(f"{host.host}: {len(host.remarks) - MOST_REMARKS} more remarks", "dim"))
    for text, hosts in list(report.not_sampled.items())[:MOST_LEFT_OUT]:
        parts.append(Text(f"{text} ({len(hosts)} host{'' if len(hosts) == 1 else 's'})", "dim"))
    if len(report.not_sampled) > MOST_LEFT_OUT:
        more = len(report.not_sampled) - MOST_LEFT_OUT
        parts.append(Text(f"{more} more sentences on what is not sampled: --json has them.", "dim"))
    return Group(*parts)


def cells(host: HostHealth) -> tuple[str, ...]:
    """Ranks, age of the heartbeat, GPUs, highest temperature, power, lowest clock and memory of a host, as texts."""
    return (
        str(len(host.ranks)),
        "-" if host.heartbeat_age_s is None else f"{host.heartbeat_age_s:.0f} s",
        str(len(host.gpus)),
        _text(highest(host, "temperature_celsius"), "{:.0f} °C"),
        _text(_sum(host, "power_watts"), "{:,.0f} W"),
        _text(lowest(host, "sm_clock_mhz"), "{:,.0f} MHz"),
        _text(host.values.get("memory_percent"), "{:.0f} %"),
    )


def highest(host: HostHealth, metric: str) -> float | None:
    """The highest newest value of a metric among the GPUs of a host; None where none tells it."""
    return max(_values(host, metric), default=None)


def lowest(host: HostHealth, metric: str) -> float | None:
    """The lowest newest value of a metric among the GPUs of a host; None where none tells it."""
    return min(_values(host, metric), default=None)


def _sum(host: HostHealth, metric: str) -> float | None:
    found = _values(host, metric)
    return sum(found) if found else None


def _values(host: HostHealth, metric: str) -> list[float]:
    found = (gpu.values.get(metric) for gpu in host.gpus)
    return [value for value in found if value is not None]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _count(host: HostHealth) -> str:
    return "none" if not host.remarks else f"{len(host.remarks)}, worst: {host.severity}"
