"""The fleet's statistics for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .result import Fleet

MAX_HOSTS = 20


def render(fleet: Fleet) -> RenderableType:
    """The sentence, hosts that were accused, weeks, attempts, and what was not judged."""
    is_bad = any(one.offender for one in fleet.hosts)
    style = "bold red" if is_bad else "bold green" if fleet.judged else "bold yellow"
    parts: list[RenderableType] = [
        Text(fleet.sentence, style),
        Text(
            f"{fleet.runs} runs, {len(fleet.attempts)} attempts, {fleet.host_count} hosts, {fleet.gpu_hours:,.2f} "
            f"GPU-hours: {fleet.lost_gpu_hours:,.2f} lost to accused machines{_mfu(fleet.mfu, fleet.mfu_without)}",
            "dim",
        ),
    ]
    if fleet.hosts:
        parts += [Text(), _hosts(fleet)]
    parts += [Text(), _weeks(fleet), Text(), _attempts(fleet)]
    if fleet.abstained:
        parts += [Text(), Text("Not judged", "bold")]
        parts += [Text(f"  {one.signal}: {one.reason}") for one in fleet.abstained]
    return Group(*parts)


def _mfu(mfu: float | None, without: float | None) -> str:
    return "" if mfu is None or without is None else f", MFU {mfu:.1%}, {without:.1%} without them"


def _hosts(fleet: Fleet) -> Table:
    more = len(fleet.hosts) - MAX_HOSTS
    title = "Hosts that were accused" + (f" (the first {MAX_HOSTS} of {len(fleet.hosts)})" if more > 0 else "")
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("host", "", "accused", "rate (95 %)", "by chance", "causes", "where"):
        table.add_column(heading)
    table.add_column("GPU-hours lost", justify="right")
    for one in fleet.hosts[:MAX_HOSTS]:
        where = [f"{a.run}/{a.attempt} {a.steps[0]}-{a.steps[1]}" for a in one.accusations]
        table.add_row(
            escape(one.host),
            "offender" if one.offender else "",
            f"{one.accused} of {one.present} attempts, {one.runs_accused} of {one.runs_present} runs",
            f"{one.rate:.0%} ({one.low:.0%} to {one.high:.0%})",
            f"{one.chance:.2g}",
            ", ".join(f"{cause} ({times})" for cause, times in one.causes.items()),
            escape(", ".join(where[:3]) + (", ..." if len(where) > 3 else "")),
            f"{one.lost_gpu_hours:,.2f}",
        )
    return table


def _weeks(fleet: Fleet) -> Table:
    table = Table(title="Weeks (ISO, UTC)", title_justify="left", title_style="bold")
    table.add_column("week")
    for heading in ("attempts", "hours", "GPU-hours", "lost hours", "lost GPU-hours", "lost", "MFU", "without them"):
        table.add_column(heading, justify="right")
    for one in fleet.weeks:
        table.add_row(
            one.week, str(one.attempts), f"{one.hours:,.2f}", f"{one.gpu_hours:,.2f}", f"{one.lost_hours:,.2f}",
            f"{one.lost_gpu_hours:,.2f}", f"{one.lost_share:.1%}", _percent(one.mfu), _percent(one.mfu_without),
        )  # fmt: skip
    return table


def _attempts(fleet: Fleet) -> Table:
    table = Table(title="Attempts", title_justify="left", title_style="bold")
    for heading in ("run", "attempt", "verdict"):
        table.add_column(heading)
    for heading in ("ranks", "hosts", "GPU-hours", "lost", "MFU", "without them"):
        table.add_column(heading, justify="right")
    for one in fleet.attempts:
        table.add_row(
            escape(one.run), str(one.attempt), one.verdict, f"{one.ranks:,}", str(one.hosts), f"{one.gpu_hours:,.2f}",
            f"{one.lost_share:.1%}", _percent(one.mfu), _percent(one.mfu_without),
        )  # fmt: skip
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
