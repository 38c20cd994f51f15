"""`find_whatif`: from a store to the what-if ratios, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.verdicts import Abstention
from ..observations import Observations
from ..peers import IntArray, Placement
from ..source import Source
from .kept import KeptReplay
from .reasons import CannotReplayError
from .result import WhatIf
from .tables import Tables

SIGNAL = "what-if"

MAX_SCANNED = 100_000_000
"""Spans whose steps are looked at, at most."""

MAX_SPANS = 1_000_000
"""Spans that are read, about: of larger jobs, fewer steps, evenly spread over those looked at. Where rollups are
judged, half as many: the rest of the verdict takes little time there."""


def find_whatif(
    store: Tables,
    attempt: Attempt,
    placement: Placement,
    steps: IntArray,
    *,
    max_spans: int = MAX_SPANS,
    kept: KeptReplay | None = None,
) -> WhatIf:
    """S, M_W and M_S over the given steps [S], or a sample of them; ``notes`` say which.

    With what was ``kept`` of an earlier look only new steps are read. Raises CannotReplayError, whose text is the
    reason, where they cannot be had.
    """
    if not len(steps):
        raise CannotReplayError("no step was looked at")
    spans = _spans_of_steps(store, attempt)
    chosen = _sample(steps, spans, max_spans)
    live = (kept or KeptReplay()).look(
        store, attempt, placement, {step: spans.get(step, 0) for step in chosen.tolist()}
    )
    found = live.result()
    left_out = _notes(steps, chosen, live.steps, live.unrecorded)
    return replace(found, notes=(*left_out, *found.notes))


def _notes(looked_at: IntArray, read: IntArray, replayed: IntArray, unrecorded: tuple[str, ...]) -> tuple[str, ...]:
    """What of the steps and ranks was not replayed."""
    notes = []
    if len(read) < len(looked_at):
        notes.append(f"{len(read)} of {len(looked_at)} steps were read, evenly spread: all would be too many spans")
    if (lost := len(read) - len(replayed)) > 0:
        notes.append(
            f"{lost} of the {len(read)} steps that were read are left out: some rank's spans are not all there"
        )
    if unrecorded:
        axes = " and ".join(unrecorded)
        notes.append(f"one rank of each {axes} group was recorded and stands for the others")
    return tuple(notes)


def whatif_of(
    store: Store,
    attempt: Attempt,
    seen: Observations,
    *,
    of_all_ranks: bool = True,
    kept: KeptReplay | None = None,
) -> tuple[WhatIf | None, tuple[Abstention, ...]]:
    """What a verdict says about what-if: the ratios of the steps looked at, and what could not be had, none of which
    forbids the word healthy."""
    spans = sum(entry.rows for entry in store.entries("events", attempt))
    try:
        if not of_all_ranks:
            raise CannotReplayError("a replay needs all ranks, and only some were asked for")
        if not spans:
            raise CannotReplayError("a replay needs single spans, and the store holds none")
        if spans > MAX_SCANNED:
            raise CannotReplayError(f"{spans:,} spans are too many to look for the steps to be replayed")
        most = MAX_SPANS if seen.source.source == Source.SPANS else MAX_SPANS // 2
        chosen = _steps(store, attempt, seen)
        found = find_whatif(store, attempt, seen.placement, chosen, max_spans=most, kept=kept)
    except CannotReplayError as error:
        return None, (Abstention(SIGNAL, f"{error}: no slowdown, m_w and m_s"),)
    return found, tuple(Abstention(SIGNAL, note) for note in found.notes)


def _steps(store: Tables, attempt: Attempt, seen: Observations) -> IntArray:
    """The steps looked at that have spans, also where rollups were looked at because of there being too many spans.

    What another tool recorded begins anywhere: its first steps are no warm-up.
    """
    recorded = _recorded_steps(store, attempt)
    if seen.source.source == Source.SPANS:
        looked_at = seen.steps
        if "imported" in attempt.configuration:
            looked_at = np.union1d(looked_at, np.array(seen.warm_up, np.int64))
        return np.intersect1d(recorded, looked_at)
    if seen.asked is not None:
        recorded = recorded[(recorded >= seen.asked[0]) & (recorded <= seen.asked[1])]
    later: IntArray = recorded[~np.isin(recorded, seen.warm_up)]
    return later if len(later) else recorded


def _recorded_steps(store: Tables, attempt: Attempt) -> IntArray:
    table = store.query("SELECT DISTINCT step FROM events WHERE step IS NOT NULL ORDER BY step", attempt=attempt)
    return np.asarray(table["step"].to_numpy(), np.int64)


def _spans_of_steps(store: Tables, attempt: Attempt) -> dict[int, int]:
    """How many spans each step has."""
    table = store.query(
        "SELECT step, count(*) AS spans FROM events WHERE step IS NOT NULL GROUP BY step", attempt=attempt
    )
    return dict(zip(table["step"].to_pylist(), table["spans"].to_pylist(), strict=True))


def _sample(steps: IntArray, spans: Mapping[int, int], max_spans: int) -> IntArray:
    """As many of the steps as have no more than ``max_spans`` spans together, evenly spread; at least one.

    Every second, fourth, eighth ... step: a sample of fewer is part of it, and new steps change none before them.
    """
    per_step = max(1, sum(spans.values()) // max(1, len(spans)))
    count, stride = max(1, max_spans // per_step), 1
    while len(steps) // stride > count:
        stride *= 2
    return steps[stride - 1 :: stride]
