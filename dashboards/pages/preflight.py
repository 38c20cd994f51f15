"""Preflight: what the checks before a job found, who is named for what, and every value beside its peers."""

from __future__ import annotations

from typing import Any

from dash import html
from dash.development.base_component import Component

from ...collectors.result_files import PREFLIGHT
from ..components import Rendered, banner, facts, hint, number, table, utc
from ..preflight_data import Dot, dots
from ..result_list import damaged_results, kept_results, results_frame
from ..view import View
from ..workbench import Workbench
from .page import Page

WORDS = {
    "findings": ("bad", "FINDINGS"),
    "healthy": ("good", "HEALTHY"),
    "insufficient-evidence": ("unsure", "NOT ENOUGH EVIDENCE"),
}
MOST_ROWS = 200
HOW = (
    "Each dot is a value, from 0 at the left to the largest at the right; accused ones are larger. A value is accused "
    "where it is worse than the median of its peers by more than two robust standard deviations (1.4826 times the "
    "median absolute deviation) and by more than the metric's margin, twice; or where it is beyond a floor or a limit."
)


def frame(view: View, bench: Workbench) -> Component:
    """Run and attempt, and which result."""
    return results_frame(view, bench, PREFLIGHT, "checked at", _listed)


def _listed(one: dict[str, Any]) -> str:
    return f"{utc(one['started_ns'])}: {one['verdict']}, {one['world_size']} ranks"


def body(view: View, bench: Workbench) -> Rendered:
    """The verdict, findings, values, and what was not judged or not run."""
    kept = kept_results(bench.store.root, PREFLIGHT)
    result = kept.chosen(view.moment)
    if result is None:
        text = f"No machine was checked yet: megascope preflight CONFIG --store {bench.store.root}"
        return Rendered([], [hint(text), *damaged_results(kept)])
    tone, word = WORDS.get(result["verdict"], ("unsure", str(result["verdict"]).upper()))
    return Rendered(
        banner(tone, word, _sentence(result)),
        [
            facts(_facts(result)),
            *_findings(result),
            *(hint(note) for note in result["notes"]),
            html.H2("Values"),
            table(_COLUMNS, [_row(result, one) for one in result["summaries"]], numbers=_NUMBERS, name="checks"),
            hint(HOW),
            *_left("Not judged", result["abstained"]),
            *_left("Not run", result["skipped"]),
            *damaged_results(kept),
        ],
        frame_key=str(len(kept.results)),
    )


def _sentence(result: dict[str, Any]) -> str:
    culprits = result["culprits"]
    if not culprits:
        return "Nothing was found." if result["verdict"] == "healthy" else "Too little could be compared."
    more = f" And {len(culprits) - 1} more." if len(culprits) > 1 else ""
    return f"{culprits[0]['statement']}{more}"


def _facts(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    layout = " · ".join(f"{axis}{size}" for axis, size in result.get("layout", {}).items())
    return [
        ("ranks", f"ranks, {layout}", number(result["world_size"])),
        ("hosts", "host" if len(result["hosts"]) == 1 else "hosts", number(len(result["hosts"]))),
        ("device", "device", str(result.get("device", "unknown"))),
        ("findings", "findings", number(len(result["culprits"]))),
        ("took", "quick form" if result.get("quick") else "whole form", f"{result.get('seconds', 0):.1f} s"),
    ]


def _findings(result: dict[str, Any]) -> list[Component]:
    culprits = result["culprits"]
    if not culprits:
        return []
    rows = [
        {
            "what": f"{one['check']} {one['metric'] or ''}".strip(),
            "kind": one["kind"],
            "reason": one["reason"],
            "statement": html.Div(one["statement"], style={"whiteSpace": "normal", "maxWidth": "75ch"}),
        }
        for one in culprits[:MOST_ROWS]
    ]
    columns = {"what": "check", "kind": "accused", "reason": "why", "statement": "evidence"}
    shown = [] if len(culprits) <= MOST_ROWS else [hint(f"The first {MOST_ROWS} of {len(culprits):,} are shown.")]
    return [html.H2("Findings"), table(columns, rows, name="findings"), *shown]


_COLUMNS = {
    "check": "check", "peers": "compared with", "count": "values", "lowest": "lowest", "median": "median",
    "highest": "highest", "unit": "unit", "spread": "all values",
}  # fmt: skip
_NUMBERS = ("count", "lowest", "median", "highest")


def _row(result: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: None if one[name] is None else number(float(one[name])) for name in _NUMBERS[1:]}
    return {
        "check": f"{one['check']} {one['metric']}",
        "peers": one["peers"],
        "count": number(one["count"]),
        **numbers,
        "unit": one["unit"],
        "spread": _strip(dots(result, one)),
    }


def _strip(found: list[Dot]) -> Component:
    """Values as dots on a line; accused ones are drawn last, and larger."""
    marks = [
        html.Span(
            title=dot.text,
            className="accused" if dot.is_accused else "value",
            style={
                "position": "absolute", "left": f"{dot.at * 96:.2f}%", "top": "2px" if dot.is_accused else "4px",
                "width": "10px" if dot.is_accused else "6px", "height": "10px" if dot.is_accused else "6px",
                "borderRadius": "50%", "background": "var(--bad)" if dot.is_accused else "var(--quiet)",
            },
        )
        for dot in sorted(found, key=lambda dot: dot.is_accused)
    ]  # fmt: skip
    return html.Div(marks, style={"position": "relative", "height": "14px", "minWidth": "220px"})


def _left(title: str, left: list[dict[str, Any]]) -> list[Component]:
    return [hint(f"{title}: {one['signal']}: {one['reason']}") for one in left]


PAGE = Page("/preflight", "Preflight", frame, body)
