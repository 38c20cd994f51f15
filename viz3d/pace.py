"""How long things usually take in a job, and since when a rank has done nothing: the yardsticks of a hang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..collectors.reading.store import Attempt, Store
from ..collectors.reading.views import literal
from ..profiler.vocabulary import WAITING_KINDS
from .states import RankState

WARM_UP_STEPS = 2
"""The first steps of an attempt compile, allocate and fill caches: they tell nothing of the others."""

USUAL_QUANTILE = 0.99
LOOK_BACK_NS = 600 * 10**9
"""So far back heartbeats are searched for the last one in which a rank still moved."""


@dataclass(frozen=True, slots=True)
class Work:
    """A segment of a rank's own work, by name and kind."""

    segment: str
    kind: str


class Pace(Protocol):
    """What is known of the job's usual times; None where it is not known."""

    def step_s(self) -> float | None:
        """Usual duration of a step after warm-up, seconds; None in a job that has not completed one."""
        ...

    def segment_s(self, segment: str) -> float | None:
        """What a segment of work may well take, seconds; None where it has not been completed after warm-up."""
        ...

    def unchanged_s(self, state: RankState) -> float | None:
        """For how long a rank has completed nothing, seconds: since the last heartbeat that differs."""
        ...

    def last_works(self, ranks: Sequence[int]) -> Mapping[int, Work]:
        """The work that ranks were last seen in, those without any left out."""
        ...


@dataclass(frozen=True, slots=True)
class KnownPace:
    """Times that are given: all are unknown unless told otherwise."""

    step: float | None = None
    segments: dict[str, float] = field(default_factory=dict)
    unchanged: dict[int, float] = field(default_factory=dict)
    last: dict[int, Work] = field(default_factory=dict)

    def step_s(self) -> float | None:
        """See `Pace`."""
        return self.step

    def segment_s(self, segment: str) -> float | None:
        """See `Pace`."""
        return self.segments.get(segment)

    def unchanged_s(self, state: RankState) -> float | None:
        """See `Pace`."""
        return self.unchanged.get(state.rank)

    def last_works(self, ranks: Sequence[int]) -> Mapping[int, Work]:
        """See `Pace`."""
        return {rank: self.last[rank] for rank in ranks if rank in self.last}


@dataclass(slots=True)
class StorePace:
    """The times of an attempt as its store has them, up to ``moment_ns``; asked for when they are needed."""

    store: Store
    attempt: Attempt
    moment_ns: int
    _step: float | None = None
    _knows_step: bool = False
    _segments: dict[str, float | None] = field(default_factory=dict)
    _changed_ns: dict[int, int] | None = None

    def step_s(self) -> float | None:
        """See `Pace`: the median over ranks and steps."""
        if not self._knows_step:
            self._knows_step = True
            self._step = self._number(
                f"""SELECT median(duration_ns) / 1e9 FROM steps
                    WHERE step >= (SELECT min(step) FROM steps) + {WARM_UP_STEPS}
                    AND start_ns + duration_ns <= {self.moment_ns}"""
            )
        return self._step

    def segment_s(self, segment: str) -> float | None:
        """See `Pace`: a high quantile over all ranks, so that a few stalls of the past do not hide one of now."""
        if segment not in self._segments:
            self._segments[segment] = self._number(
                f"""SELECT quantile_cont(duration_ns, {USUAL_QUANTILE}) / 1e9 FROM spans
                    WHERE segment_name = {literal(segment)} AND start_ns + duration_ns <= {self.moment_ns}
                    AND step >= (SELECT min(step) FROM events) + {WARM_UP_STEPS}"""
            )
        return self._segments[segment]

    def _number(self, sql: str) -> float | None:
        value = self.store.query(sql, attempt=self.attempt).column(0)[0].as_py()
        return None if value is None else float(value)

    def unchanged_s(self, state: RankState) -> float | None:
        """See `Pace`: None if the rank has not been seen to move in the last minutes."""
        if self._changed_ns is None:
            self._changed_ns = self._last_changes()
        changed = self._changed_ns.get(state.rank)
        return None if changed is None else (state.moment_ns - changed) / 1e9

    def last_works(self, ranks: Sequence[int]) -> Mapping[int, Work]:
        """See `Pace`: by their newest heartbeats of the last minutes."""
        if not ranks:
            return {}
        rows = self.store.query(
            f"""SELECT rank, arg_max(in_flight, moment_ns) AS in_flight FROM heartbeats
                WHERE rank IN ({", ".join(map(str, ranks))})
                AND moment_ns BETWEEN {self.moment_ns - LOOK_BACK_NS} AND {self.moment_ns} GROUP BY rank""",
            attempt=self.attempt,
        ).to_pylist()
        found = {}
        for row in rows:
            own = [one for one in row["in_flight"] or () if one["kind"] not in WAITING_KINDS]
            if own:
                last = max(own, key=lambda one: one["begun_ns"] or 0)
                found[int(row["rank"])] = Work(str(last["segment"]), str(last["kind"]))
        return found

    def _last_changes(self) -> dict[int, int]:
        table = self.store.query(
            f"""WITH recent AS (
                SELECT rank, moment_ns, spans FROM heartbeats WHERE spans IS NOT NULL
                AND moment_ns BETWEEN {self.moment_ns - LOOK_BACK_NS} AND {self.moment_ns}
            ), newest AS (SELECT rank, arg_max(spans, moment_ns) AS spans FROM recent GROUP BY rank)
            SELECT rank, max(recent.moment_ns) AS moment_ns FROM recent JOIN newest USING (rank)
            WHERE recent.spans <> newest.spans GROUP BY rank""",
            attempt=self.attempt,
        )
        return dict(zip(table["rank"].to_pylist(), table["moment_ns"].to_pylist(), strict=True))
