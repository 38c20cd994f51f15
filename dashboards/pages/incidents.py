"""Incidents: what went wrong in a run, who it was, what was done about it, how long that took; one of them opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from ...collectors.goodput import Goodput, run_goodput
from ...collectors.reading.store import Attempt
from ..components import Rendered, banner, facts, hint, number, table, utc
from ..incident_data import RECOVERY, TIMES, Told, incidents_of_run
from ..shell import job_controls
from ..verdicts import peer_axis
from ..view import View, ranks_text
from ..workbench import Workbench
from .page import Page

MOST_ROWS = 100
MOST_ACTIONS = 60
MOST_CULPRITS = 20
SIGN = "sign-"
NAMES = {
    "detection_s": "noticed after", "diagnosis_s": "diagnosed in", "check_s": "checked and ended in",
    "restart_s": "restarted in", "catch_up_s": "caught up in", "recovery_s": "whole recovery",
}  # fmt: skip


def frame(view: View, bench: Workbench) -> Component:
    """Run and attempt; the list has all attempts of the run."""
    return job_controls(view, bench)


def body(view: View, bench: Workbench) -> Rendered:
    """The newest in a sentence, the list, and the chosen one."""
    attempt = bench.attempt(view)
    found = bench.cached(("run incidents", attempt.run), lambda: incidents_of_run(bench.store, attempt.run))
    good = bench.cached(("goodput", attempt.run), lambda: run_goodput(bench.store, attempt.run))
    chosen = _chosen(found, view)
    return Rendered(
        _banner(attempt, found),
        [
            facts([*_facts(found), *_goodput(good)]),
            *_list(found, chosen, view),
            *_opened(bench, chosen, view),
            *_unknown(chosen, view),
        ],
    )


def _banner(attempt: Attempt, found: list[Told]) -> Component:
    still_open = [one for one in found if one.is_open]
    if still_open:
        return banner("bad", "OPEN", f"{still_open[0].kind}, attempt {still_open[0].attempt}: {still_open[0].what}")
    if found:
        return banner("unsure", "CLOSED", f"The last of {len(found):,}: {found[0].what}")
    text = f"No incident of run {attempt.run} is known: agents note deaths and stalls, the supervisor its recoveries."
    return banner("unsure", "NONE NOTED", text)


def _facts(found: list[Told]) -> list[tuple[str, str, str]]:
    recoveries = [one for one in found if one.kind.startswith(RECOVERY)]
    whole = sorted(one.times["recovery_s"] for one in recoveries if "recovery_s" in one.times)
    return [
        ("incidents", "incidents", number(len(found))),
        ("open", "open", number(sum(one.is_open for one in found))),
        ("recoveries", "recoveries", number(len(recoveries))),
        ("median", "median recovery", f"{whole[len(whole) // 2]:.0f} s" if whole else "–"),
        ("signs", "signs", number(sum(one.kind.startswith(SIGN) for one in found))),
    ]


def _goodput(good: Goodput | None) -> list[tuple[str, str, str]]:
    """Share of the run's time in which steps were made that count, and what the rest went into."""
    if good is None:
        return [("goodput", "goodput: no completed step is known", number(None))]
    share = number(None) if good.goodput is None else f"{good.goodput:.1%}"
    rest = f"{_span(good.repeated_s)} of steps made again, {_span(good.other_s)} between steps"
    return [("goodput", f"goodput of {_span(good.total_s)}: {rest}", share)]


