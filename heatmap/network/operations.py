"""Transfers from spans: operations matched by group and sequence, and what each took once all had arrived.

The transfer of an operation is its end minus the latest start in its group. All members see it end together, so that
is the shortest duration among them: the last to arrive waits for nobody. No clock of two hosts is compared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ..cells import NS_PER_MS
from ..peers import IntArray, Placement
from .channels import Channels, crosses_hosts, host_numbers, none_of, stays_inside

SIDE = """CASE WHEN s.kind = 'collective' THEN 0 WHEN contains(s.name, 'recv') THEN 2
          WHEN contains(s.name, 'receive') THEN 2 ELSE 1 END"""
"""What a rank does in an operation: 0 a collective, 1 sends, 2 receives."""

SENDER = f"CASE {SIDE} WHEN 1 THEN e.rank WHEN 2 THEN e.peer ELSE -1 END"
RECEIVER = f"CASE {SIDE} WHEN 1 THEN e.peer WHEN 2 THEN e.rank ELSE -1 END"

NAME = "CASE s.kind WHEN 'p2p' THEN replace(replace(s.name, 'receive', 'send'), 'recv', 'send') ELSE s.name END"
"""One name for both ends of a p2p operation: the sender's."""

USABLE = """s.kind IN ('collective', 'p2p') AND e.status = 'ok' AND e.duration_ns IS NOT NULL
            AND e."group" IS NOT NULL AND e.sequence IS NOT NULL AND (s.kind = 'collective' OR e.peer IS NOT NULL)"""

_TRANSFERS = f"""
    WITH wanted AS (
        SELECT unnest(?::BIGINT[]) AS "group", unnest(?::INTEGER[]) AS size, unnest(?::BOOLEAN[]) AS whole
    ),
    operations AS (
        SELECT e."group" AS g, e.sequence AS q, {SENDER} AS sender, max({RECEIVER}) AS receiver,
            min(e.segment) FILTER ({SIDE} <> 2) AS segment, min(e.step) AS step,
            min(e.duration_ns) AS took, max(e.size_bytes) AS bytes, count(*) AS ends, any_value(w.size) AS size
        FROM events e JOIN segments s USING (segment) JOIN wanted w ON w."group" = e."group"
        WHERE e.step BETWEEN ? AND ? AND {USABLE} AND (w.whole OR s.kind = 'p2p')
        GROUP BY ALL
    )
    SELECT g, sender, receiver, segment, step, median(took) AS took, count(*) AS operations, max(bytes) AS bytes
    FROM operations WHERE ends = CASE WHEN sender < 0 THEN size ELSE 2 END AND segment IS NOT NULL GROUP BY ALL
"""
"""An operation of which a member's span is missing is left out: that member may have been the last to arrive."""


def load_groups(store: Store, attempt: Attempt) -> tuple[IntArray, IntArray, IntArray]:
    """Groups of the attempt: identities [G], and its members as (place of the group, rank) [M], sorted by group."""
    rows = store.query('SELECT "group", ranks FROM groups WHERE len(ranks) > 1', attempt=attempt).combine_chunks()
    if not rows.num_rows:
        rows = store.query(
            """SELECT e."group" AS "group", list(DISTINCT e.rank ORDER BY e.rank) AS ranks FROM events e
               WHERE e."group" IS NOT NULL GROUP BY ALL HAVING count(DISTINCT e.rank) > 1""",
            attempt=attempt,
        ).combine_chunks()
    if not rows.num_rows:
        return (np.zeros(0, np.int64),) * 3
    lists = rows["ranks"].chunk(0)
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    ranks = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return rows["group"].to_numpy().astype(np.int64), np.repeat(np.arange(len(lengths)), lengths), ranks


