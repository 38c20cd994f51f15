"""How a supervised run ended, as one object and in words."""

from __future__ import annotations

from typing import Any

from .journal import RECOVERY, Record
from .supervisor import Outcome


def as_json(run: str, outcome: Outcome) -> dict[str, Any]:
    """The object of `megascope supervise --json`."""
    return {
        "schema": 1,
        "run": run,
        "outcome": "finished" if outcome.finished else "stopped",
        "reason": outcome.reason,
        "attempts": outcome.attempts,
        "restarts": len(outcome.history.restarts),
        "fenced": [one.host for one in outcome.history.fences],
        "skipped_batches": list(outcome.history.passed_over),
        "incidents": [_incident(record) for record in outcome.records],
        "goodput": None if outcome.goodput is None else outcome.goodput.as_json(),
    }


def _incident(record: Record) -> dict[str, Any]:
    decided = next((one for one in record.actions if one["action"] == "decided"), {})
    told = next((one for one in record.actions if one["action"] in {"sign", "noticed"}), {})
    return {
        "attempt": record.attempt,
        "kind": record.kind.removeprefix(RECOVERY),
        "step": record.step,
        "told": told.get("sentence"),
        "ranks": told.get("ranks", []),
        "decision": decided.get("decision"),
        "why": decided.get("why"),
        "fenced": [one["host"] for one in record.actions if one["action"] == "fenced"],
        "culprits": [
            {"kind": one["kind"], "ranks": one["ranks"], "hosts": one["hosts"], "confidence": one["confidence"]}
            for one in (record.verdict or {}).get("culprits", ())
        ],
        **record.times,
    }


def lines(run: str, outcome: Outcome) -> list[str]:
    """The report for people."""
    told = [f"run {run}: {'finished' if outcome.finished else 'stopped'}. {_sentence(outcome.reason)}"]
    restarts, fences = len(outcome.history.restarts), outcome.history.fences
    told.append(f"{outcome.attempts} attempts, {restarts} restarts, {len(fences)} hosts fenced")
    told += [f"  fenced {fence.host}: {fence.reason}" for fence in fences]
    for record in outcome.records:
        found = _incident(record)
        if found["decision"] is None:
            continue
        times = ", ".join(f"{name.removesuffix('_s')} {value:g} s" for name, value in record.times.items())
        where = "before the first step" if record.step is None else f"after step {record.step}"
        told.append(f"  attempt {record.attempt}, {where}: {found['kind']}, {found['decision']} ({times})")
    if outcome.goodput is not None and outcome.goodput.goodput is not None:
        good = outcome.goodput
        told.append(
            f"goodput {good.goodput:.1%}: {good.useful_s:.1f} s of {good.total_s:.1f} s in steps that count, "
            f"{good.repeated_s:.1f} s in steps that were repeated"
        )
    return told


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
