"""What leads from rank to rank: messages, and collectives with who arrived last and how long each waited for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt
from ..alignment import clocks_of
from ..heat.data import placement_of
from ..workbench import Workbench
from .choice import SpanChoice
from .table import NO_GROUP, SpanTable

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MANY_RANKS = 1024
"""Of a larger job, arrivals of ranks that are not shown are not looked up: a step of it is too many spans."""

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Links:
    """``sends`` and ``receives``: indices of matched messages, [M]. Of every span [N]: ``waiting``, the ns from its
    start in which not all ranks had arrived (NaN where that is not known), and the index of the span that came last,
    ``cause`` (`NOBODY`: itself, not shown, or not known). ``awaited`` is the rank that came last, `NOBODY` likewise.

    waiting = max(start in the group) - start, as for a receive max(start of its send) - start; never longer than the
    span. No order that is finer than the clocks' uncertainty is claimed: such waiting is 0.
    """

    sends: IntArray
    receives: IntArray
    waiting: FloatArray
    cause: IntArray
    awaited: IntArray


def messages_of(spans: SpanTable) -> tuple[IntArray, IntArray]:
    """Indices of sends and of their receives: the same group, direction and sequence."""
    columns = spans.columns
    told = spans.of_segments([each.kind == "p2p" for each in spans.segments])
    at = np.flatnonzero(told & np.isfinite(columns["peer"]) & np.isfinite(columns["sequence"]))
    receives = spans.of_segments([each.receives for each in spans.segments])[at]
    rank, peer = columns["rank"][at].astype(np.int64), columns["peer"][at].astype(np.int64)
    source, target = np.where(receives, peer, rank), np.where(receives, rank, peer)
    keys = np.stack([columns["group"][at], source, target, columns["sequence"][at].astype(np.int64)])
    order = np.lexsort((receives, *keys))
    same = (keys[:, order[1:]] == keys[:, order[:-1]]).all(axis=0)
    pair = np.flatnonzero(same & ~receives[order[:-1]] & receives[order[1:]])
    return at[order[pair]], at[order[pair + 1]]


def links_of(bench: Workbench, attempt: Attempt, choice: SpanChoice, spans: SpanTable) -> Links:
    """Messages and collectives of the shown spans; who is missing in a group is looked up in the store."""
    sends, receives = messages_of(spans)
    count = len(spans)
    waiting, cause, awaited = np.full(count, np.nan), np.full(count, NOBODY), np.full(count, NOBODY)
    start, rank = spans.columns["start"], spans.columns["rank"]
    last_start = np.full(count, np.nan)
    last_start[receives], cause[receives], awaited[receives] = start[sends], sends, rank[sends]
    _meet(bench, attempt, choice, spans, last_start, cause, awaited)
    known = np.isfinite(last_start)
    waiting[known] = np.clip(last_start[known] - start[known], 0, np.nan_to_num(spans.columns["duration"][known]))
    _claim_no_finer_order(bench, attempt, spans, waiting, awaited)
    nobody = ~(waiting > 0)
    cause[nobody], awaited[nobody] = NOBODY, NOBODY
    return Links(sends, receives, waiting, cause, awaited)


def _meet(
    bench: Workbench,
    attempt: Attempt,
    choice: SpanChoice,
    spans: SpanTable,
    last_start: FloatArray,
    cause: IntArray,
    awaited: IntArray,
) -> None:
    """Fill in who came last to each collective, and when (ns from the base); left alone where a rank is not known."""
    columns = spans.columns
    meets = spans.of_segments([each.kind == "collective" for each in spans.segments])
    at = np.flatnonzero(meets & (columns["group"] != NO_GROUP) & np.isfinite(columns["sequence"]))
    if not len(at):
        return
    keys = (columns["segment"][at], columns["sequence"][at], columns["group"][at])
    order = at[np.lexsort((columns["start"][at], *keys))]
    edges = np.zeros(len(order), bool)
    edges[0] = True
    for name in ("segment", "sequence", "group"):
        values = columns[name][order]
        edges[1:] |= values[1:] != values[:-1]
    firsts = np.flatnonzero(edges)
    sizes = np.diff([*firsts, len(order)])
    members = _group_sizes(bench, attempt)
    wanted = np.array([members.get(int(group), 0) for group in columns["group"][order[firsts]]])
    last = order[firsts + sizes - 1]
    whole = np.repeat(sizes == wanted, sizes)
    filled, lasts = order[whole], np.repeat(last, sizes)[whole]
    last_start[filled], cause[filled], awaited[filled] = columns["start"][lasts], lasts, columns["rank"][lasts]
    rest = order[~whole]
    if len(rest) and (attempt.world_size or 0) <= MANY_RANKS:
        _look_up(bench, attempt, choice, spans, rest, members, last_start, cause, awaited)


def _group_sizes(bench: Workbench, attempt: Attempt) -> Mapping[int, int]:
    def load() -> dict[int, int]:
        rows = bench.store.query('SELECT "group", len(ranks) AS size FROM groups', attempt=attempt).to_pylist()
        return {row["group"]: row["size"] for row in rows}

    return bench.cached(("group sizes", attempt.run, attempt.attempt), load)


_ARRIVALS = """
    SELECT e."group", e."sequence", s.name, s.kind, s.axis, max(e.start_ns) AS last_ns,
        arg_max(e.rank, e.start_ns) AS rank, count(DISTINCT e.rank) FILTER (e.start_ns IS NOT NULL) AS ranks
    FROM events_aligned e JOIN segments s ON s.segment = e.segment
    WHERE e.step BETWEEN ? AND ? AND list_contains(?, e."group") AND s.kind = 'collective'
    GROUP BY ALL
