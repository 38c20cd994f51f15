"""The keys of the benchmark `faults`: how many of the faults were recovered, and the medians of what it took."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

PARTS = ("detection_s", "diagnosis_s", "check_s", "restart_s", "catch_up_s")
"""Times of an incident, in seconds. They are measured one by one, and need not add up to the whole recovery."""

COUNTED = ("recovered", "culprit_right", "loss_identical")


def parts_of(incidents: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """The times of the incident whose recovery took longest, of the first one where none has recovered; a time that it
    does not tell is None."""
    told = list(incidents)
    recovered = [one for one in told if one.get("recovery_s") is not None]
    longest = max(recovered, key=lambda one: float(one["recovery_s"]), default=told[0] if told else {})
    return {name: longest.get(name) for name in PARTS}


def summary(everything: list[dict[str, Any]]) -> dict[str, Any]:
    """The keys of the benchmark. Trials whose fault did not come to act, as the training was over, are only counted."""
    results = [one for one in everything if one.get("acted", True)]
    judgeable = [one for one in results if one["culprit_right"] is not None]
    return {
        "injected": len(results),
        "different": len({(one["name"], one.get("fault")) for one in results}),
        "not_injected": len(everything) - len(results),
        "left_out": {one["name"]: one["left_out"] for one in everything if "left_out" in one},
        "recovered": sum(one["recovered"] for one in results),
        "culprit_right": sum(one["culprit_right"] for one in judgeable),
        "culprit_judged": len(judgeable),
        "kind_right": sum(bool(one.get("kind_right")) for one in results),
        "kind_judged": sum(one.get("kind_right") is not None for one in results),
        "false_fences": sum(one["false_fences"] for one in results),
        "loss_identical": sum(one["loss_identical"] for one in results),
        "lost_spans": sum(one.get("lost_spans") or 0 for one in results),
        "lost_steps": sum(one.get("lost_steps") or 0 for one in results),
        **_times(results),
        "seconds": round(sum(one.get("seconds", 0.0) for one in everything), 1),
        "by_trial": {name: _of_trial(name, results) for name in dict.fromkeys(one["name"] for one in results)},
        "results": everything,
    }


def _of_trial(name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """All repetitions of one trial together."""
    own = [one for one in results if one["name"] == name]
    counts = {key: sum(bool(one.get(key)) for one in own) for key in COUNTED}
    seconds = round(sum(one.get("seconds", 0.0) for one in own), 1)
    return {"injected": len(own), **counts, **_times(own), "seconds": seconds}


def _times(results: list[dict[str, Any]]) -> dict[str, float | None]:
    """Median and worst recovery, and the medians of its parts, of those that have one; None where none has."""
    whole = _told(results, "recovery_s")
    recovering = [one for one in results if one["recovery_s"] is not None]
    return {
        "median_recovery_s": _median(whole),
        "worst_recovery_s": max(whole, default=None),
        **{f"median_{name}": _median(_told(recovering, name)) for name in PARTS},
    }


def _told(results: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [one[name] for one in results if one.get(name) is not None]


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None
