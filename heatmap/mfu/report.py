"""The MFU report for a terminal, and its bins as rows of a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...profiler.errors import MegascopeError
from .growth import Growth
from .result import Bin, MfuReport, Slow, Trend

_STYLES = {
    Trend.DECLINED: "bold red",
    Trend.VARIES: "bold yellow",
    Trend.STEADY: "bold green",
    Trend.INSUFFICIENT: "bold yellow",
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR = 20

_EXPLAINED = (
    "own: what the mean rank's own time in it grew by; awaited: what the others wait for whoever takes longest in it; "
    "in no recorded span: the rest of the step"
)

CSV_COLUMNS = (
    "attempt", "first_step", "last_step", "start_utc", "end_utc", "steps", "step_ms", "median_step_ms", "mfu",
    "tokens_per_second", "speed", "lost_s", "largest_part", "largest_part_ms",
)  # fmt: skip


def render(report: MfuReport) -> RenderableType:
    """The sentence, a curve, where the time went, the bins, restarts and long steps, who was slow, what is unknown."""
    where = "all attempts" if report.attempt is None else f"attempt {report.attempt}"
    parts: list[RenderableType] = [
        Text(f"{report.verdict.upper()}: {report.sentence}", _STYLES[report.verdict]),
        Text(f"run {report.run}, {where}, from {report.source}{_totals(report)}", "dim"),
        Text(),
        Text(_curve(report)),
    ]
    if report.growth:
        parts += [Text(), _growth(report), Text(_EXPLAINED, "dim")]
    parts += [Text(), _bins(report)]
    if report.restarts:
        parts += [Text(), Text("Restarts", "bold"), *_restarts(report)]
    if report.long_steps:
        parts += [Text(), Text(f"Single long steps ({report.long_step_count})", "bold"), *_long_steps(report)]
    if report.slow:
        parts += [Text(), Text("Slow meanwhile (megascope stragglers tells more)", "bold")]
        parts += [Text(f"  [{place}] {_who(one)}") for place, one in enumerate(report.slow)]
    if report.abstained:
        parts += [Text(), Text("Not judged", "bold")]
        parts += [Text(f"  {one.signal}: {one.reason}") for one in report.abstained]
    return Group(*parts)


def _curve(report: MfuReport) -> str:
    """Speed against the reference over the bins, with its range."""
    speeds = [one.speed for one in report.bins if one.speed is not None]
    return f"Speed  {sparkline([one.speed for one in report.bins])}  {min(speeds):.0%} to {max(speeds):.0%}"


def sparkline(values: list[float | None]) -> str:
    """One character a value, from the least to the largest; a space where there is none."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    top = len(_BLOCKS) - 1
    return "".join(
        " " if value is None else _BLOCKS[round((value - low) * scale) if scale else top] for value in values
    )


def _totals(report: MfuReport) -> str:
    shown = []
    if report.mfu is not None:
        shown.append(f"MFU {report.mfu:.1%} over all steps")
    if report.mfu_wall is not None:
        shown.append(f"{report.mfu_wall:.1%} over all the time")
    if report.tokens_per_second is not None:
        shown.append(f"{report.tokens_per_second:,.0f} tokens/s")
    if report.verdict in Trend.changed():
        shown.append(f"{report.lost_s:,.1f} s ({report.lost_share:.1%}) lost against steps {_steps(report.reference)}")
    return "".join(f", {one}" for one in shown)


def _steps(steps: tuple[int, int] | None) -> str:
    return "" if steps is None else f"{steps[0]} to {steps[1]}"


def _bins(report: MfuReport) -> Table:
    """The bins; columns that would be empty are left out."""
    has_moments = any(one.start_ns is not None for one in report.bins)
    has_mfu = any(one.mfu is not None for one in report.bins)
    has_tokens = any(one.tokens_per_second is not None for one in report.bins)
    columns: list[tuple[str, bool, Literal["left", "right"], Callable[[Bin], str]]] = [
        ("from (UTC)", has_moments, "left", lambda one: _utc(one.start_ns)),
        ("attempt", len({one.attempt for one in report.bins}) > 1, "right", lambda one: str(one.attempt)),
        ("steps", True, "left", lambda one: f"{one.steps[0]}-{one.steps[1]}"),
        ("step ms", True, "right", lambda one: f"{one.step_ms:,.1f}"),
        ("MFU", has_mfu, "right", lambda one: "" if one.mfu is None else f"{one.mfu:.1%}"),
        ("tokens/s", has_tokens, "right", lambda one: _number(one.tokens_per_second)),
        ("speed", True, "right", lambda one: "" if one.speed is None else f"{one.speed:.1%}"),
        ("", True, "left", lambda one: "█" * round(_BAR * min(one.speed or 0.0, 1.2))),
        ("mostly longer for", True, "left", lambda one: "(reference)" if one.is_reference else escape(_mostly(one))),
    ]
    chosen = [(title, justify, text) for title, shown, justify, text in columns if shown]
    rows = [[text(one) for _, _, text in chosen] for one in report.bins]
    table = Table(title="Over time", title_justify="left", title_style="bold")
    for title, justify, _ in chosen:
        table.add_column(title, justify=justify, no_wrap=title in ("from (UTC)", "steps"))
    for row in rows:
        table.add_row(*row)
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _mostly(one: Bin) -> str:
    most = one.growth[0].growth_ms if one.growth else 0.0
    named = [f"{row.name} +{row.growth_ms:,.1f} ms" for row in one.growth[:2] if row.growth_ms > 0.1 * most]
    slow = f" [{', '.join(str(place) for place in one.slow)}]" if one.slow and named else ""
    return ", ".join(named) + slow


