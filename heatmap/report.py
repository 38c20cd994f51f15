"""The straggler verdict as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .verdict import Abstention, Culprit, Outcome, StragglerVerdict, describe
from .waited_row import WaitedBasis, WaitedFor
from .whatif.result import WhatIf
from .whatif.words import costliest, sentence, share_words, short

_STYLES = {Outcome.FINDINGS: "bold red", Outcome.HEALTHY: "bold green", Outcome.INSUFFICIENT: "bold yellow"}

PRINTED = 20
"""The costliest findings, which are printed; a fleet may have a hundred."""


NAMED_SIGNALS = 3
"""More signals than these with the same reason are counted, and two of them named."""

NAME_LENGTH = 48
"""Of a segment, in a line of what was not judged: kernels have names of hundreds of characters."""


def render(verdict: StragglerVerdict) -> RenderableType:
    """The sentence, a table of culprits, the evidence of each, and what was not judged and why."""
    age = "" if verdict.data_age_s is None else f", newest data {_age(verdict.data_age_s)} old"
    parts: list[RenderableType] = [
        Text(_headline(verdict), _STYLES[verdict.verdict]),
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
        is_healthy = verdict.verdict == Outcome.HEALTHY
        parts += [Text(), Text(short(verdict.whatif))] if is_healthy else [Text(), *_whatif(verdict.whatif)]
    if verdict.arrivals:
        parts += [Text(), *_arrivals(verdict.arrivals)]
    if verdict.abstained:
        parts += [Text(), Text("Not judged", "bold")]
        parts += [Text(f"  {line}") for line in _not_judged(verdict.abstained)]
    return Group(*parts)


def _headline(verdict: StragglerVerdict) -> str:
    """The sentence, after the verdict's word; "healthy" would say more than that no straggler of some size showed."""
    if verdict.verdict == Outcome.HEALTHY:
        return verdict.sentence()
    return f"{verdict.verdict.upper()}: {verdict.sentence()}"


def _not_judged(abstained: Sequence[Abstention]) -> list[str]:
    """Lines for what was not judged; signals of equal reasons share one."""
    by_reason: dict[str, list[str]] = {}
    for one in abstained:
        by_reason.setdefault(one.reason, []).append(_shortened(one.signal))
    lines = []
    for reason, signals in by_reason.items():
        who = ", ".join(signals)
        if len(signals) > NAMED_SIGNALS:
            who = f"{len(signals)} segments, e.g. {', '.join(signals[:2])}"
        lines.append(f"{who}: {reason}")
    if (more := len(lines) - PRINTED) > 0:
        lines = [*lines[:PRINTED], f"{more} more reasons; --json lists them"]
    return lines


def _shortened(name: str) -> str:
    """A name that is no longer than `NAME_LENGTH`, without its middle."""
    half = NAME_LENGTH // 2 - 2
    return name if len(name) <= NAME_LENGTH else f"{name[:half]} .. {name[-half:]}"


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


def _arrivals(rows: tuple[WaitedFor, ...]) -> list[RenderableType]:
    """Who was waited for, at the boundaries of work or at operations."""
    first, by_clock = rows[0], rows[0].basis != WaitedBasis.FRONTIER
    title = f"Who was waited for ({first.basis}, {first.steps} steps)"
    of_clock = ("rank", "last in", "waiting caused, ms a step", "origin of")
    table = Table(*(of_clock if by_clock else ("rank", "behind in", "ms a step beyond the median rank")))
    for one in rows:
        if by_clock:
            last, share = f"{one.last_in} of {one.operations}", f"{one.origin_share or 0:.0%} of all waiting"
            table.add_row(str(one.rank), last, f"{one.caused_ms:.2f}", share)
        else:
            table.add_row(str(one.rank), escape(one.segment or ""), f"{one.caused_ms:.2f}")
    return [Text(title, "bold"), table]


def _whatif(found: WhatIf) -> list[RenderableType]:
    """What the job would gain, and by whose repair."""
    parts: list[RenderableType] = [Text(sentence(found), "bold")]
    if rows := costliest(found):
        table = Table("if it were at its ideal", "recovered of the difference", "saved of the job's time")
        for one in rows:
            table.add_row(escape(f"{one.part} {one.name}"), share_words(one.recovered), f"{max(one.saved, 0):.1%}")
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
