"""Rows of ``heartbeats``: what a rank is doing, seen from outside, whatever it does itself."""

from __future__ import annotations

from typing import Any

from .processes import ProcessSample
from .rank_drain import RankDrain


def heartbeat(rank: RankDrain, sample: ProcessSample) -> dict[str, Any]:
    """The row of this moment, without run and attempt; the rank's header has to be known.

    A dead rank shows in ``process_state``, and so does a stopped one; a stuck one sleeps (or computes: ``cpu_ns``
    grows) while the ages of what is in flight grow.
    """
    assert rank.header is not None
    return {
        "rank": rank.rank,
        "moment_ns": rank.header.now_ns,
        "step": rank.reader.step,
        "in_flight": rank.flights(),
        "progress": rank.group_progress(),
        "process_state": sample.state,
        "cpu_ns": sample.cpu_ns,
        "spans": rank.spans,
        "lost_spans": rank.lost + rank.dropped,
        "unslotted_spans": rank.reader.unslotted,
        "lost_metadata": rank.lost_metadata,
    }
