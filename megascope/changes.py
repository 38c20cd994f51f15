"""One thing that is new in a store that somebody follows, and how it is told in words."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .collectors.alarms.rules import named, utc
from .collectors.reading.store import Attempt
from .profiler.errors import MegascopeError
from .viz3d.actions import parse_actions


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is new. ``moment_ns``: UTC, when it happened as far as that is known, else when it was seen."""

    moment_ns: int
    run: str
    attempt: int
    what: str
    sentence: str
    verdict: dict[str, Any] | None = None

    def line(self) -> str:
        """For a terminal."""
        return f"{utc(self.moment_ns)}  {self.run}/{self.attempt}  {self.what}: {self.sentence}"

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "moment": utc(self.moment_ns),
            "run": self.run,
            "attempt": self.attempt,
            "what": self.what,
            "sentence": self.sentence,
            "verdict": self.verdict,
        }


def described(attempt: Attempt) -> str:
    """Ranks and layout of an attempt."""
    layout = " x ".join(f"{axis} {size}" for axis, size in attempt.layout.items())
    ranks = "ranks that are not known yet" if attempt.world_size is None else f"{attempt.world_size:,} ranks"
    return f"{ranks}" + (f" ({layout})" if layout else "")


def opened(row: dict[str, Any]) -> str:
    """An incident that was opened, by its row."""
    parts = str(row["incident"]).split("/")
    where = f"on {parts[-3]}" if len(parts) > 3 and parts[-3] else "on a host"
    actions = parse_actions(row["actions"])
    if row["kind"] == "rank-died":
        deaths = [one for one in actions if one.get("action") == "noticed-death"]
        ranks = sorted({int(one["rank"]) for one in deaths if isinstance(one.get("rank"), int)})
        who = f"{'rank' if len(ranks) == 1 else 'ranks'} {named(ranks)}" if ranks else "ranks that are not named"
        return f"{where}, {who} ended without a goodbye"
    if row["kind"] != "stalled":  # a supervisor's own
        told = next((one["sentence"] for one in actions if isinstance(one.get("sentence"), str)), None)
        return f"{row['kind']}: {told}" if told else f"{row['kind']}, {where}"
    quiet = next((one.get("quiet_s") for one in actions if one.get("action") == "stood-still"), None)
    return f"{where} nothing moves" + (f", for {quiet:g} s so far" if isinstance(quiet, int | float) else "")


def closed(row: dict[str, Any]) -> str:
    """An incident that was closed, by its row."""
    moved = any(one.get("action") == "moved-again" for one in parse_actions(row["actions"]))
    return f"{row['kind']}: {'it moves again' if moved else 'the attempt is over, or what was missed is back'}"


def moment_of(value: object) -> int:
    """A moment of a row, UTC ns; now, where it has none."""
    return value if isinstance(value, int) else time.time_ns()


def words(error: Exception) -> str:
    """An error in one line: its own words where it is one of ours."""
    text = str(error).splitlines()[0] if str(error) else ""
    is_ours = isinstance(error, MegascopeError | OSError)
    return text if is_ours and text else f"{type(error).__name__}: {text}"
