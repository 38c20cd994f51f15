"""From a verdict's object, as `megascope hang --json` gives it, to an alarm: also where parts of it are missing."""

from __future__ import annotations

import json
from typing import Any

from .rules import Alarm, named

FIRM = frozenset({"hang", "crashed", "finished"})
"""Verdicts that need not be asked for again."""

ALARMING = frozenset({"hang", "crashed", "inconclusive"})


def read_verdict(text: object) -> dict[str, Any] | None:
    """The object of a verdict's JSON; None for what is none, or not whole."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("attempt"), int):
        return None
    return value if value.get("run") is not None and value.get("verdict") is not None else None


def alarm_of_verdict(verdict: dict[str, Any], moment_ns: int) -> Alarm:
    """The alarm that tells of a verdict, the object of `megascope hang --json`."""
    culprits = culprits_of(verdict)
    ranks = tuple(sorted({int(rank) for one in culprits for rank in _known(one.get("ranks"))}))
    hosts = tuple(dict.fromkeys(str(host) for one in culprits for host in _known(one.get("hosts"))))
    severity = "high" if verdict["verdict"] in FIRM else "medium"
    run, attempt = str(verdict["run"]), int(verdict["attempt"])
    return Alarm(
        str(verdict["verdict"]), severity, run, attempt, ranks, hosts, sentence_of(verdict), moment_ns, verdict
    )


ACCUSED_HARDWARE = frozenset({"rank", "host", "link", "group"})
"""Kinds of stragglers that accuse ranks or hosts; others are the job's own way, and nobody has to be woken for them."""


def alarms_of_stragglers(verdict: dict[str, Any], moment_ns: int) -> list[Alarm]:
    """The alarms that tell of a verdict of `megascope stragglers --json`: one for each rank, host, link or group."""
    if verdict["verdict"] != "findings":
        return []
    run, attempt = str(verdict["run"]), int(verdict["attempt"])
    found = []
    for one in culprits_of(verdict):
        if one.get("kind") not in ACCUSED_HARDWARE:
            continue
        ranks = tuple(sorted(int(rank) for rank in _known(one.get("ranks"))))
        hosts = tuple(dict.fromkeys(map(str, _known(one.get("hosts")))))
        lost = one.get("lost_share")
        cost = f", it costs {lost:.1%} of the job's time" if isinstance(lost, int | float) else ""
        sentence = f"Run {run}, attempt {attempt}: {_accused(one)} ({one.get('cause')}, in {one.get('segment')}){cost}."
        severity = "high" if one.get("severity") == "high" else "medium"
        kind = f"straggler-{one.get('cause')}"
        found.append(Alarm(kind, severity, run, attempt, ranks, hosts, sentence, moment_ns, verdict))
    return found


def sentence_of(verdict: dict[str, Any]) -> str:
    """A verdict's object in a sentence: its own where it has one."""
    if isinstance(verdict.get("sentence"), str):
        return str(verdict["sentence"])
    told = "; ".join(map(_accused, culprits_of(verdict)[:3]))
    if not told:
        told = "; ".join(str(one["reason"]) for one in _known(verdict.get("abstained"))[:1] if one.get("reason"))
    return f"Run {verdict['run']}, attempt {verdict['attempt']}: {verdict['verdict']}" + (f" ({told})" if told else "")


def _accused(culprit: dict[str, Any]) -> str:
    ranks, hosts = _known(culprit.get("ranks")), _known(culprit.get("hosts"))
    where = f" on {named(hosts)}" if hosts else ""
    return f"{culprit.get('kind') or 'somebody'}: " + (f"ranks {named(ranks)}{where}" if ranks else named(hosts) or "?")


def culprits_of(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """The culprits of a verdict's object, as far as they are objects."""
    return [one for one in _known(verdict.get("culprits")) if isinstance(one, dict)]


def _known(values: object) -> list[Any]:
    """What of a list is not NULL."""
    return [one for one in values if one is not None] if isinstance(values, list | tuple) else []