def _growth(report: MfuReport) -> Table:
    title = f"Why steps of the slower bins take {report.growth_ms:,.2f} ms more than in the reference stretch"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("part of the step", "kind"):
        table.add_column(heading)
    for heading in ("reference ms", "longer by ms", "own", "awaited", "share"):
        table.add_column(heading, justify="right")
    shown, rest = _shown(report)
    for row in shown:
        table.add_row(
            escape(row.name), row.kind, f"{row.reference_ms:,.2f}", f"{row.growth_ms:+,.2f}", f"{row.own_ms:+,.2f}",
            f"{row.awaited_ms:+,.2f}", "" if row.share is None else f"{row.share:.1%}",
        )  # fmt: skip
    if rest:
        grown = sum(row.growth_ms for row in rest)
        share = grown / report.growth_ms if report.growth_ms > 0 else 0.0
        table.add_row(f"{len(rest)} other parts", "", "", f"{grown:+,.2f}", "", "", f"{share:.1%}")
    return table


def _shown(report: MfuReport) -> tuple[list[Growth], list[Growth]]:
    """Parts of at least a hundredth of the growth, and what no span recorded; and the others."""
    least = 0.01 * abs(report.growth_ms)
    shown = [row for row in report.growth if abs(row.growth_ms) >= least or row.kind == "rest"]
    return shown, [row for row in report.growth if row not in shown]


def _restarts(report: MfuReport) -> Iterator[Text]:
    for one in report.restarts:
        down = "" if one.down_s is None else f", {one.down_s:,.0f} s after the last step before it"
        ended = f" ({one.exit_reason})" if one.exit_reason else ""
        yield Text(
            f"  attempt {one.attempt} began again at step {one.first_step}{down}{ended}: {one.lost_steps} steps "
            f"({one.lost_s:,.0f} s) were done twice"
        )


def _long_steps(report: MfuReport) -> Iterator[Text]:
    for one in report.long_steps[:8]:
        why = f"filled by {one.segment}" if one.segment else "no span tells why: a restart or a stall looks like this"
        yield Text(f"  step {one.step} took {one.duration_ms / 1e3:,.2f} s, x{one.ratio:.1f} of the median: {why}")


def _who(one: Slow) -> str:
    ranks = ", ".join(str(rank) for rank in one.ranks[:8]) + (", ..." if len(one.ranks) > 8 else "")
    who = f"{one.kind} {ranks}".strip() + (f" on {', '.join(one.hosts[:4])}" if one.hosts else "")
    return (
        f"{who}: {one.cause} in {one.segment}, x{one.ratio:.2f}, steps {one.steps[0]} to {one.steps[1]} of attempt "
        f"{one.attempt}, {one.lost_share:.1%} of its time"
    )


def _utc(moment_ns: int | None) -> str:
    return "" if moment_ns is None else datetime.fromtimestamp(moment_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def write_csv(report: MfuReport, path: Path) -> None:
    """One row a bin, with a header; what is not known is empty. MegascopeError where the file cannot be written."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(CSV_COLUMNS)
            for one in report.bins:
                largest = one.growth[0] if one.growth else None
                writer.writerow(
                    [
                        one.attempt, *one.steps, _utc(one.start_ns), _utc(one.end_ns), one.count, one.step_ms,
                        one.median_step_ms, one.mfu, one.tokens_per_second, one.speed, one.lost_s,
                        None if largest is None else largest.name, None if largest is None else largest.growth_ms,
                    ]
                )  # fmt: skip
    except OSError as error:
        raise MegascopeError(f"Cannot write {path} ({error.strerror}): give another --csv.") from error