def _span(seconds: float) -> str:
    """A duration in the unit that reads best."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


_COLUMNS = {
    "opened": "opened", "attempt": "attempt", "kind": "kind", "what": "what happened", "who": "culprit",
    "state": "state", **{name: NAMES[name] for name in ("detection_s", "diagnosis_s", "restart_s", "catch_up_s")},
}  # fmt: skip
_NUMBERS = ("attempt", "state", "detection_s", "diagnosis_s", "restart_s", "catch_up_s")


def _list(found: list[Told], chosen: Told | None, view: View) -> list[Component]:
    if not found:
        return []
    rows = [_row(one, one is chosen, view) for one in found[:MOST_ROWS]]
    rest = [hint(f"The newest {MOST_ROWS} of {len(found):,} are shown.")] if len(found) > MOST_ROWS else []
    return [html.Div(table(_COLUMNS, rows, numbers=_NUMBERS, name="incidents"), className="scroll"), *rest]


def _row(one: Told, is_chosen: bool, view: View) -> dict[str, Any]:
    link = dcc.Link(utc(one.opened_ns), href=view.url("/incidents", incident=one.incident))
    return {
        "opened": html.B(link) if is_chosen else link,
        "attempt": number(one.attempt),
        "kind": one.kind,
        "state": _state(one),
        "who": _who(one),
        **{name: _seconds(one.times.get(name)) for name in NAMES},
        "what": html.Span(one.what, className="wrap"),
    }


def _state(one: Told) -> str:
    """How long it took, if it is over and anybody closed it."""
    if one.closed_ns is None:
        return "open" if one.is_open else "never closed"
    return f"{(one.closed_ns - one.opened_ns) / 1e9:,.0f} s"


def _who(one: Told) -> str | None:
    ranks = sorted({int(rank) for culprit in one.culprits for rank in culprit.get("ranks") or () if rank is not None})
    hosts = list(dict.fromkeys(str(host) for culprit in one.culprits for host in culprit.get("hosts") or () if host))
    parts = [f"rank {ranks_text(ranks, 3)}"] if ranks else []
    parts += [", ".join(hosts[:2]) + (f" and {len(hosts) - 2} more" if len(hosts) > 2 else "")] if hosts else []
    return ", ".join(parts) or None


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f} s"


def _chosen(found: list[Told], view: View) -> Told | None:
    """The incident of the address; else the newest open one, else the newest."""
    if view.incident is not None:
        return next((one for one in found if one.incident == view.incident), None)
    return next((one for one in found if one.is_open), found[0] if found else None)


def _unknown(chosen: Told | None, view: View) -> list[Component]:
    if chosen is None and view.incident is not None:
        return [hint(f"There is no incident {view.incident} in this run: choose one from the list.")]
    return []


# -- one of them ----------------------------------------------------------------------------------------------------


def _opened(bench: Workbench, one: Told | None, view: View) -> list[Component]:
    if one is None:
        return []
    spent = [(name, NAMES[name], f"{one.times[name]:,.1f} s") for name in TIMES if name in one.times]
    return [
        html.H2(f"{one.kind}, attempt {one.attempt}, {utc(one.opened_ns)}", id="opened"),
        html.P([one.what, " ", *_links(bench, one, view)]),
        *([facts(spent)] if spent else []),
        *_evidence(one),
        *_next(one),
        *_actions(one),
    ]


def _links(bench: Workbench, one: Told, view: View) -> list[Component | str]:
    """Ways to the picture of that moment, and to the culprits' timeline, heatmap and host."""
    attempt = bench.store.attempt(view.run, one.attempt) if view.run else bench.attempt(view)
    if attempt.attempt != one.attempt:
        attempt = bench.store.attempt(attempt.run, one.attempt)
    job = View(run=attempt.run, attempt=one.attempt)
    links: list[Component | str] = [
        dcc.Link("who waited for whom", href=job.url("/3d", moment=one.opened_ns), className="more")
    ]
    ranks = [int(rank) for culprit in one.culprits for rank in culprit.get("ranks") or () if rank is not None]
    hosts = [str(host) for culprit in one.culprits for host in culprit.get("hosts") or () if host]
    segments = [str(culprit["segment"]) for culprit in one.culprits if culprit.get("segment")]
    if ranks:
        links += [" ", dcc.Link("timeline", href=job.url("/timeline", rank=ranks[0], axis=peer_axis(attempt)),
                                className="more")]  # fmt: skip
    links += [" ", dcc.Link("heatmap", href=job.url("/heatmap", segment=segments[0] if segments else None),
                            className="more")]  # fmt: skip
    if hosts:
        links += [" ", dcc.Link("health of the host", href=job.url("/health", host=hosts[0]), className="more")]
    return links


def _evidence(one: Told) -> list[Component]:
    rows = [
        {
            "who": _named(culprit),
            "kind": str(culprit.get("kind") or "–"),
            "confidence": f"{culprit['confidence']:.0%}"
            if isinstance(culprit.get("confidence"), int | float)
            else None,
            "statement": html.Span(str(evidence.get("statement")), className="wrap"),
        }
        for culprit in one.culprits[:MOST_CULPRITS]
        for evidence in culprit.get("evidence") or ()
        if isinstance(evidence, dict)
    ]
    columns = {"who": "culprit", "kind": "kind", "confidence": "confidence", "statement": "evidence"}
    more = len(one.culprits) - MOST_CULPRITS
    rest = [hint(f"And {more:,} more culprits: the incident's verdict in the store has all.")] if more > 0 else []
    shown = [html.H2("Evidence"), table(columns, rows, numbers=("confidence",), name="evidence")] if rows else []
    return [*shown, *rest]


def _next(one: Told) -> list[Component]:
    """What to do about each culprit, as its verdict says: the first one's, the others' folded."""
    told = [(_named(culprit), [str(step) for step in steps]) for culprit in one.culprits[:MOST_CULPRITS]
            if isinstance(steps := culprit.get("next"), list) and steps]  # fmt: skip
    if not told:
        return []
    lists = [
        html.Details([html.Summary(f"about {who}"), html.Ol([html.Li(step) for step in steps])],
                     className="fold", id=f"next-{number}", open=number == 0)
        for number, (who, steps) in enumerate(told)
    ]  # fmt: skip
    return [html.H2("What to do next"), html.Div(lists, id="next")]


def _named(culprit: Mapping[str, Any]) -> str:
    ranks = [int(rank) for rank in culprit.get("ranks") or () if rank is not None]
    return f"rank {ranks_text(ranks, 4)}" if ranks else ", ".join(map(str, culprit.get("hosts") or ())) or "–"


def _actions(one: Told) -> list[Component]:
    shown = [action for action in one.actions if action.get("action") != "times"]
    rows = [
        {
            "after": _after(action, one),
            "action": str(action.get("action")).replace("-", " "),
            "more": html.Span(_more(action), className="wrap"),
        }
        for action in shown[:MOST_ACTIONS]
    ]
    columns = {"after": "after", "action": "what was seen and done", "more": ""}
    rest = [hint(f"And {len(shown) - MOST_ACTIONS} more.")] if len(shown) > MOST_ACTIONS else []
    return [html.H2("What was done"), table(columns, rows, numbers=("after",), name="actions"), *rest] if rows else []


def _after(action: Mapping[str, Any], one: Told) -> str | None:
    moment = action.get("moment_ns")
    return f"{(moment - one.opened_ns) / 1e9:+,.1f} s" if isinstance(moment, int) else None


def _more(action: Mapping[str, Any]) -> str:
    """The rest of an action as people read it; a stack is cut to its innermost calls."""
    parts = []
    for name, value in action.items():
        if name in ("action", "moment_ns") or value in (None, [], ""):
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        shown = "; ".join(text.splitlines()[:3]) if name == "stack" else " ".join(text.split())
        is_plain = name in ("sentence", "why", "text", "problem")
        parts.append(shown[:300] if is_plain else f"{name.replace('_', ' ')} {shown[:300]}")
    return "; ".join(parts)


PAGE = Page("/incidents", "Incidents", frame, body)
