"""Errors of hardware that are new to somebody who follows an attempt, and the alarms that tell of them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

from ..alarms.rules import Alarm
from ..reading.store import Attempt, Store
from .telling import AGAIN_S, Key, hardware_alarm

RECENT_S = 3600.0
"""What is older is history, which `megascope health` has."""

MOST_NEWS = 20
"""Told at a time; how many more there are is one sentence."""

_ERRORS = """
    SELECT host, device, kind, code, max(moment_ns) AS moment_ns, count(*) AS times, arg_max(text, moment_ns) AS text
    FROM hardware_events WHERE severity = 'error' AND moment_ns >= ? GROUP BY ALL ORDER BY moment_ns, host, text
"""
_RANKS = "SELECT host, device, list(rank ORDER BY rank) AS ranks FROM ranks WHERE device IS NOT NULL GROUP BY ALL"


@dataclass(frozen=True, slots=True)
class News:
    """Something that went wrong; ``alarm`` is None where the sentence only counts what is left out."""

    moment_ns: int
    sentence: str
    alarm: Alarm | None = None


def hardware_news(store: Store, attempt: Attempt, told: MutableMapping[Key, int], now_ns: int) -> Iterator[News]:
    """Errors in ``hardware_events`` that ``told`` (their newest moments) lacks or that came again; it is updated.

    They are what was logged: whether they hurt the job is what verdicts say.
    """
    fresh = []
    for row in store.query(_ERRORS, [now_ns - int(RECENT_S * 1e9)], attempt).to_pylist():
        key = str(row["host"]), row["device"], str(row["kind"]), row["code"]
        before = told.get(key)
        if before is None or row["moment_ns"] - before >= AGAIN_S * 1e9:
            told[key] = int(row["moment_ns"])
            fresh.append(row)
    if not fresh:
        return
    on = {(one["host"], one["device"]): tuple(one["ranks"]) for one in store.query(_RANKS, [], attempt).to_pylist()}
    for row in fresh[:MOST_NEWS]:
        ranks: tuple[int, ...] = on.get((row["host"], row["device"]), ())
        often = f", {row['times']:,} times" if row["times"] > 1 else ""
        alarm = hardware_alarm(attempt.run, attempt.attempt, row, ranks, int(row["moment_ns"]), often)
        yield News(alarm.moment_ns, alarm.sentence.removesuffix("."), alarm)
    if len(fresh) > MOST_NEWS:
        more = f"{len(fresh) - MOST_NEWS:,} more errors of hardware: `megascope health` has them"
        yield News(now_ns, more)
