"""Why something is not there: pruned to keep the store small, or kept of other ranks and steps only."""

from __future__ import annotations

from collections.abc import Collection

from ..collectors.reading.store import Attempt
from ..collectors.upkeep.retention import pruned_sentence
from .view import ranks_text
from .workbench import Workbench

_KEPT = """
    SELECT list(DISTINCT rank ORDER BY rank) AS ranks, min(step) AS first_step, max(step) AS last_step
    FROM events WHERE step IS NOT NULL
"""


def pruned_texts(
    bench: Workbench, attempt: Attempt, tables: Collection[str] = (), first_step: int | None = None
) -> list[str]:
    """One sentence for each sort of data that was deleted; of these tables, if any are named.

    ``first_step``: the first step that is wanted; what was deleted of earlier ones alone is not told.
    """
    return [
        pruned_sentence(each)
        for each in bench.store.pruned(attempt)
        if (not tables or each.table in tables)
        and (first_step is None or each.last_step is None or each.last_step >= first_step)
    ]


def why_no_spans(bench: Workbench, attempt: Attempt, steps: tuple[int, int]) -> str:
    """Why ranks have no raw spans in steps (first, last), as far as the store tells; ends with a full stop."""
    named = f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}"
    pruned = pruned_texts(bench, attempt, ("events",), steps[0])
    key = ("kept spans", attempt.run, attempt.attempt)
    kept = bench.cached(key, lambda: bench.store.query(_KEPT, attempt=attempt).to_pylist()[0])
    texts = [f"No raw spans of these ranks in {named}.", *pruned]
    if kept["ranks"]:
        ranks = ranks_text(kept["ranks"], 12)
        texts.append(f"The store has raw spans of ranks {ranks} in steps {kept['first_step']} to {kept['last_step']}.")
    elif not pruned:
        texts.append("The store has none of this attempt.")
    if any(entry.rows for entry in bench.store.entries("rank_windows", attempt)):
        texts.append("The heatmap shows all ranks, from rollups.")
    return " ".join(texts)
