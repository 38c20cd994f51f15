"""Results of a kind that a store keeps as files: which there are, the chosen one, and the list to choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dash.development.base_component import Component

from ..collectors.result_files import ResultKind, list_results, read_result
from ..profiler.errors import MegascopeError
from .components import controls, hint, select, utc
from .shell import job_controls
from .view import View
from .workbench import Workbench

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


def results_frame(
    view: View, bench: Workbench, kind: ResultKind, label: str, text: Callable[[dict[str, Any]], str]
) -> Component:
    """Run and attempt, and which result of the kind; ``text`` tells one of the list from the others."""
    results = kept_results(bench.store.root, kind).results
    if not results:
        return job_controls(view, bench)
    options = {str(one["started_ns"]): text(one) for one in results}
    chosen = str(view.moment or results[0]["started_ns"])
    return job_controls(view, bench, controls([select("moment", label, options, chosen)]))


def damaged_results(kept: Kept) -> list[Component]:
    """Files that cannot be read, with the reason."""
    return [hint(f"Left out: {text}") for text in kept.damaged]
