"""Incidents of a run through all its attempts, as agents and the supervisor have written them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..collectors.alarms.verdict_alarms import culprits_of, read_verdict, sentence_of
from ..collectors.reading.store import Attempt, Store

MOST = 500
"""The newest incidents of a run that are read."""

RECOVERY = "recovery-"
"""How the kinds of a supervisor's recoveries begin."""

TIMES = ("detection_s", "diagnosis_s", "check_s", "restart_s", "catch_up_s", "recovery_s")
"""What a supervisor tells of a recovery, in the order in which it goes on."""

_SQL = f"SELECT * FROM incidents WHERE run = ? ORDER BY opened_ns DESC LIMIT {MOST}"


@dataclass(frozen=True, slots=True)
class Told:
    """One incident. Moments are UTC ns; ``times`` are seconds by `TIMES`, as far as they are known.

    ``is_open``: it lasts. One that nobody closed, as its host went, has ended with its attempt.
    """

    incident: str
    attempt: int
    kind: str
    opened_ns: int
    closed_ns: int | None
    is_open: bool
    what: str
    actions: tuple[Mapping[str, Any], ...]
    verdict: Mapping[str, Any] | None
    times: Mapping[str, float]

    @property
    def culprits(self) -> list[dict[str, Any]]:
        """The culprits of its verdict."""
        return [] if self.verdict is None else culprits_of(dict(self.verdict))

    @property
    def noticed_on(self) -> str | None:
        """The host (or the supervisor) that noted it: its name is RUN/ATTEMPT/HOST/KIND/NUMBER."""
        parts = self.incident.rsplit("/", 3)
        return parts[1] if len(parts) == 4 else None

    def is_of(self, host: str, ranks: Collection[int]) -> bool:
        """Whether it accuses a host or some of its ranks; or, accusing nobody, names them or was noted there."""
        about: Sequence[Mapping[str, Any]] = self.culprits or self.actions
        hosts = {each for one in about for each in _named(one, "host", "hosts")}
        of_ranks = {each for one in about for each in _named(one, "rank", "ranks")}
        is_noted_there = not self.culprits and self.noticed_on == host
        return host in hosts or not of_ranks.isdisjoint(ranks) or is_noted_there


def _named(value: Mapping[str, Any], one: str, several: str) -> list[Any]:
    """What a value names, by itself and in a list, as far as it can be a host or a rank."""
    found = value.get(several)
    return [
        each for each in [value.get(one), *(found if isinstance(found, list) else [])] if isinstance(each, str | int)
    ]


def incidents_of_run(store: Store, run: str) -> list[Told]:
    """All incidents of a run, the newest first."""
    newest = max((one for one in store.attempts() if one.run == run), key=lambda one: one.attempt, default=None)
    return [_told(row, newest) for row in store.query(_SQL, [run]).to_pylist()]


def _told(row: Mapping[str, Any], newest: Attempt | None) -> Told:
    actions = tuple(_actions(row["actions"]))
    verdict = read_verdict(row["verdict"])
    return Told(
        incident=str(row["incident"]),
        attempt=int(row["attempt"]),
        kind=str(row["kind"]),
        opened_ns=int(row["opened_ns"]),
        closed_ns=row["closed_ns"],
        is_open=row["closed_ns"] is None and newest is not None and _lasts(row, newest),
        what=_what(actions, verdict),
        actions=actions,
        verdict=verdict,
        times=_times(row, actions),
    )


def _lasts(row: Mapping[str, Any], newest: Attempt) -> bool:
    """Whether what nobody closed goes on: a recovery until the attempt after its own has caught up."""
    if str(row["kind"]).startswith(RECOVERY):
        return bool(row["attempt"] >= newest.attempt - 1)
    return bool(row["attempt"] == newest.attempt and newest.exit_reason is None)


def _actions(text: object) -> list[dict[str, Any]]:
    """The actions of an incident; what is none is left out."""
    try:
        found = json.loads(text) if isinstance(text, str) else []
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _what(actions: tuple[Mapping[str, Any], ...], verdict: dict[str, Any] | None) -> str:
    """What happened, in a sentence: the verdict's where there is one, else what was noticed."""
    if verdict is not None:
        return sentence_of(verdict)
    for one in actions:
        match one.get("action"):
            case "noticed" | "sign":
                return str(one.get("sentence"))
            case "noticed-death":
                return _deaths(actions)
            case "stood-still":
                return f"Nothing has moved for {one.get('quiet_s')} s."
    return "Nothing was noted of it."


def _deaths(actions: tuple[Mapping[str, Any], ...]) -> str:
    dead = [one for one in actions if one.get("action") == "noticed-death"]
    first = dead[0]
    why = f"{first['type']}: {first.get('message')}" if first.get("type") else str(first.get("state"))
    more = f" And {len(dead) - 1} more." if len(dead) > 1 else ""
    return f"Rank {first.get('rank')} ended: {' '.join(why.split())[:300]}.{more}"


def _times(row: Mapping[str, Any], actions: tuple[Mapping[str, Any], ...]) -> dict[str, float]:
    """Times that the supervisor wrote; of an agent's incident, how long it took to notice and to judge."""
    found = {
        name: float(one[name])
        for one in actions
        if one.get("action") == "times"
        for name in TIMES
        if isinstance(one.get(name), int | float)
    }
    if found:
        return found
    for one in actions:
        if one.get("action") == "stood-still" and isinstance(one.get("quiet_s"), int | float):
            found["detection_s"] = float(one["quiet_s"])
        if one.get("action") == "diagnosed" and isinstance(one.get("moment_ns"), int):
            found["diagnosis_s"] = (one["moment_ns"] - int(row["opened_ns"])) / 1e9
    return found
