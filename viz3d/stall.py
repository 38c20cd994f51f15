"""When a job that was ended stood still: the moment to look at, before whatever ended it made ranks move or go."""

from __future__ import annotations

from ..collectors.patience import STUCK_S
from ..collectors.reading.store import Attempt, Store
from .actions import parse_actions

STILL_OPEN_NS = 10 * 10**9
"""A stall that was closed so shortly before the end was closed by the end: ranks that are interrupted move."""


LAST_NS = 60 * 10**9
"""A stall whose last still moment is longer before the end was over, though nobody may have closed its incident."""


def stalled_before(store: Store, attempt: Attempt, end_ns: int) -> int | None:
    """If the job was stalled when it was ended, or ranks died: the last moment before anything changed; else None.

    The agent looks twice at a stall when it begins; how long it went on is in the heartbeats.
    """
    rows = store.query(
        """SELECT opened_ns, actions FROM incidents
           WHERE kind = 'stalled' AND coalesce(closed_ns, ?) >= ? AND opened_ns < ?
           ORDER BY opened_ns DESC LIMIT 1""",
        [end_ns, end_ns - STILL_OPEN_NS, end_ns],
        attempt=attempt,
    ).to_pylist()
    if not rows:
        return None
    looks = [int(one["moment_ns"]) for one in parse_actions(rows[0]["actions"]) if one.get("action") == "snapshot"]
    moment_ns = _before_next_change(store, attempt, max(looks, default=int(rows[0]["opened_ns"])))
    return moment_ns if end_ns - moment_ns <= LAST_NS else None


def still_before(store: Store, attempt: Attempt, end_ns: int) -> int | None:
    """The last moment before an end until which all ranks had done nothing for `STUCK_S` at the same time, and after
    which none has come to another step; None if there is none.

    For a stall of which no agent opened an incident, as in the first steps of a job, whose pace it has not learned yet.
    What a rank does in the last `STILL_OPEN_NS` may be the end itself.
    """
    row = store.query(
        f"""WITH alive AS (
            SELECT rank, spans, step, moment_ns FROM heartbeats
            WHERE moment_ns < {end_ns} AND process_state NOT IN ('exited', 'gone', 'zombie')
        ), rests AS (
            SELECT rank, max(step) AS step, max(moment_ns) AS until_ns, min(moment_ns) AS since_ns FROM alive
            WHERE spans IS NOT NULL GROUP BY rank, spans
        ), newest AS (
            SELECT rank, max_by(rests, until_ns) AS rest FROM rests
            WHERE until_ns - since_ns >= {STUCK_S * 1e9} AND until_ns >= {end_ns - STILL_OPEN_NS} GROUP BY rank
        ), last AS (SELECT rank, max(step) AS step FROM alive GROUP BY rank)
        SELECT min(rest.until_ns) AS until_ns, max(rest.since_ns) AS since_ns,
            count(*) FILTER (rest IS NULL OR rest.step IS DISTINCT FROM last.step) AS moving
        FROM last LEFT JOIN newest USING (rank)""",
        attempt=attempt,
    ).to_pylist()[0]
    if row["until_ns"] is None or row["moving"] or row["until_ns"] - row["since_ns"] < STUCK_S * 1e9:
        return None
    return int(row["until_ns"])


def all_exited_ns(store: Store, attempt: Attempt) -> int | None:
    """When the first rank was seen to have closed its black box, in a job of which all have; None for any other job."""
    row = store.query(
        """WITH newest AS (SELECT rank, arg_max(process_state, moment_ns) AS state FROM heartbeats GROUP BY rank)
           SELECT (SELECT bool_and(state = 'exited') FROM newest) AS have_ended,
               min(moment_ns) FILTER (process_state = 'exited') AS since_ns FROM heartbeats""",
        attempt=attempt,
    ).to_pylist()[0]
    return int(row["since_ns"]) if row["have_ended"] else None


def _before_next_change(store: Store, attempt: Attempt, look_ns: int) -> int:
    """The newest moment until which every rank has done nothing more than at ``look_ns``, and none has ended."""
    row = store.query(
        f"""WITH at_look AS (
            SELECT rank, arg_max(coalesce(spans, -1), moment_ns) AS spans FROM heartbeats
            WHERE moment_ns <= {look_ns} GROUP BY rank
        )
        SELECT min(moment_ns) FILTER (coalesce(beats.spans, -1) <> at_look.spans
                OR process_state IN ('exited', 'gone', 'zombie')) AS changed_ns,
            max(moment_ns) AS last_ns
        FROM heartbeats beats JOIN at_look USING (rank) WHERE moment_ns > {look_ns}""",
        attempt=attempt,
    ).to_pylist()[0]
    if row["last_ns"] is None:
        return look_ns
    return max(look_ns, int(row["last_ns"]) if row["changed_ns"] is None else int(row["changed_ns"]) - 1)
