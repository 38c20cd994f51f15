"""Who died first: processes that went without a word, exceptions, and the deaths that only followed from those."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..collectors.store import Attempt, Store

SAME_LOOK_NS = 1_500_000_000
"""Deaths noticed within this time cannot be ordered by when they were noticed: the agent looks twice a second, and
one rank's death makes the launcher end the others."""

AFTERMATH = ("connection", "peer", "reset", "timed out", "timeout", "broken pipe", "socket", "unhandled system")
"""Words of exceptions that a rank raises because another one is gone."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank's process that was not meant. ``state``: gone, zombie or exception; ``active_ns`` is the last
    moment at which the rank is known to have done something."""

    rank: int
    state: str
    moment_ns: int
    type: str | None = None
    message: str | None = None
    active_ns: int | None = None

    @property
    def is_exception(self) -> bool:
        """Whether the rank said why it ended."""
        return self.state == "exception"

    @property
    def is_aftermath(self) -> bool:
        """Whether its exception speaks of others: a connection that broke, a peer that is gone."""
        text = f"{self.type} {self.message}".lower()
        return self.is_exception and any(word in text for word in AFTERMATH)


def load_deaths(store: Store, attempt: Attempt) -> list[Death]:
    """All deaths that agents noticed, one a rank (an exception explains the death that follows it), by moment."""
    rows = store.query("SELECT actions FROM incidents WHERE actions IS NOT NULL", attempt=attempt).to_pylist()
    deaths = parse_deaths(action for row in rows for action in parse_actions(row["actions"]))
    if not deaths:
        return []
    table = store.query(
        "SELECT rank, max(start_ns + coalesce(duration_ns, 0)) AS active_ns FROM events GROUP BY rank", attempt=attempt
    )
    active = dict(zip(table["rank"].to_pylist(), table["active_ns"].to_pylist(), strict=True))
    return [Death(one.rank, one.state, one.moment_ns, one.type, one.message, active.get(one.rank)) for one in deaths]


def parse_actions(text: str | None) -> list[Mapping[str, Any]]:
    """The JSON list of an incident's actions; empty for what is no such list."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return [action for action in found if isinstance(action, dict)] if isinstance(found, list) else []


def parse_deaths(actions: Iterable[Mapping[str, Any]]) -> list[Death]:
    """Actions of incidents to deaths, one a rank, by moment."""
    by_rank: dict[int, Death] = {}
    for action in actions:
        if action.get("action") != "noticed-death" or "rank" not in action:
            continue
        death = Death(
            int(action["rank"]),
            str(action.get("state")),
            int(action.get("moment_ns") or 0),
            action.get("type"),
            action.get("message"),
        )
        known = by_rank.get(death.rank)
        if known is None or (death.is_exception and not known.is_exception):
            by_rank[death.rank] = death
    return sorted(by_rank.values(), key=lambda one: (one.moment_ns, one.rank))


def first_deaths(deaths: Sequence[Death], waiting: set[int]) -> list[Death]:
    """The deaths that the others followed from; ``waiting``: ranks last seen waiting.

    A rank that says that its peer is gone, or that was waiting for one, is a victim if anyone else died. A rank's own
    exception counts from its own moment. Of ranks that went without a word in the same look, the one that was
    active least recently stopped first.
    """
    own = [death for death in deaths if not death.is_aftermath]
    if not own:
        return list(deaths[:1])
    raised = [death for death in own if death.is_exception]
    silent = [death for death in own if not death.is_exception]
    not_waiting = [death for death in silent if death.rank not in waiting] or silent
    first_silent = _first_silent(not_waiting)
    first_raised = [death for death in raised if death.moment_ns - raised[0].moment_ns <= 10**8] if raised else []
    if not first_silent or not first_raised:
        return first_silent or first_raised
    # A silent death is noticed after it happened: an exception shortly before may still have followed from it.
    if first_raised[0].moment_ns <= first_silent[0].moment_ns:
        return first_raised
    return first_silent


def _first_silent(silent: Sequence[Death]) -> list[Death]:
    if not silent:
        return []
    together = [death for death in silent if death.moment_ns - silent[0].moment_ns <= SAME_LOOK_NS]
    if any(death.active_ns is None for death in together):
        return together
    return [min(together, key=lambda death: (death.active_ns or 0, death.rank))]
