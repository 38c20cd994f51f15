"""The result in words: the verdict, who is accused and why, what was measured, and what was not."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .measurements import Outcome, Report

WORDS = {
    Outcome.FINDINGS: ("FINDINGS", "bold red"),
    Outcome.HEALTHY: ("HEALTHY", "bold green"),
    Outcome.INSUFFICIENT: ("NOT ENOUGH EVIDENCE", "bold yellow"),
}
SHOWN = 40


def render(report: Report) -> RenderableType:
    """For a terminal or a file."""
    word, style = WORDS[report.verdict]
    hosts = "1 host" if len(report.hosts) == 1 else f"{len(report.hosts)} hosts"
    layout = " x ".join(f"{axis} {size}" for axis, size in report.layout.items())
    head = f"  {report.world_size} ranks on {hosts} ({report.device}), {layout}, checked in {report.seconds:.1f} s"
    lines: list[RenderableType] = [Text.assemble((word, style), head)]
    lines += [Text(f"  {culprit.statement}") for culprit in report.culprits[:SHOWN]]
    if len(report.culprits) > SHOWN:
        lines.append(Text(f"  and {len(report.culprits) - SHOWN} more (--json has all)"))
    lines += [Text(f"  {note}") for note in report.notes]
    lines.append(_table(report))
    for title, left in (("Not judged", report.abstained), ("Not run", report.skipped)):
        lines += [Text(f"{title}: {one.signal}: {one.reason}") for one in left]
    return Group(*lines)


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, justify in (("check", "left"), ("of", "left"), ("values", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("median", "lowest", "highest"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    for one in report.summaries:
        numbers = ["-" if value is None else f"{value:,.4g}" for value in (one.median, one.lowest, one.highest)]
        table.add_row(f"{one.check} {one.metric}", escape(one.peers), str(one.count), *numbers, one.unit)
    return table
