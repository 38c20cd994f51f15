"""Overview: the verdict, then the run's headline numbers and curves, and what is wrong with the data itself."""

from __future__ import annotations

from typing import Any

from dash import html
from dash.development.base_component import Component

from ...collectors.overhead import RecordingOverhead, recording_overhead
from ...collectors.reading.store import Attempt
from ...heatmap.verdict import describe
from ..absence import pruned_texts
from ..components import Rendered, facts, hint, milliseconds, number, table, utc, widget
from ..contributions import what_if
from ..curves import Headline, headline
from ..evidence import evidence_of, sure
from ..findings import verdict_details
from ..shell import job_controls
from ..verdicts import culprit_links, stragglers_of, verdict_banners
from ..view import View
from ..workbench import Workbench
from .page import Page


def frame(view: View, bench: Workbench) -> Component:
    """The run and attempt selectors."""
    return job_controls(view, bench)


def body(view: View, bench: Workbench) -> Rendered:
    """Verdicts, headline numbers, curves, faults and damage."""
    attempt = bench.attempt(view)
    banners, awaited = verdict_banners(bench, attempt, view, both=True)
    head = bench.cached(("headline", attempt.run, attempt.attempt), lambda: headline(bench.store, attempt))
    cost = bench.cached(("overhead", attempt.run, attempt.attempt), lambda: recording_overhead(bench.store, attempt))
    verdict = stragglers_of(bench, attempt, wait_s=0).value
    source = view.same_job().url("/data/curves", run=attempt.run, attempt=attempt.attempt)
    children: list[Component] = [
        facts([*_facts(attempt, head), _recording(cost)]),
        *_findings(bench, attempt, view),
        *evidence_of(verdict, attempt),
        *what_if(verdict, attempt),
        widget("curves", f"{source}&v={bench.stamp()}", height=330),
        *verdict_details(verdict, attempt, view),
        *(hint(text) for text in pruned_texts(bench, attempt)),
        *_damage(bench),
        *_faults(bench, attempt),
    ]
    return Rendered(banners, children, awaited)


def _facts(attempt: Attempt, head: Headline) -> list[tuple[str, str, str]]:
    day, _, time = utc(attempt.start_ns).removesuffix(" UTC").partition(" ")
    layout = " · ".join(f"{axis}{size}" for axis, size in attempt.layout.items()) or "unknown layout"
    ranks = f"{head.ranks} of {attempt.world_size}" if attempt.world_size else f"{head.ranks}"
    return [
        ("step", "last step", number(head.last_step)),
        ("loss", f"loss at step {head.loss_step}" if head.loss is not None else "loss", number(head.loss)),
        ("throughput", "tokens/s", number(head.tokens_per_second, 4)),
        ("mfu", "MFU", f"{head.mfu:.1%}" if head.mfu is not None else "unknown"),
        ("grad_norm", "gradient norm", number(head.grad_norm)),
        ("step_time", "step time (median)", milliseconds(head.step_ns)),
        ("ranks", f"ranks with data, {layout}", ranks),
        ("hosts", "host" if head.hosts == 1 else "hosts", number(head.hosts)),
        ("start", f"start, {day} UTC", time),
    ]


def _findings(bench: Workbench, attempt: Attempt, view: View) -> list[Component]:
    """All that the straggler verdict names, where that is more than the banner says."""
    verdict = stragglers_of(bench, attempt, wait_s=0).value
    if verdict is None or len(verdict.culprits) < 2:
        return []
    rows = [
        {
            "finding": describe(culprit),
            "cause": culprit.cause,
            "confidence": sure(culprit.confidence),
            "more": html.Span([part for link in culprit_links(culprit, attempt, view) for part in (link, " ")]),
        }
        for culprit in verdict.culprits
    ]
    return [
        html.H2(f"All {len(rows)} findings"),
        table({"finding": "finding", "cause": "cause", "confidence": "", "more": ""}, rows, name="findings"),
    ]


def _recording(cost: RecordingOverhead) -> tuple[str, str, str]:
    """What recording costs a step: as calculated from the cost of a span, and as measured by shadow steps."""
    calibrated = None if cost.calibrated_percent is None else _percent(cost.calibrated_percent)
    if cost.percent is not None and cost.low is not None and cost.high is not None:
        measured = f"measured {_percent(cost.percent)} ({_percent(cost.low)} to {_percent(cost.high)})"
        return ("recording", f"recording cost of a step; {measured}", calibrated or "–")
    if calibrated is None:
        return ("recording", "recording cost of a step: unknown", "–")
    return ("recording", "recording cost of a step, calculated from the cost of a span", calibrated)


def _percent(percent: float) -> str:
    return f"{percent:.2f}%" if abs(percent) >= 0.01 or percent == 0 else f"{percent:.1g}%"


def _damage(bench: Workbench) -> list[Component]:
    damaged = bench.store.damaged
    if not damaged:
        return []
    rows = [{"path": str(file.path), "reason": file.reason} for file in damaged[:50]]
    return [
        html.H2(f"Damaged files ({len(damaged)}): left out of everything shown here"),
        table({"path": "file", "reason": "what is wrong"}, rows, name="damaged"),
    ]


def _faults(bench: Workbench, attempt: Attempt) -> list[Component]:
    rows = bench.cached(
        ("faults", attempt.run, attempt.attempt), lambda: bench.store.read("faults", attempt).to_pylist()
    )
    if not rows:
        return []
    columns = {"fault": "fault", "kind": "kind", "ranks": "ranks", "segment": "segment", "factor": "factor"}
    return [
        html.H2("Faults put in on purpose"),
        table({**columns, "steps": "steps"}, [_fault(row) for row in rows], name="faults"),
        hint("This run carries these faults by its own configuration: a demonstration or a test."),
    ]


def _fault(row: dict[str, Any]) -> dict[str, Any]:
    last = row["last_step"]
    steps = f"{number(row['first_step'])} to {'the end' if last is None else last}"
    ranks = ", ".join(str(rank) for rank in row["ranks"] or ()) or None
    where = row["segment"] or row["link"] or row["host"] or "all"
    factor = None if row["factor"] is None else f"x{row['factor']:g}"
    return {
        "fault": row["fault"],
        "kind": row["kind"],
        "ranks": ranks,
        "segment": where,
        "factor": factor,
        "steps": steps,
    }


PAGE = Page("/", "Overview", frame, body)
