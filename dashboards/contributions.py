"""What the job would gain with every operation at its ideal, and what each part of it costs, as a table."""

from __future__ import annotations

from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from ..collectors.reading.store import Attempt
from ..heatmap.verdict import Outcome, StragglerVerdict
from ..heatmap.whatif.result import Contribution, Part, WhatIf
from ..heatmap.whatif.words import sentence, share_words, short
from ..profiler.vocabulary import stage_axis
from .components import hint, table
from .verdicts import peer_axis
from .view import View

LISTED = 8
"""Rows of each kind of part, the costliest."""

LEAST_RECOVERED = 0.005
"""Share of the difference below which a part is only counted."""


def what_if(verdict: StragglerVerdict | None, attempt: Attempt) -> list[Component]:
    """A sentence, and the table folded; nothing where that is not known."""
    if verdict is None or verdict.whatif is None:
        return []
    tell = short if verdict.verdict == Outcome.HEALTHY else sentence
    return [html.P(tell(verdict.whatif), id="what-if"), *_contributions(verdict.whatif, attempt)]


_COLUMNS = {
    "part": "part", "name": "which", "recovered": "recovers of the difference", "saved": "saves of the job's time",
    "alone": "the job with it alone as it is",
}  # fmt: skip
_NUMBERS = ("recovered", "saved", "alone")
HOW = (
    "Recovers: what is gone of the difference between the job as it is and the ideal one if this part alone is at its "
    "ideal; parts overlap, so that shares may add up to more than all. With it alone as it is: the job's time over the "
    "ideal one, if all but this part is ideal. A rank's and a host's part is their own work; transfers are "
    "told as links and segments."
)


def _contributions(found: WhatIf, attempt: Attempt) -> list[Component]:
    if not found.contributions:
        return []
    job = View(run=attempt.run, attempt=attempt.attempt)
    rows, cost_less, cost_little = [], [], []
    for part in Part:
        costly = [one for one in found.of(part) if one.recovered >= LEAST_RECOVERED]
        rows += [_row(one, attempt, job) for one in costly[:LISTED]]
        cost_less += _counted(len(costly) - LISTED, part)
        cost_little += _counted(len(found.of(part)) - len(costly), part)
    rest = [hint(f"Cost less: {', '.join(cost_less)}; megascope stragglers --json has them.")] if cost_less else []
    if cost_little:
        rest.append(hint(f"Recover less than {LEAST_RECOVERED:.1%} each: {', '.join(cost_little)}."))
    if found.unlisted_ranks:
        ranks = _counted(found.unlisted_ranks, Part.RANK)[0]
        rest.append(hint(f"Not computed, for they cost less: {ranks}."))
    first, last = found.steps
    steps = f"{found.step_count:,} steps of {first} to {last}"
    return [
        html.Details(
            [
                html.Summary(f"What each rank, host, link, stage and segment costs (what-if of {steps})"),
                *([table(_COLUMNS, rows, numbers=_NUMBERS, name="contributions")] if rows else []),
                *rest,
                hint(HOW),
            ],
            id="what-if-parts",
            className="fold",
        )
    ]


def _counted(many: int, part: Part) -> list[str]:
    return [f"{many:,} {part}{'' if many == 1 else 's'}"] if many > 0 else []


def _row(one: Contribution, attempt: Attempt, job: View) -> dict[str, Any]:
    href = _href(one, attempt, job)
    return {
        "part": one.part,
        "name": one.name if href is None else dcc.Link(one.name, href=href),
        "recovered": share_words(one.recovered),
        "saved": f"{max(one.saved, 0.0):.1%}",
        "alone": f"x{one.alone:.3f}",
    }


def _href(one: Contribution, attempt: Attempt, job: View) -> str | None:
    """Where the part is seen."""
    match one.part:
        case Part.RANK:
            return job.url("/timeline", rank=int(one.name), axis=peer_axis(attempt))
        case Part.LINK:
            ranks = tuple(int(rank) for rank in one.name.split(">"))
            return job.url("/timeline", rank=ranks[0], ranks=ranks)
        case Part.HOST:
            return job.url("/health", host=one.name)
        case Part.SEGMENT:
            return job.url("/heatmap", segment=one.name)
        case Part.STAGE:
            stages = stage_axis(attempt.layout)
            return None if stages is None else job.url("/heatmap", show="value", group=stages)
