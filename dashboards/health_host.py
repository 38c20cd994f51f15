"""One host of the Health page: what is wrong with it, its GPUs and ports, and what happened to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from ..collectors.hardware.report import GpuHealth, HealthReport, HostHealth, PortHealth
from ..collectors.reading.store import Attempt
from .components import hint, number, table, utc
from .health_history import Line, lines_of_gpus
from .incident_data import Told
from .sparkline import sparkline
from .verdicts import peer_axis
from .view import View
from .workbench import Workbench

MOST_ROWS = 30


def opened(
    bench: Workbench,
    attempt: Attempt,
    report: HealthReport,
    host: HostHealth | None,
    view: View,
    incidents: Sequence[Told] = (),
) -> list[Component]:
    """The host's part of the page; a sentence where the address names one that is not there."""
    if host is None:
        return [hint(f"There is no host {view.host}: choose one from the list.")] if view.host is not None else []
    lines = bench.cached(
        ("health host", attempt.run, attempt.attempt, host.host),
        lambda: lines_of_gpus(bench.store, attempt, host.host, report.moment_ns or 0),
    )
    return [html.H2(f"Host {host.host}", id="opened"), *_remarks(host), *_gpus(attempt, host, lines, view),
            *_ports(host), *_events(host), *_incidents(attempt, host, incidents, view)]  # fmt: skip


def _remarks(host: HostHealth) -> list[Component]:
    if not host.remarks:
        return [hint("Nothing wrong is known of this host." if host.gpus else "Its GPUs are not sampled.")]
    items = [html.Li(f"{one.severity}: {one.text}") for one in host.remarks[:MOST_ROWS]]
    more = len(host.remarks) - MOST_ROWS
    return [html.Ul(items, className="plain", id="remarks"), *([hint(f"{more} more.")] if more > 0 else [])]


_GPU = {
    "device": "GPU", "ranks": "rank", "temperature": "temperature", "memory": "memory", "power": "power of limit",
    "clock": "SM clock of most", "use": "used", "held": "held back", "ecc": "ECC new / life", "links": "NVLinks",
    "pcie": "PCIe lanes",
}  # fmt: skip
_GPU_NUMBERS = ("temperature", "memory", "power", "clock", "use", "ecc", "links", "pcie")


def _gpus(attempt: Attempt, host: HostHealth, lines: Mapping[tuple[str, str], Line], view: View) -> list[Component]:
    if not host.gpus:
        return []
    rows = [_gpu(attempt, gpu, lines, view) for gpu in host.gpus]
    return [html.Div(table(_GPU, rows, numbers=_GPU_NUMBERS, name="gpus"), className="scroll")]


def _gpu(attempt: Attempt, gpu: GpuHealth, lines: Mapping[tuple[str, str], Line], view: View) -> dict[str, Any]:
    values = gpu.values
    new = sum(count for name, count in gpu.counted.items() if name == "ecc_uncorrected_errors")
    life = values.get("ecc_uncorrected_errors_lifetime")
    job = view.same_job()
    links: list[Component | str] = []
    for rank in gpu.ranks[:4]:
        links += [dcc.Link(str(rank), href=job.url("/timeline", rank=rank, axis=peer_axis(attempt))), " "]
    share = gpu.throttled_share
    limit, most = values.get("power_limit_watts"), values.get("sm_clock_max_mhz")
    why = ", ".join(gpu.throttled)
    return {
        "device": html.Span(gpu.device[:12], title=gpu.device),
        "ranks": html.Span(links) if links else None,
        "temperature": _drawn(
            _text(values.get("temperature_celsius"), "{:.0f} °C"),
            _line(lines.get((gpu.device, "temperature_celsius")), "°C", 20, 100),
        ),
        "memory": _text(values.get("memory_temperature_celsius"), "{:.0f} °C"),
        "power": _drawn(
            _of(values.get("power_watts"), limit, "W"), _line(lines.get((gpu.device, "power_watts")), "W", 0, limit)
        ),
        "clock": _drawn(
            _of(values.get("sm_clock_mhz"), most, "MHz"), _line(lines.get((gpu.device, "sm_clock_mhz")), "MHz", 0, most)
        ),
        "use": _text(values.get("utilization_percent"), "{:.0f} %"),
        "held": None
        if share is None
        else html.Span(f"{share:.0%}{f': {why}' if why and share else ''}", className="wrap"),
        "ecc": f"{new:g} / {'–' if life is None else f'{life:g}'}" if "ecc_uncorrected_errors" in values else None,
        "links": _of(values.get("nvlinks_up"), values.get("nvlinks"), ""),
        "pcie": _of(values.get("pcie_width"), values.get("pcie_width_max"), ""),
    }


