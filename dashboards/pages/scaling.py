"""Scaling: the MFU that the simulator gives published models from hundreds to 100,000 GPUs, and what it assumes."""

from __future__ import annotations

from typing import Any

from dash import html
from dash.development.base_component import Component

from ...collectors.result_files import MFU_CURVE
from ..components import Rendered, hint, number, table, utc
from ..result_list import damaged_results, kept_results, results_frame
from ..view import View
from ..workbench import Workbench
from .page import Page

HOW = (
    "On each line, MFU from 0 to 100 %: the hollow ring is without any technique, the full one with all, and the "
    "squares are published. One of them, of the 530B model on 2,240 GPUs, tells how long compute takes; no other is "
    "fitted, and one set of assumptions holds for all points."
)


def frame(view: View, bench: Workbench) -> Component:
    """Run and attempt, and which result."""
    return results_frame(view, bench, MFU_CURVE, "curve", _listed)


def _listed(one: dict[str, Any]) -> str:
    return f"{one['model']}, {len(one['points'])} sizes, {utc(one['started_ns'])}"


def body(view: View, bench: Workbench) -> Rendered:
    """Points, techniques, the ablation, and the assumptions."""
    kept = kept_results(bench.store.root, MFU_CURVE)
    curve = kept.chosen(view.moment)
    if curve is None:
        text = f"No curve was simulated yet: megascope simulate {bench.store.root} --mfu-curve 175b"
        return Rendered([], [hint(text), *damaged_results(kept)])
    return Rendered(
        [],
        [
            html.H2(f"The {curve['model'].upper()} model: {curve.get('scaling', '')}"),
            table(_POINT, [_point(one) for one in curve["points"]], numbers=_NUMBERS, name="points"),
            hint(HOW),
            *(hint(text) for text in departures(curve)),
            html.H2("Each technique: points of MFU alone, and lost where it alone is left out"),
            table(*_techniques(curve), name="techniques"),
            html.Ul([html.Li(f"{name}: {meaning}") for name, meaning in curve["techniques"].items()]),
            html.H2(f"One after the other, at {curve['ladder_gpus']:,} GPUs"),
            table(_LADDER, [_rung(one) for one in curve["ladder"]], numbers=("ours", "theirs", "less"), name="ladder"),
            hint(f"Published: {curve['source']}"),
            html.H2("Assumptions"),
            html.Ul([html.Li(text) for text in curve["assumptions"]], id="assumptions"),
            *damaged_results(kept),
        ],
        frame_key=str(len(kept.results)),
    )


LEAST_TOLD = 0.005
"""A difference from a published value that is told: half a point of MFU."""


def departures(curve: dict[str, Any]) -> list[str]:
    """In a sentence, where MFU and gains are not as published; nothing where nothing is beside them, or all is near."""
    points = [
        f"{100 * abs(less):.1f} points {'above' if less > 0 else 'below'} that of {system} at {one['gpus']:,} GPUs"
        for one in curve["points"]
        for system, less in one["difference"].items()
        if abs(less) >= LEAST_TOLD
    ]
    rungs = [
        f"{', '.join(one['techniques'])} {100 * one['gain']:+.1f} where {100 * one['published']:+.1f} were published"
        for one in curve["ladder"]
        if one["published"] is not None and abs(one["gain"] - one["published"]) >= LEAST_TOLD
    ]
    told = [f"MFU is {', '.join(points)}"] if points else []
    told += [f"gains at {curve['ladder_gpus']:,} GPUs are {'; '.join(rungs)}"] if rungs else []
    missing = "Differences between machines, congestion, checkpoints and restarts are not simulated."
    return [f"Not as published: {'. And '.join(told)}. {missing}"] if told else []


_POINT = {
    "gpus": "GPUs", "sequences": "sequences", "step": "step, all", "none": "none", "all": "all",
    "published": "published (ours less it)", "line": "MFU",
}  # fmt: skip
_NUMBERS = ("gpus", "sequences", "step", "none", "all")
_LADDER = {"added": "added", "ours": "ours", "theirs": "published", "less": "ours less published"}


def _point(one: dict[str, Any]) -> dict[str, Any]:
    published = [
        f"{system} {mfu:.1%} ({100 * one['difference'][system]:+.1f})" for system, mfu in one["published"].items()
    ]
    return {
        "gpus": number(one["gpus"]),
        "sequences": number(one["sequences"]),
        "step": f"{one['step_s_all']:.2f} s",
        "none": f"{one['mfu_none']:.1%}",
        "all": f"{one['mfu_all']:.1%}",
        "published": ", ".join(published),
        "line": _line(one),
    }


_RING = {"border": "2px solid var(--link)", "borderRadius": "50%"}
_DOT = {"background": "var(--link)", "borderRadius": "50%"}


def _line(one: dict[str, Any]) -> Component:
    marks = [
        _mark(one["mfu_none"], "none", "without any technique", _RING),
        _mark(one["mfu_all"], "all", "with all", _DOT),
        *(_mark(mfu, "published", system, {"background": "var(--fault)"}) for system, mfu in one["published"].items()),
    ]
    style = {"position": "relative", "height": "14px", "minWidth": "300px", "borderBottom": "1px solid var(--line)"}
    return html.Div(marks, style=style)


def _mark(mfu: float, name: str, what: str, look: dict[str, str]) -> Component:
    place = {"position": "absolute", "left": f"{96 * mfu:.2f}%", "top": "2px", "width": "9px", "height": "9px"}
    return html.Span(
        title=f"{what}: {mfu:.1%}", className=f"mark-{name}", style={**place, "boxSizing": "border-box", **look}
    )


def _techniques(curve: dict[str, Any]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    columns = {"name": "technique"} | {str(one["gpus"]): f"{one['gpus']:,}" for one in curve["points"]}
    rows = []
    for name in curve["techniques"]:
        cells = {
            str(one["gpus"]): f"{100 * one['alone'][name]:+.1f} / {100 * one['without'][name]:+.1f}"
            for one in curve["points"]
        }
        rows.append({"name": name, **cells})
    return columns, rows


def _rung(one: dict[str, Any]) -> dict[str, Any]:
    theirs = one["published"]
    return {
        "added": ", ".join(one["techniques"]),
        "ours": f"{100 * one['gain']:+.1f}",
        "theirs": None if theirs is None else f"{100 * theirs:+.1f}",
        "less": None if theirs is None else f"{100 * (one['gain'] - theirs):+.1f}",
    }


PAGE = Page("/scaling", "Scaling", frame, body)
