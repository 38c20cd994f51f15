"""What a campaign of `trainer_hangs` came to: the counts, and a table of the seconds of the judge and of the agents."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .hang_looks import CLAIMS
from .hang_trials import LAYOUTS

NEAR_S = (10.0, 12.0)
"""Within so many seconds of the fault a verdict is asked for, and a little later."""

NAMED_EARLIER_S = 0.6
"""More than a look before it was sure, the judge had the right suspects."""

Result = Mapping[str, Any]

_AT_ONCE = "rank-died"


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """The counts of judge and agents, over the trials with a fault that harms.

    Agents judge what stands still; of a job that ended at once they tell the death. So theirs are of those trials in
    which no rank died before anything else was noticed; one of which they noticed nothing is among them.
    """
    faulty = [one for one in results if one.get("expected", {}).get("kinds")]
    loads = _spread(one.get("load_1min") for one in results)
    stood = [one for one in faulty if one.get("incident") != _AT_ONCE]
    return {
        "trials": len(results),
        "right": sum(bool(one["right"]) for one in results),
        "with_fault": sum(bool(one["fault"]) for one in results),
        "claimed_wrongly": [one["case"] for one in results if one.get("wrong_claims")],
        "disturbed": [one["case"] for one in results if one not in faulty and one.get("incident") is not None],
        "with_dumps": sum(one.get("dumps") is not None for one in results),
        "right_from_dumps": sum(bool((one.get("dumps") or {}).get("right")) for one in results),
        "judge": _spread(one.get("seconds_to_verdict") for one in faulty if one["right"]),
        "judge_named": _spread(one.get("seconds_to_named") for one in faulty),
        "agents": {
            "ended_at_once": len(faulty) - len(stood),
            "stood_still": len(stood),
            "without_incident": [one["case"] for one in stood if one.get("incident") is None],
            "without_right_verdict": [one["case"] for one in stood if not _agent_is_right(one)],
            "incident": _spread(one.get("seconds_to_incident") for one in stood),
            "verdict": _spread(one.get("seconds_to_agent_verdict") for one in stood if _agent_is_right(one)),
        },
        "load_1min": {name: loads[name] for name in ("median", "worst")},
    }


def _agent_is_right(result: Result) -> bool:
    """Whether the agents' last verdict is firm, and its culprits are those expected, each of a kind that is right."""
    told, expected = result.get("told_by_agent") or {"verdict": None, "culprits": []}, result["expected"]
    kinds, ranks = {one[0] for one in told["culprits"]}, sorted({rank for one in told["culprits"] for rank in one[1]})
    return told["verdict"] in CLAIMS and kinds <= set(expected["kinds"]) and ranks in expected["ranks"]


def _spread(values: Iterable[float | None]) -> dict[str, Any]:
    """Count, median and worst of what is known, and how many are near."""
    known = sorted(one for one in values if one is not None)
    near = {f"within_{limit:.0f}_s": sum(one <= limit for one in known) for limit in NEAR_S}
    median = round(statistics.median(known), 1) if known else None
    return {"known": len(known), **near, "median": median, "worst": known[-1] if known else None}


def table(results: Sequence[Result]) -> str:
    """One line a fault, in Markdown: for each layout the judge's seconds, those to the agents' incident, and those to
    their verdict, with the load in which they were measured."""
    layouts = [layout for layout in LAYOUTS if any(one["case"].startswith(f"{layout} ") for one in results)]
    by_name: dict[str, dict[str, Result]] = {}
    for one in results:
        layout = next(each for each in layouts if one["case"].startswith(f"{each} "))
        by_name.setdefault(one["case"].removeprefix(f"{layout} "), {})[layout] = one
    heads = [f"{layout}: {what}" for layout in layouts for what in ("judge", "incident", "agents' verdict", "load")]
    lines = [f"| fault | {' | '.join(heads)} |", f"|{'---|' * (len(heads) + 1)}"]
    for name, own in by_name.items():
        cells = [cell for layout in layouts for cell in _cells(own.get(layout))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(result: Result | None) -> tuple[str, str, str, str]:
    if result is None:
        return "not run", "", "", ""
    load = f"{result['load_1min']:.1f}" if "load_1min" in result else ""
    if not result.get("expected", {}).get("kinds"):
        return "nobody" if result["right"] else "wrong", result.get("incident") or "none", "", load
    if not result["right"]:
        return "not right", _agents(result), _seconds(result.get("seconds_to_agent_verdict")), load
    named, sure = result.get("seconds_to_named"), result.get("seconds_to_verdict")
    judge = _seconds(sure)
    if named is not None and sure is not None and sure - named >= NAMED_EARLIER_S:
        judge += f" (suspected {_seconds(named)})"
    return judge, _agents(result), _seconds(result.get("seconds_to_agent_verdict")), load


def _agents(result: Result) -> str:
    if result.get("incident") is None:
        return "none"
    death = " (death)" if result["incident"] == _AT_ONCE else ""
    return f"{_seconds(result.get('seconds_to_incident'))}{death}"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f} s"