def _drawn(text: str | None, line: Component | str) -> Component | None:
    """A value with its small line."""
    return None if text is None and not line else html.Span([text or "–", line])


def _text(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)


def _of(value: float | None, most: float | None, unit: str) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}{'' if most is None else f' of {most:,.0f}'} {unit}".strip()


def _line(line: Line | None, unit: str, low: float, high: float | None) -> Component | str:
    known = [value for value in line or () if value is not None]
    if line is None or not known:
        return ""
    text = f"{min(known):,.0f} to {max(known):,.0f} {unit} in the last hour"
    return sparkline(line, text, low=low, high=high or max(known), width=60)


_PORT = {"device": "RDMA port", "state": "link", "rate": "rate", "sent": "sent", "received": "received",
         "errors": "counted in this attempt"}  # fmt: skip


def _ports(host: HostHealth) -> list[Component]:
    if not host.ports:
        return []
    rows = [_port(port) for port in host.ports]
    return [table(_PORT, rows, numbers=("rate", "sent", "received"), name="ports")]


def _port(port: PortHealth) -> dict[str, Any]:
    up = port.values.get("rdma_link_up")
    counted = ", ".join(
        f"{name.removeprefix('rdma_').replace('_', ' ')} {count:g}" for name, count in port.counted.items()
    )
    return {
        "device": port.device,
        "state": None if up is None else "up" if up else "DOWN",
        "rate": _per_s(port.values.get("rdma_rate_bits_per_s"), "bit/s"),
        "sent": _per_s(port.values.get("rdma_sent_bytes_per_s"), "B/s"),
        "received": _per_s(port.values.get("rdma_received_bytes_per_s"), "B/s"),
        "errors": counted or "nothing",
    }


def _per_s(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value / 1e9:,.1f} G{unit}"


_EVENT = {"moment": "newest", "times": "times", "kind": "kind", "device": "device", "text": "what happened"}


def _events(host: HostHealth) -> list[Component]:
    if not host.events:
        return []
    rows = [
        {"moment": utc(one.moment_ns), "times": number(one.times), "kind": one.kind, "device": one.device or "the host",
         "text": html.Span(one.text, className="wrap")}
        for one in host.events[:MOST_ROWS]
    ]  # fmt: skip
    return [html.H2("What happened"), table(_EVENT, rows, numbers=("times",), name="events")]


_INCIDENT = {"opened": "opened", "kind": "incident or sign", "what": "what happened"}


def _incidents(attempt: Attempt, host: HostHealth, incidents: Sequence[Told], view: View) -> list[Component]:
    """What agents and the supervisor noted of this host or its ranks, the newest first."""
    own = [one for one in incidents if one.attempt == attempt.attempt and one.is_of(host.host, host.ranks)]
    if not own:
        return []
    job = view.same_job()
    rows = [
        {"opened": dcc.Link(utc(one.opened_ns), href=job.url("/incidents", incident=one.incident)), "kind": one.kind,
         "what": html.Span(one.what, className="wrap")}
        for one in own[:MOST_ROWS]
    ]  # fmt: skip
    more = len(own) - MOST_ROWS
    return [html.H2("Incidents and signs"), table(_INCIDENT, rows, name="host-incidents"),
            *([hint(f"{more} more on the page Incidents.")] if more > 0 else [])]  # fmt: skip
