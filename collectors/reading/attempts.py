"""The attempts of a store: one incarnation of a run each, with its layout, its start and its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..manifests.manifest import FileEntry

UNDATED_NS = 10 * 365 * 86_400 * 10**9
"""Moments before 1980 count from a beginning that nobody tells: imported traces have such."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run. ``layout`` maps axis to size, the outermost first; what is unknown is None or empty."""

    run: str
    attempt: int
    layout: dict[str, int] = field(default_factory=dict)
    world_size: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    exit_reason: str | None = None
    configuration: dict[str, Any] = field(default_factory=dict)

    @property
    def left_out(self) -> str | None:
        """Which ranks the origin of an imported run left out on purpose, in words; None where it did not."""
        recorded = self.configuration.get("recorded")
        sentence = recorded.get("sentence") if isinstance(recorded, dict) else None
        return sentence if isinstance(sentence, str) else None


def attempts_of(rows: Iterable[Mapping[str, Any]], entries: Iterable[FileEntry]) -> list[Attempt]:
    """All attempts by their start, the newest last, from the rows of ``runs`` and from files without such a row."""
    found = {(entry.run, entry.attempt): Attempt(entry.run, entry.attempt) for entry in entries}
    for row in rows:
        found[row["run"], row["attempt"]] = Attempt(
            run=row["run"],
            attempt=row["attempt"],
            layout={str(axis): int(size) for axis, size in _json_object(row["layout"]).items()},
            world_size=row["world_size"],
            start_ns=row["start_ns"],
            end_ns=row["end_ns"],
            exit_reason=row["exit_reason"],
            configuration=_json_object(row["configuration"]),
        )
    return sorted(found.values(), key=lambda a: (a.start_ns or 0, a.run, a.attempt))


def _json_object(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    value = json.loads(text)
    return value if isinstance(value, dict) else {}
