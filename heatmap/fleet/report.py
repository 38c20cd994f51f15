"""The fleet's statistics for a terminal."""

from __future__ import annotations

from pathlib import Path

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
            f"{_many(fleet.runs, 'run')}, {_many(len(fleet.attempts), 'attempt')}, {_many(fleet.host_count, 'host')}, "
            f"{fleet.gpu_hours:,.2f} "
            f"GPU-hours: {fleet.lost_gpu_hours:,.2f} lost to accused machines{_mfu(fleet.mfu, fleet.mfu_without)}",
            "dim",
        ),
    ]
    if fleet.hosts:
        parts += [Text(), _hosts(fleet)]
    parts += [Text(), _weeks(fleet)] if fleet.weeks else []
    parts += [Text(), _attempts(fleet)]
    if fleet.abstained:
        parts += [Text(), Text("Not judged", "bold")]
        parts += [Text(f"  {one.signal}: {one.reason}") for one in fleet.abstained]
    return Group(*parts)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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
        where = [
            f"{Path(a.store).name + ':' if len(fleet.stores) > 1 else ''}{a.run}/{a.attempt} {a.steps[0]}-{a.steps[1]}"
            for a in one.accusations
        ]
        table.add_row(
            escape(one.host + (f" (also {', '.join(one.also)})" if one.also else "")),
            "offender" if one.offender else "",
            f"{one.accused} of {_many(one.present, 'attempt')}, {one.runs_accused} of {_many(one.runs_present, 'run')}",
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
    has_mfu = any(one.mfu is not None for one in fleet.weeks)
    headings = ("attempts", "hours", "GPU-hours", "lost hours", "lost GPU-hours", "lost")
    for heading in headings + (_MFU if has_mfu else ()):
        table.add_column(heading, justify="right")
    for one in fleet.weeks:
        table.add_row(
            one.week, str(one.attempts), f"{one.hours:,.2f}", f"{one.gpu_hours:,.2f}", f"{one.lost_hours:,.2f}",
            f"{one.lost_gpu_hours:,.2f}", f"{one.lost_share:.1%}",
            *((_percent(one.mfu), _percent(one.mfu_without)) if has_mfu else ()),
        )  # fmt: skip
    return table


_MFU = ("MFU", "without them")


def _attempts(fleet: Fleet) -> Table:
    table = Table(title="Attempts", title_justify="left", title_style="bold")
    has_mfu, several = any(one.mfu is not None for one in fleet.attempts), len(fleet.stores) > 1
    for heading in (("store",) if several else ()) + ("run", "attempt", "verdict"):
        table.add_column(heading)
    for heading in ("ranks", "hosts", "GPU-hours", "lost") + (_MFU if has_mfu else ()):
        table.add_column(heading, justify="right")
    for one in fleet.attempts:
        table.add_row(
            *((escape(Path(one.store).name),) if several else ()),
            escape(one.run), str(one.attempt), one.verdict, "" if one.ranks is None else f"{one.ranks:,}",
            "" if one.hosts is None else str(one.hosts), "" if one.gpu_hours is None else f"{one.gpu_hours:,.2f}",
            f"{one.lost_share:.1%}", *((_percent(one.mfu), _percent(one.mfu_without)) if has_mfu else ()),
        )  # fmt: skip
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
