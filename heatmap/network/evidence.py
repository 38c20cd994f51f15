"""The numbers behind a slow link, each asked from the store by SQL that anyone can run again."""

from __future__ import annotations

from collections.abc import Sequence

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...collectors.verdicts import Evidence
from ..asking import ask
from ..verdict import CulpritKind
from .channels import Channels
from .levels import Routes
from .loss import Excess
from .operations import NAME, SENDER
from .places import Place

MOST_CHANNELS = 16
"""Channels of a segment that the SQL names; the worst first."""

FEW_RANKS = 16
"""Members of a group that the SQL names one by one; of larger ones it asks the store."""


def gather(
    store: Store,
    attempt: Attempt,
    place: Place,
    routes: Routes,
    found: Sequence[Excess],
    channels: Channels,
    steps: tuple[int, int],
) -> tuple[Evidence, ...]:
    """Transfer times by segment beside those of other pairs or groups, and who only waits. What has no answer is left
    out."""
    result = []
    for one in found:
        sql = transfer_sql(attempt, one, channels, steps)
        own = ask(store, sql, attempt)
        if own is not None:
            table_name = "events" if channels.exact else "rank_windows"
            said = _statement(place, one, own, channels, steps)
            result.append(Evidence(said, own, round(one.usual_ms, 6), table_name, sql))
    return tuple(result) + _victims(place, routes, result, inside=channels.inside)


def transfer_sql(attempt: Attempt, one: Excess, channels: Channels, steps: tuple[int, int]) -> str:
    """SQL for the median transfer, in ms, of the channels of an excess in steps (first, last)."""
    make = _of_spans if channels.exact else _of_windows
    return make(attempt, one, channels, steps)


def _statement(place: Place, one: Excess, value: float, channels: Channels, steps: tuple[int, int]) -> str:
    pairs = channels.sender[one.channels[0]] >= 0
    what = "pair" if pairs else "group"
    count = len(one.channels)
    own = f"{count} {what}{'s' if count > 1 else ''} of {_who(place)}"
    window = f"of each window of {channels.step_width} steps "
    place_of_links = "inside hosts" if channels.inside else "between hosts"
    how = "" if channels.exact else window + ("a bound of the mean, " if channels.by_mean else "the least, ")
    return (
        f"transfers of {one.segment} take {value:.2f} ms in {own} once all have arrived ({how}median over steps "
        f"{steps[0]} to {steps[1]}), in {one.peers} other {what}s {place_of_links} "
        f"{one.usual_ms:.2f} ms: x{value / one.usual_ms:.2f}"
    )


def _who(place: Place) -> str:
    if place.kind == CulpritKind.HOST:
        return f"host {place.hosts[0]}"
    if len(place.ranks) > FEW_RANKS:
        return f"{len(place.ranks)} ranks"
    return f"rank{'s' if len(place.ranks) > 1 else ''} {', '.join(str(rank) for rank in place.ranks)}"


def _victims(place: Place, routes: Routes, evidence: Sequence[Evidence], *, inside: bool) -> tuple[Evidence, ...]:
    """How many routes are slow, and who is at their other ends."""
    if place.kind not in (CulpritKind.RANK, CulpritKind.HOST) or not evidence:
        return ()
    others = {int(rank) for one in place.routes for rank in routes.members(one)} - set(place.ranks)
    count, where = len(place.routes), "inside its host" if inside else "to other hosts"
    statement = (
        f"{f'all {count} routes' if count > 1 else 'the only route'} from {_who(place)} {where} "
        f"{'are' if count > 1 else 'is'} slow at once; the {len(others)} ranks at the other ends only wait: no other "
        f"rank explains these routes"
    )
    return (Evidence(statement, float(count), None, evidence[0].table, evidence[0].sql),)


def _of_spans(attempt: Attempt, one: Excess, channels: Channels, steps: tuple[int, int]) -> str:
    """Median over operations of the shortest duration among the members."""
    chosen = one.channels[:MOST_CHANNELS]
    pairs = sorted({(int(channels.group[row]), int(channels.sender[row])) for row in chosen})
    wanted = ", ".join(f"({group}, {sender})" for group, sender in pairs)
    return (
        f'SELECT median(ms) FROM (SELECT e."group", e.sequence, min(e.duration_ns) / 1e6 AS ms FROM events e '
        f"JOIN segments s USING (run, attempt, segment) WHERE e.run = {literal(attempt.run)} "
        f"AND e.attempt = {attempt.attempt} AND e.step BETWEEN {steps[0]} AND {steps[1]} AND e.status = 'ok' "
        f'AND {NAME} = {literal(one.segment)} AND (e."group", {SENDER}) IN ({wanted}) '
        f'GROUP BY e."group", e.sequence, {SENDER} HAVING count(*) > 1)'
    )


def _of_windows(attempt: Attempt, one: Excess, channels: Channels, steps: tuple[int, int]) -> str:
    """Median over windows of the least duration (or least mean) among the members of the worst channel."""
    row = one.channels[0]
    members = [int(rank) for rank in channels.members(row)]
    if channels.sender[row] >= 0:
        sender = int(channels.sender[row])
        receiver = next((rank for rank in members if rank != sender), sender)
        name = literal(one.segment)
        who = f"((s.name = {name} AND rank = {sender}) OR (s.name <> {name} AND {NAME} = {name} AND rank = {receiver}))"
    elif len(members) <= FEW_RANKS:
        who = f"s.name = {literal(one.segment)} AND rank IN ({', '.join(str(rank) for rank in members)})"
    else:
        own = (
            f"SELECT unnest(ranks) FROM groups WHERE run = {literal(attempt.run)} AND attempt = {attempt.attempt} "
            f"AND kind = s.axis AND list_contains(ranks, {members[0]}) AND len(ranks) = {len(members)}"
        )
        who = f"s.name = {literal(one.segment)} AND rank IN ({own})"
    value = "sum(duration_sum_ns) / sum(duration_count)" if channels.by_mean else "min(duration_min_ns)"
    return (
        f"SELECT median(ms) FROM (SELECT first_step, min(ms) AS ms FROM (SELECT first_step, {value} / 1e6 AS ms "
        f"FROM rank_windows w "
        f"JOIN segments s USING (run, attempt, segment) WHERE w.run = {literal(attempt.run)} "
        f"AND w.attempt = {attempt.attempt} AND window_steps = {channels.step_width} "
        f"AND first_step BETWEEN {steps[0]} AND {steps[1]} AND {who} "
        f"GROUP BY first_step, rank, s.name) GROUP BY first_step)"
    )
