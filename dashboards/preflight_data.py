"""Results of checks before a job, as the page shows them: the values of each metric as dots on a line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

MOST_DOTS = 120
"""Values of a metric that are drawn one by one; of more, the extremes and evenly many between."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A value as it is drawn: where (0 to 1, of the largest), whether it is accused, and what it says."""

    at: float
    is_accused: bool
    text: str


def dots(result: dict[str, Any], summary: dict[str, Any]) -> list[Dot]:
    """The values behind a row of the summary, ascending."""
    alike = _by_class(result)[summary["check"], summary["metric"], summary["peers"]]
    accused = [one for one in result["culprits"] if one["check"] == summary["check"]]
    largest = max((abs(one["value"]) for one in alike), default=0.0) or 1.0
    ordered = sorted(alike, key=lambda one: float(one["value"]))
    if len(ordered) > MOST_DOTS:
        ordered = [ordered[round(at * (len(ordered) - 1) / (MOST_DOTS - 1))] for at in range(MOST_DOTS)]
    return [
        Dot(
            abs(one["value"]) / largest,
            any(_covers(culprit, one) for culprit in accused),
            f"{_named(one)}: {one['value']:,.4g} {one['unit']}",
        )
        for one in ordered
    ]


def _covers(culprit: dict[str, Any], one: dict[str, Any]) -> bool:
    """Whether an accusation is of this value: of its rank or host, or of just this pair or group."""
    if culprit["metric"] != one["metric"]:
        return False
    if culprit["kind"] in {"rank", "host"}:
        return not set(culprit["ranks"]).isdisjoint(one["ranks"])
    return bool(culprit["ranks"] == one["ranks"])


def _by_class(result: dict[str, Any]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for one in result.get("measurements", []):
        found[one["check"], one["metric"], one["peers"]].append(one)
    return found


def _named(one: dict[str, Any]) -> str:
    ranks = one["ranks"]
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"
