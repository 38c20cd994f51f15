"""The critical path of the shown steps: the longest chain of work and communication that ends with the last span.

Walked backwards from the last end. What a rank did just before is either its own work, or a communication that it
waited for; then the chain goes on at the rank that arrived last, at the moment of its arrival (for a receive, of its
send). Between two such moments a rank's own spans are on the path.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .links import NOBODY, Links
from .segment import IN_FLIGHT
from .table import SpanTable

WAITED_NS = 10_000
"""Shorter waiting for a communication is the cost of asking whether it is done."""

MOST_TURNS = 200_000


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Pieces of spans from the first to the last: index of the span and the part of it that is on the path, ns from the
    base, each [P]. ``leaves`` is the rank at which the path leaves the shown ones, before ``from_ns``; None: nowhere.
    """

    spans: npt.NDArray[np.int32]
    begins: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]
    leaves: int | None = None
    from_ns: float = 0.0


@dataclass(slots=True)
class _Rank:
    """One rank's communication that was waited for, by end, and its work, by start; ``reach`` is the largest end so
    far, which bounds how far back a span that is still running can have begun."""

    ends: list[float]
    waited: list[int]
    starts: list[float]
    work: list[int]
    reach: list[float]


def critical_path(spans: SpanTable, links: Links) -> CriticalPath:
    """Walk back from the last end that was measured. Empty without any."""
    ends = spans.ends()
    measured = np.isfinite(spans.columns["duration"])
    if IN_FLIGHT in spans.words["status"]:
        measured &= spans.columns["status"] != list(spans.words["status"]).index(IN_FLIGHT)
    if not measured.any():
        return CriticalPath(np.zeros(0, np.int32), np.zeros(0), np.zeros(0))
    ranks = _by_rank(spans, measured, ends)
    start, rank_of = spans.columns["start"].tolist(), spans.columns["rank"].tolist()
    cause, awaited = links.cause.tolist(), links.awaited.tolist()
    end_of = ends.tolist()
    at = int(np.argmax(np.where(measured, ends, -np.inf)))
    rank, moment = rank_of[at], end_of[at]
    pieces: list[tuple[int, float, float]] = []
    leaves = None
    for _ in range(MOST_TURNS):
        here = ranks[rank]
        place = bisect_right(here.ends, moment) - 1
        since = here.ends[place] if place >= 0 else float("-inf")
        pieces += _work_between(here, start, end_of, since, moment)
        if place < 0:
            break
        span = here.waited[place]
        came = cause[span] if cause[span] != NOBODY else span
        began = min(start[came], since) if came != span else start[span]
        pieces.append((span, max(start[span], began), since))
        if came == span and awaited[span] != NOBODY and awaited[span] not in ranks:
            leaves, moment = awaited[span], since
            break
        if came != span and spans.columns["peer"][came] == spans.columns["peer"][came]:
            pieces.append((came, start[came], min(end_of[came], since)))
        # A communication begins while its rank works on; the chain goes on where it was issued.
        rank, moment = rank_of[came], min(began, np.nextafter(since, -np.inf))
    pieces.reverse()
    whole = np.array(pieces, np.float64).reshape(-1, 3)
    return CriticalPath(whole[:, 0].astype(np.int32), whole[:, 1], whole[:, 2], leaves, moment)


def path_shares(spans: SpanTable, path: CriticalPath, most: int = 3) -> list[tuple[int, float]]:
    """The ranks on which most of the path lies, and what share (0 to 1) of its pieces' time; the largest first."""
    length = path.ends - path.begins
    total = float(length.sum())
    if not total > 0:
        return []
    ranks, places = np.unique(spans.columns["rank"][path.spans], return_inverse=True)
    shares = np.bincount(places.reshape(-1), weights=length) / total
    order = np.argsort(-shares, kind="stable")[:most]
    return [(int(ranks[at]), float(shares[at])) for at in order.tolist()]


def _by_rank(spans: SpanTable, measured: npt.NDArray[np.bool_], ends: npt.NDArray[np.float64]) -> dict[int, _Rank]:
    waits = spans.of_segments([each.waits for each in spans.segments]) & measured
    exposed = np.nan_to_num(spans.columns["exposed"][waits])
    waited = waits.copy()
    if (exposed > 0).any():  # else nobody said what was waited for: all of it may have been
        waited &= np.nan_to_num(spans.columns["exposed"]) >= WAITED_NS
    found: dict[int, _Rank] = {}
    for rank in np.unique(spans.columns["rank"]).tolist():
        own = spans.columns["rank"] == rank
        blocked = np.flatnonzero(own & waited)
        blocked = blocked[np.argsort(ends[blocked], kind="stable")]
        work = np.flatnonzero(own & measured & ~waits)
        work = work[np.argsort(spans.columns["start"][work], kind="stable")]
        reach = np.maximum.accumulate(ends[work]) if len(work) else ends[work]
        starts = spans.columns["start"][work].tolist()
        found[rank] = _Rank(ends[blocked].tolist(), blocked.tolist(), starts, work.tolist(), reach.tolist())
    return found


def _work_between(
    here: _Rank, start: list[float], ends: list[float], since: float, until: float
) -> list[tuple[int, float, float]]:
    """The parts of a rank's work that lie between two moments, the last first."""
    found = []
    at = bisect_right(here.starts, until) - 1
    while at >= 0 and here.reach[at] > since:
        span = here.work[at]
        begin, end = max(start[span], since), min(ends[span], until)
        if end > begin:
            found.append((span, begin, end))
        at -= 1
    return found
