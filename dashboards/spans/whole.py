"""Links and critical path as they are among all ranks, for the shown ones: whom they wait for is often not shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt
from ...profiler.errors import UsageError
from ..heat.data import placement_of
from ..workbench import Workbench
from .choice import EVERYONE, SpanChoice
from .links import NOBODY, Links, links_of
from .path import CriticalPath, critical_path, path_shares
from .table import MAX_RANKS, SpanTable, load_spans


@dataclass(frozen=True, slots=True)
class WholeLinks:
    """Links and path by indices of the shown spans; whether all ranks were looked at; and the ranks on which most of
    the path lies, shown or not, with their share (0 to 1) of it."""

    links: Links
    path: CriticalPath
    is_whole: bool
    shares: list[tuple[int, float]]


def whole_links(bench: Workbench, attempt: Attempt, choice: SpanChoice, spans: SpanTable) -> WholeLinks:
    """Links and critical path of the chosen steps by indices of the shown spans; pieces of others are left out.

    They are sought among all ranks where those have not too many spans. Else they are sought among the shown ones, and
    ``leaves`` of the path names the rank that it comes from.
    """
    whole = _whole(bench, attempt, choice)
    if whole is None:
        links = links_of(bench, attempt, choice, spans)
        path, is_whole = critical_path(spans, links), len(choice.ranks) == len(placement_of(bench, attempt).ranks)
        return WholeLinks(links, path, is_whole, path_shares(spans, path))
    everything, links, path = whole
    place, kept = _places(everything, spans)
    cause = np.where(links.cause[kept] == NOBODY, NOBODY, place[links.cause[kept]])
    both = (place[links.sends] >= 0) & (place[links.receives] >= 0)
    own = Links(place[links.sends[both]], place[links.receives[both]], links.waiting[kept], cause, links.awaited[kept])
    at = place[path.spans]
    shift = float(everything.base_ns - spans.base_ns)
    begins, ends = path.begins[at >= 0] + shift, path.ends[at >= 0] + shift
    shown = CriticalPath(at[at >= 0].astype(np.int32), begins, ends, path.leaves, path.from_ns + shift)
    return WholeLinks(own, shown, True, path_shares(everything, path))


def _whole(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> tuple[SpanTable, Links, CriticalPath] | None:
    """All ranks' spans; None where they are too many, or the shown ones are all there are."""
    ranks = tuple(int(rank) for rank in placement_of(bench, attempt).ranks)
    if len(ranks) > MAX_RANKS or len(ranks) == len(choice.ranks):
        return None
    everyone = replace(choice, axis=EVERYONE, ranks=ranks, group_size=len(ranks))

    def compute() -> tuple[SpanTable, Links, CriticalPath] | None:
        try:
            spans = load_spans(bench, attempt, everyone)
        except UsageError:  # too many spans
            return None
        if spans is None:
            return None
        links = links_of(bench, attempt, everyone, spans)
        return spans, links, critical_path(spans, links)

    return bench.cached(("whole links", attempt.run, attempt.attempt, choice.steps), compute)


def _places(everything: SpanTable, spans: SpanTable) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Index among ``spans`` of each of ``everything`` (-1: its rank is not shown), and the other way round.

    Both tables hold all spans of their ranks in the same order, rank by rank.
    """
    place, back = np.full(len(everything), -1, np.int64), np.zeros(len(spans), np.int64)
    for rank in np.unique(spans.columns["rank"]).tolist():
        there, here = np.flatnonzero(everything.columns["rank"] == rank), np.flatnonzero(spans.columns["rank"] == rank)
        place[there], back[here] = here, there
    return place, back
