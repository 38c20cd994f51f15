"""3D: every rank at its place in the mesh with what it is in, who waits for whom, and the hang verdict beside it."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from ...collectors.reading.store import Attempt
from ..components import Rendered, controls, data, select, utc
from ..scene.data import incidents_of, moment_before_end, scene_of, snapshot_of, wait_for_verdict_s
from ..shell import job_controls
from ..verdicts import hang_of, straggler_banner, verdict_banner, wait_behind
from ..view import View
from ..workbench import Workbench
from .page import Page

BEFORE_S = (5, 10, 30, 60, 300, 1800)
MOST_INCIDENTS = 12


def frame(view: View, bench: Workbench) -> Component:
    """Run, attempt, and the moment that is judged; the picture's own choices stand in it."""
    attempt = bench.attempt(view)
    moments = _moments(bench, attempt, view.moment)
    own = controls([select("moment", "judged moment", moments, str(view.moment or ""))], clears=("look",))
    return job_controls(view, bench, own)


def _moments(bench: Workbench, attempt: Attempt, chosen: int | None) -> dict[str, str]:
    """Moments to choose from: the newest heartbeats, some before them, and when incidents were opened.

    Where the job did not end well, the last look before its end comes first.
    """
    before_end = moment_before_end(bench, attempt)
    newest = _newest_ns(bench, attempt)
    options = {"": f"newest: {utc(newest)}"}
    if before_end is not None:
        options = {"": f"before the end: {utc(before_end)}", str(newest): f"newest: {utc(newest)}"}
    for before in BEFORE_S:
        moment = newest - before * 10**9
        if attempt.start_ns is None or moment > attempt.start_ns:
            options[str(moment)] = f"{before} s before: {utc(moment)}"
    for moment, kind in _incidents(bench, attempt).items():
        options[str(moment)] = f"incident {kind}: {utc(moment)}"
    if chosen is not None:
        options.setdefault(str(chosen), utc(chosen))
    return options


def _newest_ns(bench: Workbench, attempt: Attempt) -> int:
    """When the newest look is: the judged one's where that is the newest, since taking another takes time."""
    judged = hang_of(bench, attempt, wait_s=0).value
    if attempt.exit_reason is None and judged is not None and judged.snapshot is not None:
        return judged.snapshot.moment_ns
    return snapshot_of(bench, attempt, None).moment_ns


def _incidents(bench: Workbench, attempt: Attempt) -> dict[int, str]:
    """When incidents were opened, and their kind: the first of each second, since every host opens its own."""
    found: dict[int, tuple[int, str]] = {}
    for row in sorted(incidents_of(bench, attempt), key=lambda one: int(one["opened_ns"])):
        found.setdefault(int(row["opened_ns"]) // 10**9, (int(row["opened_ns"]), str(row["kind"])))
    return dict(list(found.values())[-MOST_INCIDENTS:])


def _moments_key(bench: Workbench, attempt: Attempt) -> str:
    """What there is to choose beside the moments that run on: changes when an incident is opened or the job ends."""
    return f"{moment_before_end(bench, attempt)}|{len(incidents_of(bench, attempt))}"


def body(view: View, bench: Workbench) -> Rendered:
    """The verdict, and the picture with all that stands around it (assets/scene_7_view.js)."""
    attempt = bench.attempt(view)
    latest = hang_of(bench, attempt, view.moment, wait_s=wait_for_verdict_s(attempt))
    verdict = verdict_banner(latest)
    banners, awaited = [verdict.banner], verdict.awaited
    if view.moment is None:  # who is slow is judged by all steps, not by one moment
        slow = straggler_banner(bench, attempt, view, wait_s=wait_behind(verdict))
        banners += [slow.banner] if slow.tone == "bad" else []
        awaited = max(awaited, slow.awaited)
    job = View(run=attempt.run, attempt=attempt.attempt, around=view.around, moment=view.moment)
    is_beside = view.rank is not None
    if latest.stamp:  # else the picture says so itself
        scene_of(bench, attempt, view, latest)  # says what of the address cannot be shown
        shown = scene_of(bench, attempt, job, latest).drawn.shown
        is_beside = shown is not None and view.rank is not None and view.rank not in shown
    source = job.url("/data/scene", rank=view.rank if is_beside else None)
    attributes = data(widget="scene", source=f"{source}&v={bench.stamp()}&verdict={latest.stamp}")
    picture = html.Div(id="widget-scene", className="widget scene", **attributes)
    return Rendered(banners, picture, awaited, _moments_key(bench, attempt))


PAGE = Page("/3d", "3D", frame, body)
