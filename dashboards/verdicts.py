"""The two verdicts as banners: who is slow, who is stuck. The analyses run in the background."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dash import dcc
from dash.development.base_component import Component

from ..collectors.store import Attempt
from ..heatmap.stragglers import find_stragglers
from ..heatmap.verdict import Culprit, Outcome, StragglerVerdict
from ..viz3d.hang import diagnose
from ..viz3d.verdict import HangVerdict
from .components import banner
from .view import View
from .workbench import Latest, Workbench

FIRST_WAIT_S = 0.25
PEER_AXES = ("dp", "tp")
"""Axes whose groups do the same work; the first that the mesh has opens beside a rank."""

_SLOW = {
    Outcome.FINDINGS: ("bad", "SLOW"),
    Outcome.HEALTHY: ("good", "HEALTHY"),
    Outcome.INSUFFICIENT: ("unsure", "NOT JUDGED"),
}
_STUCK = {
    "hang": ("bad", "HANG"),
    "crashed": ("bad", "CRASHED"),
    "slow": ("unsure", "SLOW"),
    "running": ("good", "RUNNING"),
    "finished": ("good", "FINISHED"),
    "inconclusive": ("unsure", "INCONCLUSIVE"),
}


def stragglers_of(bench: Workbench, attempt: Attempt, *, wait_s: float = FIRST_WAIT_S) -> Latest[StragglerVerdict]:
    """The newest straggler verdict that is ready."""
    key = ("stragglers", attempt.run, attempt.attempt)
    return bench.latest(key, lambda: find_stragglers(bench.store, attempt), wait_s=wait_s)


def hang_of(bench: Workbench, attempt: Attempt, *, wait_s: float = FIRST_WAIT_S) -> Latest[HangVerdict]:
    """The newest hang verdict that is ready."""
    key = ("hang", attempt.run, attempt.attempt)
    return bench.latest(key, lambda: diagnose(bench.store, attempt), wait_s=wait_s)


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict as it is shown. ``pending``: there is none yet, but it is on its way."""

    banner: Component
    tone: str
    pending: bool = False


def verdict_banners(
    bench: Workbench, attempt: Attempt, view: View, *, both: bool = False
) -> tuple[list[Component], bool]:
    """Who is slow and who is stuck, a hang first; and whether one is still on its way.

    A page about slowness shows the second only where the job is stuck, unless it wants ``both``.
    """
    slow, stuck = straggler_banner(bench, attempt, view), hang_banner(bench, attempt, view)
    shown = [slow, stuck] if both else [slow]
    if stuck.tone == "bad":
        shown = [stuck, slow]  # whoever looks slow in a job that is stuck may just have waited
    return [judged.banner for judged in shown], slow.pending or stuck.pending


def straggler_banner(bench: Workbench, attempt: Attempt, view: View) -> Judged:
    """The straggler verdict in one sentence, with a way to its evidence."""
    latest = stragglers_of(bench, attempt)
    verdict = latest.value
    if verdict is None:
        return _without_value(latest, "Comparing the ranks with their peers ...")
    links: list[Component | str] = [_age(latest)]
    if verdict.culprits:
        links += culprit_links(verdict.culprits[0], attempt, view)
    tone, word = _SLOW[verdict.verdict]
    return Judged(banner(tone, word, verdict.sentence(), *links), tone)


def hang_banner(bench: Workbench, attempt: Attempt, view: View) -> Judged:
    """The hang verdict in one sentence, with a way to the 3D page."""
    link = dcc.Link("who waits for whom", href=view.same_job().url("/3d"), className="more")
    return verdict_banner(hang_of(bench, attempt), link)


def verdict_banner(latest: Latest[HangVerdict], *more: Component) -> Judged:
    """A hang verdict as a banner."""
    verdict = latest.value
    if verdict is None:
        return _without_value(latest, "Reading the last heartbeats ...")
    tone, word = _STUCK.get(str(verdict.verdict), ("unsure", str(verdict.verdict).upper()))
    return Judged(banner(tone, word, verdict.sentence(), _age(latest), *more), tone)


def _without_value(latest: Latest[Any], waiting: str) -> Judged:
    if latest.error is not None:
        return Judged(banner("unsure", "NOT JUDGED", latest.error), "unsure")
    return Judged(banner("unsure", "ANALYSING", waiting), "unsure", pending=True)


def _age(latest: Latest[Any]) -> Component | str:
    """Says so where the shown verdict is older than the data and a newer one failed or takes its time."""
    if latest.error is not None:
        return f"(the newest analysis failed: {latest.error})"
    if latest.pending and latest.age_s is not None and latest.age_s >= 5:
        return f"(judged {latest.age_s:.0f} s ago)"
    return ""


def culprit_links(culprit: Culprit, attempt: Attempt, view: View) -> list[Component | str]:
    """Links from a culprit to its segment's heatmap and to its worst steps in the timeline."""
    job = view.same_job()
    first = culprit.steps[0]
    timeline = job.url("/timeline", rank=culprit.ranks[0], axis=peer_axis(attempt), steps=(first, first))
    return [
        dcc.Link("heatmap", href=job.url("/heatmap", segment=culprit.segment), className="more"),
        dcc.Link("timeline", href=timeline, className="more"),
    ]


def peer_axis(attempt: Attempt) -> str | None:
    """The axis along which ranks do the same work, where the mesh has one; None lets the page choose."""
    return next((axis for axis in PEER_AXES if attempt.layout.get(axis, 1) > 1), None)


def marks_of(verdict: StragglerVerdict | None, segment: str) -> str:
    """The culprits at a segment as JSON, for the heatmap to frame: [{"ranks", "steps"}]."""
    culprits = [] if verdict is None else [c for c in verdict.culprits if c.segment == segment]
    return json.dumps([{"ranks": list(c.ranks), "steps": list(c.steps)} for c in culprits])
