"""The hang verdict as text for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .verdict import HangCulprit, HangVerdict, State, describe, listed, plain_age

_STYLES = {
    State.HANG: "bold red",
    State.CRASHED: "bold red",
    State.SLOW: "bold yellow",
    State.INCONCLUSIVE: "bold yellow",
    State.RUNNING: "bold green",
    State.FINISHED: "bold green",
}
MAX_LISTED = 16


def render(verdict: HangVerdict) -> RenderableType:
    """The sentence, a table of roots, their evidence, coverage, and what could not be told."""
    age = "" if verdict.data_age_s is None else f", newest data {plain_age(verdict.data_age_s)} old"
    parts: list[RenderableType] = [
        Text(f"{verdict.verdict.upper()}: {verdict.sentence()}", _STYLES[verdict.verdict]),
        Text(f"run {verdict.run}, attempt {verdict.attempt}{age}", "dim"),
    ]
    if verdict.missing:
        parts.append(Text(f"Without data: {_listed(verdict.missing)}", "bold"))
    if verdict.culprits:
        parts += [Text(), _table(verdict.culprits)]
        for culprit in verdict.culprits:
            parts += [Text(), Text(describe(culprit), "bold")]
            parts += [Text(f"  - {evidence.statement}") for evidence in culprit.evidence]
    if verdict.unexplained:
        parts += [Text(), Text(f"Not explained: {_listed(verdict.unexplained)}")]
    if verdict.abstained:
        parts += [Text(), Text("Not judged", "bold")]
        parts += [Text(f"  {one.signal}: {one.reason}") for one in verdict.abstained]
    return Group(*parts)


def _table(culprits: tuple[HangCulprit, ...]) -> Table:
    table = Table(title="At the root", title_justify="left", title_style="bold")
    for heading in ("ranks", "hosts", "kind", "segment", "group"):
        table.add_column(heading)
    for heading in ("waiters", "confidence"):
        table.add_column(heading, justify="right")
    for one in culprits:
        table.add_row(
            _listed(one.ranks),
            escape(", ".join(one.hosts[:4])),
            one.kind,
            escape(one.segment or ""),
            escape(str(one.group)) if one.group else "",
            str(one.waiters),
            f"{one.confidence:.0%}",
        )
    return table


def _listed(ranks: tuple[int, ...]) -> str:
    more = f" ({len(ranks)} in all)" if len(ranks) > MAX_LISTED else ""
    return listed(ranks, MAX_LISTED) + more
