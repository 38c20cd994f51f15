"""The straggler verdict as text for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .verdict import Culprit, Outcome, StragglerVerdict, describe
from .whatif.result import WhatIf
from .whatif.words import costliest, sentence

_STYLES = {Outcome.FINDINGS: "bold red", Outcome.HEALTHY: "bold green", Outcome.INSUFFICIENT: "bold yellow"}

PRINTED = 20
"""The costliest findings, which are printed; a fleet may have a hundred."""


def render(verdict: StragglerVerdict) -> RenderableType:
    """The sentence, a table of culprits, the evidence of each, and what was not judged and why."""
    age = "" if verdict.data_age_s is None else f", newest data {_age(verdict.data_age_s)} old"
    parts: list[RenderableType] = [
        Text(f"{verdict.verdict.upper()}: {verdict.sentence()}", _STYLES[verdict.verdict]),
        Text(f"run {verdict.run}, attempt {verdict.attempt}{age}", "dim"),
    ]
    if verdict.culprits:
        parts += [Text(), _table(verdict.culprits[:PRINTED])]
        for culprit in verdict.culprits[:PRINTED]:
            parts.append(Padding(_evidence(culprit), (1, 0, 0, 0)))
        if (more := len(verdict.culprits) - PRINTED) > 0:
            parts.append(Text(f"{more} more findings cost less; --json lists them"))
    if verdict.warnings:
        parts += [Text(), Text("Early warnings (nobody is accused)", "bold")]
        parts += [Text(f"  {one.sentence()}") for one in verdict.warnings]
    if verdict.whatif is not None:
        parts += [Text(), *_whatif(verdict.whatif)]
    if verdict.abstained:
        parts += [Text(), Text("Not judged", "bold")]
        parts += [Text(f"  {one.signal}: {one.reason}") for one in verdict.abstained]
    return Group(*parts)


def _table(culprits: tuple[Culprit, ...]) -> Table:
    table = Table(title="Who is slow", title_justify="left", title_style="bold")
    for heading in ("ranks", "hosts", "segment", "cause", "pattern", "severity"):
        table.add_column(heading)
    for heading in ("ratio", "steps", "time lost", "confidence"):
        table.add_column(heading, justify="right")
    for one in culprits:
        table.add_row(
            ", ".join(str(rank) for rank in one.ranks),
            escape(", ".join(one.hosts)),
            escape(one.segment),
            one.cause,
            one.pattern,
            one.severity,
            f"x{one.ratio:.2f}",
            f"{one.steps[0]}-{one.steps[1]}",
            f"{one.lost_share:.1%}",
            f"{one.confidence:.0%}",
        )
    return table


def _whatif(found: WhatIf) -> list[RenderableType]:
    """What the job would gain, and by whose repair."""
    parts: list[RenderableType] = [Text(sentence(found), "bold")]
    if rows := costliest(found):
        table = Table("part", "recovered if it alone is repaired", "saved of the job's time")
        for one in rows:
            table.add_row(escape(f"{one.part} {one.name}"), f"{one.recovered:.0%}", f"{one.saved:.1%}")
        parts.append(table)
    return parts


def _evidence(culprit: Culprit) -> Group:
    lines = [Text(describe(culprit), "bold")]
    lines += [Text(f"  - {evidence.statement}") for evidence in culprit.evidence]
    return Group(*lines)


def _age(seconds: float) -> str:
    """A duration in the unit that reads best."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
