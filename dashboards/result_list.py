"""Results of a kind that a store keeps as files: which there are, and the chosen one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..collectors.result_files import ResultKind, list_results, read_result
from ..profiler.errors import MegascopeError
from .components import utc

MOST_LISTED = 50


@dataclass(frozen=True, slots=True)
class Kept:
    """All results of a kind, the newest first, and files that cannot be read with the reason."""

    results: list[dict[str, Any]]
    damaged: list[str]
    verb: str

    def chosen(self, moment_ns: int | None) -> dict[str, Any] | None:
        """The result that began at a moment; the newest for None. Raises MegascopeError where there is none then."""
        if moment_ns is None:
            return self.results[0] if self.results else None
        found = [one for one in self.results if one["started_ns"] == moment_ns]
        if not found:
            raise MegascopeError(f"No result of {self.verb} began at {utc(moment_ns)}: choose one from the list.")
        return found[0]


def kept_results(store: Path, kind: ResultKind) -> Kept:
    """Read the newest results of a kind from a store's folder."""
    results, damaged = [], []
    for path in list_results(store, kind)[:MOST_LISTED]:
        try:
            results.append(read_result(path, kind))
        except MegascopeError as error:
            damaged.append(str(error))
    return Kept(sorted(results, key=lambda one: -int(one["started_ns"])), damaged, kind.verb)
