"""Health: the machines of a run, the worst first; one of them opened with its GPUs, ports and what happened to it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from ...collectors.hardware.kernel_lines import Severity
from ...collectors.hardware.printing import cells, highest, lowest
from ...collectors.hardware.report import GpuHealth, HealthReport, HostHealth, health_report, sentence
from ...collectors.hardware.rules import port_errors
from ...collectors.reading.store import Attempt
from ..alarm_data import AlarmRow, State, alarms_of
from ..alarm_list import alarm_list
from ..components import Awaited, Rendered, banner, controls, facts, field, hint, number, table
from ..health_history import Line, lines_of_hosts
from ..health_host import opened
from ..incident_data import Told, incidents_of_run
from ..shell import job_controls
from ..sparkline import sparkline
from ..view import View, ranks_text
from ..workbench import Workbench
from .page import Page

MOST_HOSTS = 40
MOST_LEFT_OUT = 30
FIRST_WAIT_S = 0.5
ALARMS_READ_S = 10.0
"""Alarms are read again after so long at most."""
TONES = {Severity.ERROR: ("bad", "TROUBLE"), Severity.WARNING: ("unsure", "WORTH A LOOK")}
_WORDS = {Severity.ERROR: "trouble", Severity.WARNING: "look", Severity.NOTE: "note", None: "–"}
COLDEST, HOTTEST = 20.0, 100.0
"""Of the lines of temperature, in degrees Celsius."""


def frame(view: View, bench: Workbench) -> Component:
    """Run and attempt, and which hosts."""
    find = field("find", "hosts with", view.find or "", hint="Part of a host's name", placeholder="all")
    return job_controls(view, bench, controls([find], clears=("host",)))


def body(view: View, bench: Workbench) -> Rendered:
    """The worst in a sentence, the hosts, the chosen one, and what is not sampled."""
    attempt = bench.attempt(view)
    latest = bench.latest(
        ("health", attempt.run, attempt.attempt), lambda: health_report(bench.store, attempt), wait_s=FIRST_WAIT_S
    )
    report = latest.value
    if report is None:
        waiting = banner("unsure", "READING", latest.error or "Reading the samples of all machines ...")
        return Rendered(waiting, [], Awaited.NOTHING if latest.error else Awaited.FIRST)
    hosts = [one for one in report.hosts if (view.find or "").lower() in one.host.lower()]
    names = tuple(one.host for one in hosts[:MOST_HOSTS])
    lines = bench.latest(
        ("health lines", attempt.run, attempt.attempt, names),
        lambda: lines_of_hosts(bench.store, attempt, names, report.moment_ns or 0),
        wait_s=FIRST_WAIT_S,
    )
    incidents = bench.cached(("run incidents", attempt.run), lambda: incidents_of_run(bench.store, attempt.run))
    alarms = _alarms(bench, attempt, incidents)
    return Rendered(
        _banner(report),
        [
            facts([*_facts(report), *_alarm_fact(alarms)]),
            *_list(report, hosts, lines.value or {}, view),
            *opened(bench, attempt, report, _chosen(hosts, view), view, incidents),
            *alarm_list(alarms, view),
            *_not_sampled(report),
        ],
        Awaited.NEWER if latest.stale or lines.stale else Awaited.NOTHING,
    )


def _banner(report: HealthReport) -> Component:
    worst = report.hosts[0].severity if report.hosts else None
    tone, word = _calm(report) if worst is None else TONES.get(worst, _calm(report))
    return banner(tone, word, sentence(report))


def _calm(report: HealthReport) -> tuple[str, str]:
    """What is said where nothing is wrong: only who knows of all GPUs knows that."""
    sampled = [all(map(_is_told, one.gpus)) and bool(one.gpus) for one in report.hosts if one.ranks or one.gpus]
    if all(sampled) and sampled:
        return "good", "NOTHING WRONG"
    return "unsure", "NOT ALL SAMPLED" if any(sampled) else "NOT SAMPLED"


def _is_told(gpu: GpuHealth) -> bool:
    return any(value is not None for value in gpu.values.values())


def _facts(report: HealthReport) -> list[tuple[str, str, str]]:
    gpus = [gpu for one in report.hosts for gpu in one.gpus]
    silent = sum(gpu.values.get("temperature_celsius") is None for gpu in gpus)
    ports = [port for one in report.hosts for port in one.ports]
    down = sum(port.values.get("rdma_link_up") == 0 for port in ports)
    hot = max(
        (value for one in report.hosts if (value := highest(one, "temperature_celsius")) is not None), default=None
    )
    return [
        ("hosts", "hosts", number(len(report.hosts))),
        ("trouble", "in trouble", number(sum(one.severity == Severity.ERROR for one in report.hosts))),
        ("gpus", f"GPUs, {silent} of them without a value" if silent else "GPUs sampled", number(len(gpus))),
        ("hottest", "hottest GPU", "–" if hot is None else f"{hot:.0f} °C"),
        ("ports", f"RDMA ports, {down} of them down" if down else "RDMA ports sampled", number(len(ports))),
        ("lost", "spans lost", number(sum(one.lost_spans for one in report.hosts))),
    ]


def _alarms(bench: Workbench, attempt: Attempt, incidents: Sequence[Told]) -> list[AlarmRow] | str:
    """The alarms, or why they cannot be read. They change without the store's version: they are read again soon."""
    key = ("alarms", attempt.run, attempt.attempt, int(time.monotonic() / ALARMS_READ_S))
    try:
        return bench.cached(key, lambda: alarms_of(bench.store.root, attempt.run, attempt.attempt, incidents))
    except OSError as error:
        return f"The alarms of this attempt cannot be read: {error}"


