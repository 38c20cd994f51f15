"""What stands behind a straggler verdict, folded: each finding's numbers with their SQL, and what was not judged."""

from __future__ import annotations

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from ..collectors.reading.store import Attempt
from ..collectors.verdicts import Abstention, Evidence
from ..heatmap.report import NAMED_SIGNALS, PRINTED
from ..heatmap.verdict import Culprit, StragglerVerdict, describe
from .components import hint, number, table
from .view import View

LONGEST_ADDRESS = 6000
"""Characters of an address that servers and browsers take for certain; a longer query is told where it is."""


def evidence_of(verdict: StragglerVerdict | None, attempt: Attempt) -> list[Component]:
    """The evidence of every finding and what was not judged, both folded; nothing before there is a verdict."""
    if verdict is None:
        return []
    return [*_findings(verdict.culprits, attempt), *not_judged(verdict.abstained)]


def sure(confidence: float) -> str:
    """Confidence (0 to 1) in words."""
    return f"{confidence:.0%} sure"


def _findings(culprits: Sequence[Culprit], attempt: Attempt) -> list[Component]:
    if not culprits:
        return []
    parts: list[Component] = []
    for culprit in culprits[:PRINTED]:
        parts += _finding(culprit, attempt)
    if (more := len(culprits) - PRINTED) > 0:
        parts.append(hint(f"{more} more findings cost less: megascope stragglers --json has their evidence."))
    first = culprits[0]
    numbers = sum(len(culprit.evidence) for culprit in culprits[:PRINTED])
    what = "of the finding" if len(culprits) == 1 else f"of {len(culprits)} findings"
    told = f"Evidence {what}: {numbers} number{'' if numbers == 1 else 's'} and their SQL"
    if len(culprits) == 1:
        told += f"; {sure(first.confidence)}, severity {first.severity}"
    return [html.Details([html.Summary(told), *parts], id="evidence", className="fold")]


_COLUMNS = {"statement": "what was seen", "value": "its number", "peers": "its peers'", "table": "table", "sql": ""}


def _finding(culprit: Culprit, attempt: Attempt) -> list[Component]:
    told = f"{sure(culprit.confidence)}; severity {culprit.severity}; cause: {culprit.cause}; accused: {culprit.kind}"
    rows = [
        {
            "statement": html.Span(one.statement, className="wrap"),
            "value": number(one.value),
            "peers": number(one.peers),
            "table": one.table,
            "sql": _query(one, attempt),
        }
        for one in culprit.evidence
    ]
    known: Component = hint("Its numbers were not asked for: megascope stragglers --json tells why.")
    if rows:
        known = table(_COLUMNS, rows, numbers=("value", "peers"))
    return [html.H3(f"{describe(culprit)}."), html.P(told, className="hint"), known]


def _query(evidence: Evidence, attempt: Attempt) -> Component | str:
    """A link to the page SQL that asks for the number again."""
    href = View(run=attempt.run, attempt=attempt.attempt).url("/sql", q=evidence.sql)
    if len(href) > LONGEST_ADDRESS:
        return html.Span("SQL in --json", title="The query is too long for an address")
    return dcc.Link("SQL", href=href, title="Ask the store for this number again")


def not_judged(abstained: Sequence[Abstention]) -> list[Component]:
    """What could not be judged and why, folded; signals of one reason together."""
    if not abstained:
        return []
    by_reason: dict[str, list[str]] = {}
    for one in abstained:
        by_reason.setdefault(one.reason, []).append(one.signal)
    items = [_reason(reason, signals) for reason, signals in list(by_reason.items())[:PRINTED]]
    more = len(by_reason) - len(items)
    rest = [hint(f"{more} more reasons: megascope stragglers --json has all.")] if more > 0 else []
    summary = html.Summary(f"Not judged ({len(abstained)})")
    return [html.Details([summary, html.Ul(items, className="plain"), *rest], id="not-judged", className="fold")]


def _reason(reason: str, signals: Sequence[str]) -> Component:
    who = ", ".join(signals)
    if len(signals) > NAMED_SIGNALS:
        who = f"{len(signals)} segments, such as {', '.join(signals[:2])}"
    return html.Li(f"{who}: {reason}", title=", ".join(signals))