def load_channels(
    store: Store, attempt: Attempt, placement: Placement, ranks: IntArray, steps: IntArray, *, inside: bool = False
) -> Channels:
    """Channels between hosts, all of whose members are among ``ranks``, with their transfers in ``steps``.

    With ``inside``, those that join ranks of one host.
    """
    groups, place, members = load_groups(store, attempt)
    if not len(groups) or not len(steps):
        return none_of(steps, 1)
    choose, hosts = stays_inside if inside else crosses_hosts, host_numbers(placement, members)
    whole = choose(place, hosts, len(groups))
    wanted = whole | (crosses_hosts(place, hosts, len(groups)) & inside)  # the pairs of a group may be on one host
    wanted &= np.bincount(place, ~np.isin(members, ranks), len(groups)) == 0
    sizes = np.bincount(place, minlength=len(groups))
    chosen = [groups[wanted].tolist(), sizes[wanted].tolist(), whole[wanted].tolist()]
    parameters = [*chosen, int(steps[0]), int(steps[-1])]
    table = store.query(_TRANSFERS, parameters, attempt=attempt)
    if not table.num_rows:
        return none_of(steps, 1)
    found = _channels(table, groups, place, members, steps, _names(store, attempt))
    kept = found.chosen(choose(found.channel_of, host_numbers(placement, found.rank_of), len(found)))
    return replace(kept, inside=inside)


def _names(store: Store, attempt: Attempt) -> dict[int, str]:
    rows = store.query("SELECT segment, name FROM segments", attempt=attempt)
    return dict(zip(rows["segment"].to_pylist(), rows["name"].to_pylist(), strict=True))


def _channels(
    table: pa.Table, groups: IntArray, place: IntArray, members: IntArray, steps: IntArray, names: dict[int, str]
) -> Channels:
    """Rows of `_TRANSFERS`, one a channel and step, as channels."""
    columns = {name: table[name].to_numpy().astype(np.int64) for name in ("g", "sender", "receiver", "segment", "step")}
    keys, first, channel = np.unique(
        np.stack([columns["g"], columns["sender"], columns["segment"]]), axis=1, return_index=True, return_inverse=True
    )
    channel, count = channel.reshape(-1), keys.shape[1]
    column = np.searchsorted(steps, columns["step"])
    there = steps[np.minimum(column, len(steps) - 1)] == columns["step"]
    transfer = np.full((count, len(steps)), np.nan)
    transfer[channel[there], column[there]] = table["took"].to_numpy()[there] / NS_PER_MS
    operations = np.bincount(channel, table["operations"].to_numpy(), count) / np.bincount(channel, minlength=count)
    bytes_ = table["bytes"].fill_null(0).to_numpy()[first]
    channel_of, rank_of = _members(keys, columns["receiver"][first], groups, place, members)
    size = np.bincount(channel_of, minlength=count)
    of_segment, segment = np.unique(keys[2], return_inverse=True)
    payload = np.where(bytes_ > 0, np.rint(4 * np.log2(np.maximum(bytes_, 1))), -1).astype(np.int64)
    _, kind = np.unique(np.stack([segment.reshape(-1), payload, size]), axis=1, return_inverse=True)
    return Channels(
        tuple(names.get(int(one), str(one)) for one in of_segment), segment.reshape(-1), keys[0], keys[1],
        kind.reshape(-1), operations, channel_of, rank_of, steps, 1, transfer,
    )  # fmt: skip


def _members(
    keys: IntArray, receiver: IntArray, groups: IntArray, place: IntArray, members: IntArray
) -> tuple[IntArray, IntArray]:
    """Members of every channel, as (channel, rank) sorted by channel: both ends of p2p, else all of the group."""
    order = np.argsort(groups)
    of_channel = order[np.searchsorted(groups[order], keys[0])]
    starts = np.searchsorted(place, np.arange(len(groups) + 1))
    is_pair = keys[1] >= 0
    lengths = np.where(is_pair, 2, np.diff(starts)[of_channel])
    channel_of = np.repeat(np.arange(keys.shape[1]), lengths)
    within = np.arange(len(channel_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    of_group = members[np.minimum(starts[of_channel][channel_of] + within, len(members) - 1)]
    of_pair = np.where(within == 0, keys[1][channel_of], receiver[channel_of])
    return channel_of, np.where(is_pair[channel_of], of_pair, of_group)
