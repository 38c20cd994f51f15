"""The two verdicts as banners: who is slow, who is stuck. The analyses run in the background."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dash import dcc
from dash.development.base_component import Component

from ..collectors.reading.store import Attempt
from ..heatmap.stragglers import find_stragglers
from ..heatmap.verdict import Cause, Culprit, CulpritKind, Outcome, StragglerVerdict, describe
from ..profiler.vocabulary import stage_axis
from ..viz3d.hang import Judged, diagnose_with_graph, looks_at
from .components import Awaited, banner
from .view import View
from .workbench import Latest, Workbench

FIRST_WAIT_S = 0.25

LONG_S = 4 * FIRST_WAIT_S
"""What a verdict of all steps took if one of some of them is seldom there in `FIRST_WAIT_S`."""

_SLOW = {
    Outcome.FINDINGS: ("bad", "SLOW"),
    Outcome.HEALTHY: ("good", "NO STRAGGLER"),
    Outcome.INSUFFICIENT: ("unsure", "NOT JUDGED"),
}
_UNEVEN = frozenset({Cause.UNEVEN_STAGES, Cause.UNEVEN_INPUT})
_STUCK = {
    "hang": ("bad", "HANG"),
    "crashed": ("bad", "CRASHED"),
    "slow": ("unsure", "SLOW"),
    "running": ("good", "RUNNING"),
    "finished": ("good", "FINISHED"),
    "inconclusive": ("unsure", "INCONCLUSIVE"),
}


def stragglers_of(
    bench: Workbench, attempt: Attempt, steps: tuple[int, int] | None = None, *, wait_s: float = FIRST_WAIT_S
) -> Latest[StragglerVerdict]:
    """The newest straggler verdict that is ready, of all steps or of those from the first to the last given.

    That of some steps is not waited for where that of all took long.
    """
    key = straggler_key(attempt, steps)

    def judge() -> StragglerVerdict:
        return find_stragglers(bench.store, attempt, steps=steps, replays=bench.replays)

    whole = None if steps is None else bench.peek(straggler_key(attempt))
    if whole is not None and (whole.cost_s or 0.0) > LONG_S:
        wait_s = 0.0
    return bench.latest(key, judge, wait_s=wait_s)


def hang_of(
    bench: Workbench, attempt: Attempt, moment_ns: int | None = None, *, wait_s: float = FIRST_WAIT_S
) -> Latest[Judged]:
    """The newest hang verdict that is ready, of now or of a past moment, with what it was read from."""

    def judge() -> Judged:
        with bench.looks.judging(attempt_key(attempt), partial(looks_at, bench.store, attempt)) as looks:
            return diagnose_with_graph(bench.store, attempt, now_ns=moment_ns, looks=looks)

    return bench.latest(hang_key(attempt, moment_ns), judge, wait_s=wait_s)


def attempt_key(attempt: Attempt) -> Hashable:
    """An attempt, whatever is known of it by now."""
    return attempt.run, attempt.attempt


def straggler_key(attempt: Attempt, steps: tuple[int, int] | None = None) -> Hashable:
    """What `stragglers_of` is kept under."""
    return ("stragglers", attempt.run, attempt.attempt, *(steps or ()))


def hang_key(attempt: Attempt, moment_ns: int | None = None) -> Hashable:
    """What `hang_of` is kept under."""
    return ("hang", attempt.run, attempt.attempt, moment_ns)


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """A verdict as it is shown, and whether the first or a newer one is on its way."""

    banner: Component
    tone: str
    awaited: Awaited = Awaited.NOTHING


def verdict_banners(
    bench: Workbench, attempt: Attempt, view: View, *, both: bool = False, steps: tuple[int, int] | None = None
) -> tuple[list[Component], Awaited]:
    """Who is slow and who is stuck, a hang first; and whether one of them is still on its way.

    A page about slowness shows the second only where the job is stuck, unless it wants ``both``. Who is slow is judged
    in the ``steps`` (first, last), if any are given.
    """
    slow = straggler_banner(bench, attempt, view, steps, listed=both)
    stuck = hang_banner(bench, attempt, view, wait_s=wait_behind(slow))
    shown = [slow, stuck] if both else [slow]
    if stuck.tone == "bad":
        shown = [stuck, slow]  # whoever looks slow in a job that is stuck may just have waited
    return [each.banner for each in shown], max(slow.awaited, stuck.awaited)


def wait_behind(first: ShownVerdict) -> float:
    """How long a page waits for a second analysis: one runs at a time, so behind an awaited first one not at all."""
    return 0.0 if first.awaited == Awaited.FIRST else FIRST_WAIT_S


def straggler_banner(
    bench: Workbench,
    attempt: Attempt,
    view: View,
    steps: tuple[int, int] | None = None,
    *,
    listed: bool = False,
    wait_s: float = FIRST_WAIT_S,
) -> ShownVerdict:
    """The straggler verdict in one sentence, with a way to its evidence; ``listed``: the page has all findings."""
    latest = stragglers_of(bench, attempt, steps, wait_s=wait_s)
    verdict = latest.value
    if verdict is None:
        return _without_value(latest, "Comparing the ranks with their peers ...")
    links: list[Component | str] = [_age(latest)]
    if verdict.culprits:
        links += culprit_links(verdict.culprits[0], attempt, view)
    many = len(verdict.culprits)
    if (behind := _behind(verdict)) and not listed:
        links.append(dcc.Link(behind, href=view.same_job().url("/"), className="more"))
    tone, word = _SLOW[verdict.verdict]
    if verdict.culprits:
        word = _finding_word(verdict.culprits[0])
    within = "" if steps is None else f"In steps {steps[0]} to {steps[1]}: "
    sentence = verdict.sentence() if listed or many < 2 else f"{describe(verdict.culprits[0])}."
    return ShownVerdict(banner(tone, word, within + sentence, *links), tone, _awaited(latest))


def _behind(verdict: StragglerVerdict) -> str:
    """What more there is of a verdict on the Overview."""
    if len(verdict.culprits) > 1:
        return f"all {len(verdict.culprits)} findings"
    if verdict.culprits:
        return "evidence"
    return "not judged" if verdict.abstained and verdict.verdict == Outcome.HEALTHY else ""


def _finding_word(culprit: Culprit) -> str:
    """SLOW accuses machines; what a whole stage or job has does not."""
    if culprit.cause in _UNEVEN:
        return "UNEVEN"
    return "JOB-WIDE" if culprit.kind in (CulpritKind.JOB, CulpritKind.STAGE) else "SLOW"


def hang_banner(bench: Workbench, attempt: Attempt, view: View, *, wait_s: float = FIRST_WAIT_S) -> ShownVerdict:
    """The hang verdict in one sentence, with a way to the 3D page."""
    link = dcc.Link("who waits for whom", href=view.same_job().url("/3d"), className="more")
    return verdict_banner(hang_of(bench, attempt, wait_s=wait_s), link)


def verdict_banner(latest: Latest[Judged], *more: Component) -> ShownVerdict:
    """A hang verdict as a banner."""
    if latest.value is None:
        return _without_value(latest, "Reading the last heartbeats ...")
    verdict = latest.value.verdict
    tone, word = _STUCK.get(str(verdict.verdict), ("unsure", str(verdict.verdict).upper()))
    return ShownVerdict(banner(tone, word, verdict.sentence(), _age(latest), *more), tone, _awaited(latest))


def _without_value(latest: Latest[Any], waiting: str) -> ShownVerdict:
    if latest.error is not None:
        return ShownVerdict(banner("unsure", "NOT JUDGED", latest.error), "unsure", _awaited(latest))
    return ShownVerdict(banner("unsure", "ANALYSING", waiting), "unsure", _awaited(latest))


def _awaited(latest: Latest[Any]) -> Awaited:
    if not latest.stamp:
        return Awaited.FIRST
    return Awaited.NEWER if latest.stale else Awaited.NOTHING


def _age(latest: Latest[Any]) -> Component | str:
    """Says so where the shown verdict is older than the data and a newer one failed or takes its time."""
    if latest.error is not None:
        return f"(the newest analysis failed: {latest.error})"
    if latest.stale and latest.age_s is not None and latest.age_s >= 5:
        return f"(judged {latest.age_s:.0f} s ago)"
    return ""


def culprit_links(culprit: Culprit, attempt: Attempt, view: View) -> list[Component | str]:
    """Links from a culprit to its segment's heatmap and to its worst steps in the timeline."""
    job = view.same_job()
    first, stages = culprit.steps[0], stage_axis(attempt.layout)
    shown = {"show": "value"} if culprit.kind == CulpritKind.STAGE else {}
    if shown and stages is not None:
        shown["group"] = stages
    heatmap = dcc.Link("heatmap", href=job.url("/heatmap", segment=culprit.segment, **shown), className="more")
    if not culprit.ranks:  # the whole job's: no rank shows it more than others
        return [heatmap]
    timeline = job.url("/timeline", rank=culprit.ranks[0], axis=peer_axis(attempt), steps=(first, first))
    return [heatmap, dcc.Link("timeline", href=timeline, className="more")]


def peer_axis(attempt: Attempt) -> str | None:
    """The outermost axis along which ranks do the same work: any but that of the stages. None: the mesh has none."""
    stages = stage_axis(attempt.layout)
    return next((axis for axis, size in attempt.layout.items() if size > 1 and axis != stages), None)


def marks_of(verdict: StragglerVerdict | None, segment: str, attempt: Attempt) -> str:
    """The culprits at a segment as JSON, for the heatmap to frame: [{"ranks", "steps"}].

    An uneven stage names no ranks: it has its place instead, {"stage": "pp2"}, by the name of the mesh's axis.
    """
    stages = stage_axis(attempt.layout)
    culprits = [] if verdict is None else [c for c in verdict.culprits if c.segment == segment]
    return json.dumps([{"ranks": list(c.ranks), "steps": list(c.steps)} | _stage_mark(c, stages) for c in culprits])


def _stage_mark(culprit: Culprit, axis: str | None) -> dict[str, str]:
    if axis is None or culprit.kind != CulpritKind.STAGE or culprit.stage is None or culprit.ranks:
        return {}
    return {"stage": f"{axis}{culprit.stage}"}
