"""A comparison for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .compare import is_slower
from .result import Against, Place, Side, Slower, Verdict
from .words import step_words

_STYLES = {Verdict.SLOWER: "bold red", Verdict.NOT_SLOWER: "bold green", Verdict.INSUFFICIENT: "bold yellow"}
MAX_FASTER = 5


def render(found: Against) -> RenderableType:
    """The sentence, the two sides, what got slower with its evidence, what got faster, and what was not judged."""
    several = found.now.store != found.then.store
    parts: list[RenderableType] = [
        Text(f"{found.verdict.upper()}: {found.sentence}", _STYLES[found.verdict]),
        Text(f"now:  {_side(found.now, several)}", "dim"),
        Text(f"then: {_side(found.then, several)}", "dim"),
    ]
    if found.step is not None:
        parts.append(Text(f"step: {step_words(found.step)}"))
    if found.findings:
        parts += [Text(), _table(found.findings), Text()]
        for one in found.findings:
            parts.append(Text(f"  - {one.statement}"))
    if found.step is not None and is_slower(found.step) and (lines := _grown(found)):
        parts += [Text(), Text("A step takes longer for", "bold"), *lines]
    if found.small:
        parts += [Text(), Text("Small changes (under 0.5 % of the step, or within its interval)", "bold")]
        parts += [Text(f"  {one.statement}") for one in found.small[:MAX_FASTER]]
    if found.faster:
        parts += [Text(), Text("Faster", "bold"), *(Text(f"  {one.statement}") for one in found.faster[:MAX_FASTER])]
    if found.differences:
        parts += [Text(), Text("The two differ", "bold"), *(Text(f"  {one}") for one in found.differences)]
    if found.abstained:
        parts += [Text(), Text("Not judged", "bold")]
        parts += [Text(f"  {one.signal}: {one.reason}") for one in found.abstained]
    return Group(*parts)


def _grown(found: Against) -> list[Text]:
    return [
        Text(f"  {row.name}: {row.growth_ms:+,.2f} ms ({row.share:.0%})")
        for row in found.growth
        if row.share is not None and (abs(row.share) >= 0.01 or row.kind == "rest")
    ]


def _side(side: Side, several: bool) -> str:
    steps = "no steps" if side.steps is None else f"steps {side.steps[0]} to {side.steps[1]}"
    layout = " ".join(f"{axis}={size}" for axis, size in side.layout.items())
    who = f"{f'store {side.store}, ' if several else ''}run {side.run}, attempt {side.attempt}"
    return f"{who}, {steps}, {side.ranks:,} ranks ({layout}), from {side.source}"


def _table(findings: tuple[Slower, ...]) -> Table:
    table = Table(title="What got slower", title_justify="left", title_style="bold")
    for heading in ("where", "segment", "stage"):
        table.add_column(heading)
    for heading in ("now ms", "then ms", "ratio", "95 %", "own ms a step", "job loses", "of the step"):
        table.add_column(heading, justify="right")
    for one in findings:
        change, is_waiting = one.change, one.place == Place.WAITING
        table.add_row(
            escape(_where(one)),
            "" if is_waiting else escape(one.segment),
            "" if one.stage is None else str(one.stage),
            f"{change.now_ms:,.2f}",
            f"{change.then_ms:,.2f}",
            f"x{change.ratio:.3f}",
            "" if is_waiting else f"{change.low:.3f}-{change.high:.3f}",
            f"{one.own_ms:+,.1f}",
            f"{one.lost_ms:,.1f}",
            f"{one.lost_share:.1%}",
        )
    return table


def _where(one: Slower) -> str:
    if one.place == Place.WAITING:
        return f"waiting over {one.segment}"
    if one.place == Place.HOST:
        return f"host {', '.join(one.hosts)}"
    if one.place == Place.RANK:
        on = f" on {', '.join(one.hosts)}" if one.hosts else ""
        return f"rank {', '.join(str(rank) for rank in one.ranks)}{on}"
    return "all ranks" if one.place == Place.SEGMENT else f"stage {one.stage}"