def _alarm_fact(rows: Sequence[AlarmRow] | str) -> list[tuple[str, str, str]]:
    if isinstance(rows, str):
        return [("alarms", "alarms: not readable", number(None))]
    untold = sum(row.state in (State.WAITING, State.FAILED) for row in rows)
    return [("alarms", f"alarms, {untold} of them not told" if untold else "alarms", number(len(rows)))]


_COLUMNS = {
    "host": "host", "state": "", "remark": "what is wrong", "beat": "heartbeat", "gpus": "GPUs", "hottest": "hottest",
    "history": "last hour", "power": "power", "clock": "slowest SM", "throttled": "held back", "ecc": "ECC",
    "ports": "RDMA", "lost": "lost", "cost": "overhead",
}  # fmt: skip
_MEMORY_ERRORS = ("ecc_corrected_errors", "ecc_uncorrected_errors")
_NUMBERS = ("beat", "gpus", "hottest", "power", "clock", "throttled", "ecc", "ports", "lost", "cost")
HOW = (
    "ECC and RDMA count errors in this attempt (congestion is none); held back: share of the samples of the last ten "
    "minutes in which heat or the hardware kept clocks low; lost: spans that were overwritten before they were read; "
    "overhead: what recording adds to a step, by shadow steps. NULL is not known."
)


def _list(report: HealthReport, hosts: Sequence[HostHealth], lines: Mapping[str, Line], view: View) -> list[Component]:
    if not hosts:
        return [hint("No host has that in its name." if report.hosts else "No host is known yet.")]
    shown = hosts[:MOST_HOSTS]
    rows = [_row(one, lines.get(one.host), view) for one in shown]
    more = len(hosts) - len(shown)
    rest = [hint(f"{more:,} more hosts, none of them worse: megascope health --json has all.")] if more > 0 else []
    return [html.Div(table(_COLUMNS, rows, numbers=_NUMBERS, name="hosts"), className="scroll"), *rest, hint(HOW)]


def _row(one: HostHealth, line: Line | None, view: View) -> dict[str, Any]:
    _, beat, gpus, hottest, power, clock, _ = cells(one)
    worst = one.remarks[0] if one.remarks else None
    more = f" (and {len(one.remarks) - 1} more)" if len(one.remarks) > 1 else ""
    held = max((gpu.throttled_share for gpu in one.gpus if gpu.throttled_share is not None), default=None)
    cost = one.values.get("recording_overhead_percent")
    return {
        "host": dcc.Link(one.host, href=view.url("/health", host=one.host), title=f"ranks {ranks_text(one.ranks, 8)}"),
        "state": html.Span(_WORDS[one.severity], className=f"state {one.severity or 'none'}"),
        "beat": beat if one.heartbeat_age_s is not None else None,
        "gpus": gpus,
        "hottest": hottest if one.gpus else None,
        "history": temperature_line(line),
        "power": power if one.gpus else None,
        "clock": clock if lowest(one, "sm_clock_mhz") is not None else None,
        "throttled": None if held is None else f"{held:.0%}",
        "ecc": _errors(one),
        "ports": number(int(sum(port_errors(port.counted) for port in one.ports))) if one.ports else None,
        "lost": number(one.lost_spans),
        "cost": None if cost is None else f"{cost:.2f}%",
        "remark": html.Span("" if worst is None else f"{worst.text}{more}", className="wrap"),
    }


def _errors(one: HostHealth) -> str | None:
    """Memory errors of this attempt: counters of the GPU's life count the same ones again."""
    if not any(gpu.values.get(name) is not None for gpu in one.gpus for name in _MEMORY_ERRORS):
        return None
    return number(int(sum(gpu.counted.get(name, 0) for gpu in one.gpus for name in _MEMORY_ERRORS)))


def temperature_line(line: Line | None) -> Component | str:
    """A small line of temperatures; nothing where there are none."""
    known = [value for value in line or () if value is not None]
    if line is None or not known:
        return ""
    text = f"{min(known):.0f} to {max(known):.0f} °C"
    return sparkline(line, text, low=COLDEST, high=HOTTEST, colour="--bad" if max(known) >= 85 else "--link")


def _chosen(hosts: Sequence[HostHealth], view: View) -> HostHealth | None:
    """The host of the address; else the worst one, if anything is wrong with it."""
    if view.host is not None:
        return next((one for one in hosts if one.host == view.host), None)
    return hosts[0] if hosts and hosts[0].remarks else None


def _not_sampled(report: HealthReport) -> list[Component]:
    told = []
    for text, names in list(report.not_sampled.items())[:MOST_LEFT_OUT]:
        where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        told.append(html.Li(f"{text} ({where})"))
    more = len(report.not_sampled) - len(told)
    if more > 0:
        told.append(html.Li(f"{more:,} more sentences: megascope health --json has all."))
    return [html.H2("Not sampled"), html.Ul(told, className="plain", id="not-sampled")] if told else []


PAGE = Page("/health", "Health", frame, body)