"""


def _look_up(
    bench: Workbench,
    attempt: Attempt,
    choice: SpanChoice,
    spans: SpanTable,
    at: IntArray,
    members: Mapping[int, int],
    last_start: FloatArray,
    cause: IntArray,
    awaited: IntArray,
) -> None:
    """As `_meet` for groups of which some ranks are not shown."""
    columns = spans.columns
    groups = np.unique(columns["group"][at]).tolist()
    rows = bench.store.query(_ARRIVALS, [*choice.steps, groups], attempt).to_pylist()
    found: dict[tuple[Any, ...], tuple[int, int]] = {
        (row["group"], row["sequence"], row["name"], row["axis"]): (row["last_ns"], row["rank"])
        for row in rows
        if row["ranks"] == members.get(row["group"])
    }
    own: dict[tuple[Any, ...], int] = {}
    keys = []
    for span in at.tolist():
        segment = spans.segments[columns["segment"][span]]
        key = (int(columns["group"][span]), int(columns["sequence"][span]), segment.name, segment.axis)
        keys.append((span, key))
        own[*key, int(columns["rank"][span])] = span
    for span, key in keys:
        if key in found:
            last_ns, rank = found[key]
            last_start[span], awaited[span] = float(last_ns - spans.base_ns), rank
            cause[span] = own.get((*key, rank), NOBODY)


def _claim_no_finer_order(
    bench: Workbench, attempt: Attempt, spans: SpanTable, waiting: FloatArray, awaited: IntArray
) -> None:
    """Set waiting for another host to 0 within the clocks' uncertainty, and to NaN where there is none to go by."""
    placement, clocks = placement_of(bench, attempt), clocks_of(bench, attempt)
    if len(set(placement.hosts)) <= 1:
        return
    ranks = np.unique(np.concatenate([spans.columns["rank"], awaited[awaited != NOBODY]]))
    moment = spans.base_ns
    unsure = {rank: clocks[rank].uncertainty_ns(moment) if rank in clocks else np.nan for rank in ranks.tolist()}
    hosts = {rank: placement.host_of(rank) for rank in ranks.tolist()}
    numbers = {host: at for at, host in enumerate(dict.fromkeys(hosts.values()))}
    host_of, slack_of = np.zeros(int(ranks.max()) + 1, np.int64), np.zeros(int(ranks.max()) + 1)
    host_of[ranks] = [numbers[hosts[rank]] for rank in ranks.tolist()]
    slack_of[ranks] = [unsure[rank] for rank in ranks.tolist()]
    at = np.flatnonzero(awaited != NOBODY)
    own, other = spans.columns["rank"][at], awaited[at]
    slack = np.where(host_of[own] == host_of[other], 0.0, slack_of[own] + slack_of[other])
    waiting[at] = np.where(np.isnan(slack), np.nan, np.where(waiting[at] <= slack, 0.0, waiting[at]))
