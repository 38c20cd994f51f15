"""The hang verdict as a note: what happened, who is at the root, how we know, what to do, what is missing."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .advice import next_steps
from .hang import Judged
from .snapshot import Snapshot
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
UNDATED_NS = 10 * 365 * 86_400 * 10**9


def render(verdict: HangVerdict | Judged) -> RenderableType:
    """The note of a verdict; of a `Judged` also when it was, and what the last look at the ranks shows."""
    snapshot = verdict.snapshot if isinstance(verdict, Judged) else None
    verdict = verdict.verdict if isinstance(verdict, Judged) else verdict
    age = "" if verdict.data_age_s is None else f", newest data {plain_age(verdict.data_age_s)} old"
    parts: list[RenderableType] = [
        Text(f"{verdict.verdict.upper()}: {verdict.sentence()}", _STYLES[verdict.verdict]),
        Text(f"run {verdict.run}, attempt {verdict.attempt}{_seen(snapshot)}{age}", "dim"),
    ]
    if verdict.used:
        parts.append(Text(f"read from {'; '.join(str(one) for one in verdict.used)}", "dim"))
    if verdict.missing:
        parts.append(Text(f"Without data: {_listed(verdict.missing)}", "bold"))
    if verdict.culprits:
        parts += [Text(), _table(verdict.culprits)]
        for culprit in verdict.culprits:
            parts += _culprit(culprit)
    parts += _coverage(verdict)
    parts += _not_judged(verdict)
    return Group(*parts)


def _seen(snapshot: Snapshot | None) -> str:
    """When the look was, on the reference clock, and how many ranks it shows."""
    if snapshot is None:
        return ""
    hosts = len({*snapshot.hosts.values()})
    on = f" on {hosts:,} host{'' if hosts == 1 else 's'}" if hosts else ""
    seen = f"{len(snapshot.states):,} ranks{on}"
    if snapshot.moment_ns < UNDATED_NS:
        return f", {seen}"
    moment = datetime.fromtimestamp(snapshot.moment_ns / 1e9, UTC)
    return f", as of {moment:%Y-%m-%d %H:%M:%S} UTC, {seen}"


def _culprit(culprit: HangCulprit) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(), Text(describe(culprit), "bold")]
    if culprit.evidence:
        parts.append(Text("  How we know"))
        parts += [Text(f"  - {evidence.statement}") for evidence in culprit.evidence]
    parts.append(Text("  What to do next"))
    parts += [Text(f"  {number}. {step}") for number, step in enumerate(next_steps(culprit), 1)]
    return parts


def _coverage(verdict: HangVerdict) -> list[RenderableType]:
    if not verdict.culprits or not verdict.victims:
        return []
    told = f"Coverage: explains {verdict.explained:,} of {verdict.victims:,} waiting ranks"
    if verdict.unexplained:
        return [Text(), Text(f"{told}; not explained: {_listed(verdict.unexplained)}.")]
    return [Text(), Text(f"{told}.")]


def _not_judged(verdict: HangVerdict) -> list[RenderableType]:
    if not verdict.abstained:
        return []
    told = [Text(f"  {one.signal}: {one.reason}") for one in verdict.abstained]
    return [Text(), Text("Not judged", "bold"), *told]


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
    more = f" ({len(ranks):,} in all)" if len(ranks) > MAX_LISTED else ""
    return listed(ranks, MAX_LISTED) + more
