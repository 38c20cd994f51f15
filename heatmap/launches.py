"""How far apart the ranks of a group launch a collective: pauses at irregular moments spread the launches out.

The sign of MegaScale (NSDI '24, section 6.3): the spread of reduce-scatter launches grows with the steps while each
rank collects its garbage at moments of its own, and the last to launch is now this rank, now that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..collectors.reading.store import Attempt, Store
from ..collectors.reading.views import literal
from ..profiler.vocabulary import SegmentKind
from .verdict import LAUNCHED
from .windows import COARSEST, segment_ids

MIN_RATIO = 1.5
"""Median spread of the last steps over that of the first."""

MOST_OFTEN = 0.3
"""Share of the last launches that one rank of a group may have, where it is not that rank's doing."""


@dataclass(frozen=True, slots=True)
class LaunchSpread:
    """Median over groups and steps of the spread of launches, early and late, in ms; how often the rank that launches
    last most often does so; and the SQL for the late one."""

    segment: str
    early_ms: float
    late_ms: float
    most_often_last: float
    sql: str

    @property
    def grows(self) -> bool:
        """Whether the launches of ever other ranks come later and later."""
        return self.late_ms >= MIN_RATIO * self.early_ms and self.most_often_last <= MOST_OFTEN


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of a collective by group and step, [n] each: how far apart, in ms, and who was last.

    ``segments`` are the numbers of the segments with its name.
    ``ranks`` is how many launched, ``members`` of how many it is known when: hosts without a clock tell nothing.
    """

    segment: str
    segments: tuple[int, ...]
    step: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    spread_ms: npt.NDArray[np.float64]
    last_rank: npt.NDArray[np.int64]
    members: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]

    def inside(self, steps: npt.NDArray[np.int64], members: int = 2) -> Launches:
        """Those of the given steps, of groups with so many ranks at least."""
        return self._where(np.isin(self.step, steps) & np.isfinite(self.spread_ms) & (self.members >= members))

    def _where(self, kept: npt.NDArray[np.bool_]) -> Launches:
        return Launches(
            self.segment,
            self.segments,
            self.step[kept],
            self.group[kept],
            self.spread_ms[kept],
            self.last_rank[kept],
            self.members[kept],
            self.ranks[kept],
        )

    def are_known(self, members: int) -> bool:
        """Whether of most groups with so many ranks at least it is known when as many launched; true without any."""
        wide = self.ranks >= members
        known = wide & (self.members >= members) & np.isfinite(self.spread_ms)
        return 2 * int(known.sum()) >= int(wide.sum())

    @property
    def median_members(self) -> float:
        """Ranks of the median group; at least one launch must be there."""
        return float(np.median(self.members))

    def most_often(self, kept: npt.NDArray[np.bool_]) -> float:
        """Share of the steps in which the same rank of a group launches last, in the median group."""
        return _most_often(self.last_rank[kept], self.group[kept])

    def spread_sql(self, attempt: Attempt, first: int, last: int) -> str:
        """The median spread of some steps, ms."""
        return f"SELECT median(spread_ms) FROM ({_spreads(attempt, self.segments, first, last)})"


def launches_of(store: Store, attempt: Attempt, steps: tuple[int, int]) -> Launches | None:
    """Launches in steps (first, last); None where no spans of such a collective are kept.

    A launch is the start of the span on the common clock; where fewer than two are known their spread is NaN.
    """
    name = _segment(store, attempt)
    if name is None:
        return None
    segments = tuple(segment_ids(store, attempt, [name], [str(SegmentKind.COLLECTIVE)])["segment"].to_pylist())
    rows = store.query(_spreads(attempt, segments, *steps))
    spread = rows["spread_ms"].to_numpy(zero_copy_only=False).astype(float)
    step, group, last, members, ranks = (
        rows[column].fill_null(-1).to_numpy().astype(np.int64)
        for column in ("step", "group", "last_rank", "members", "ranks")
    )
    return Launches(name, segments, step, group, spread, last, members, ranks)


def launched(store: Store, attempt: Attempt) -> str | None:
    """The collective whose launches would be looked at were its spans read, by rollups; None where there is none."""
    names = _names(store, attempt)
    if not names:
        return None
    rows = store.query(
        f"""SELECT segment, sum(duration_count) AS launches FROM rank_windows
            WHERE window_steps = {COARSEST} AND segment IN ({_listed(names)}) GROUP BY segment""",
        attempt=attempt,
    ).to_pylist()
    return _least_often(names, rows) or min(names.values())


def launch_spread(store: Store, attempt: Attempt, early: tuple[int, int], late: tuple[int, int]) -> LaunchSpread | None:
    """Spread of launches in two stretches of steps (first, last); None where there are none, or no aligned clocks."""
    found = launches_of(store, attempt, (early[0], late[1]))
    if found is None:
        return None
    inside = [
        (found.step >= part[0]) & (found.step <= part[1]) & np.isfinite(found.spread_ms) for part in (early, late)
    ]
    if not (inside[0].any() and inside[1].any()):
        return None
    early_ms, late_ms = (float(np.median(found.spread_ms[part])) for part in inside)
    return LaunchSpread(found.segment, early_ms, late_ms, found.most_often(inside[1]), found.spread_sql(attempt, *late))


def _segment(store: Store, attempt: Attempt) -> str | None:
    """The reduce-scatter of which spans are kept that is launched least often."""
    names = _names(store, attempt)
    if not names:
        return None
    rows = store.query(
        f"""SELECT segment, count(*) AS launches FROM events
            WHERE segment IN ({_listed(names)}) AND "group" IS NOT NULL GROUP BY segment""",
        attempt=attempt,
    ).to_pylist()
    return _least_often(names, rows)


def _least_often(names: dict[int, str], rows: Iterable[dict[str, Any]]) -> str | None:
    """Of the names of segments the one that is launched least often, that of the gradients; None where none is."""
    launches: dict[str, int] = {}
    for row in rows:
        launches[names[row["segment"]]] = launches.get(names[row["segment"]], 0) + int(row["launches"])
    return min(launches, key=lambda name: (launches[name], name), default=None)


def _names(store: Store, attempt: Attempt) -> dict[int, str]:
    """Collectives whose launches may be looked at, by the number of their segment."""
    known = segment_ids(store, attempt, kinds=[str(SegmentKind.COLLECTIVE)]).to_pylist()
    return {int(row["segment"]): str(row["name"]) for row in known if LAUNCHED in str(row["name"]).lower()}


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _spreads(attempt: Attempt, segments: Iterable[int], first: int, last: int) -> str:
    """Spread of the first launch of a step in each group of several ranks, and who launched last.

    Segments are told by number: so DuckDB leaves all other spans out before it aligns any.
    """
    return (
        f'SELECT step, "group", CASE WHEN count(began) > 1 THEN (max(began) - min(began)) / 1e6 END AS spread_ms, '
        f"arg_max(rank, began) AS last_rank, count(began) AS members, count(*) AS ranks FROM ("
        f'SELECT step, "group", rank, min(start_ns) AS began FROM events_aligned WHERE run = {literal(attempt.run)} '
        f"AND attempt = {attempt.attempt} AND segment IN ({_listed(segments)}) AND step BETWEEN {first} AND {last} "
        f'AND "group" IS NOT NULL GROUP BY ALL) GROUP BY step, "group" HAVING count(*) > 1'
    )


def _most_often(ranks: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]) -> float:
    """Share of the steps in which the same rank of a group launches last, in the median group."""
    shares = []
    for group in np.unique(groups):
        own = np.unique(ranks[groups == group], return_counts=True)[1]
        shares.append(own.max() / own.sum())
    return float(np.median(shares))
