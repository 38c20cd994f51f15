"""What ranks usually do, from their completed spans: which operations run beside work, and how many come before one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..collectors.store import Attempt, Store
from ..collectors.views import literal

ASYNCHRONOUS_BELOW = 0.8
"""A segment whose exposed time is a smaller part of its duration than this usually runs beside the rank's work."""


class History(Protocol):
    """What the analysis asks about the past; None where it is not known."""

    def asynchronous(self) -> frozenset[str]:
        """Segments of communication that ranks usually let run beside their work."""
        ...

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        """How many operations a rank has usually issued in group ``other`` once it issues number ``sequence`` in
        ``group``, as the sequence number to be expected now in ``step``."""
        ...

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        """Name of the operation with that number in the group, as the rank's earlier steps have it."""
        ...

    def sizes(self, group: int, sequence: int) -> Mapping[int, tuple[str, int]]:
        """Of the ranks that have completed an operation: its name and its payload, bytes, on each."""
        ...

    def expected_size(self, rank: int, step: int, group: int, sequence: int) -> int | None:
        """Payload of the operation with that number in the group, bytes, as the rank's earlier steps have it."""
        ...

    def repeated(self, step: int) -> frozenset[int]:
        """Ranks that have run a step, or the one before it, twice."""
        ...


@dataclass(frozen=True, slots=True)
class NoHistory:
    """Nothing is known of the past."""

    def asynchronous(self) -> frozenset[str]:
        """None are known."""
        return frozenset()

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        """Not known."""
        return None

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        """Not known."""
        return None

    def sizes(self, group: int, sequence: int) -> Mapping[int, tuple[str, int]]:
        """None are known."""
        return {}

    def expected_size(self, rank: int, step: int, group: int, sequence: int) -> int | None:
        """Not known."""
        return None

    def repeated(self, step: int) -> frozenset[int]:
        """None are known."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class _Issued:
    """An operation that a rank issued in an earlier step."""

    group: int
    sequence: int
    segment: str
    start_ns: int
    size_bytes: int | None


@dataclass(slots=True)
class StoreHistory:
    """The past as the store has it. Steps are alike: the operation of the step before, one step's count earlier."""

    store: Store
    attempt: Attempt
    _steps: dict[tuple[int, int], list[_Issued]] = field(default_factory=dict)
    _beside: frozenset[str] | None = None

    def asynchronous(self) -> frozenset[str]:
        """Segments of communication whose exposed time is well below their duration."""
        if self._beside is None:
            self._beside = self._below()
        return self._beside

    def _below(self) -> frozenset[str]:
        table = self.store.query(
            f"""SELECT segment_name AS name FROM spans WHERE kind IN ('collective', 'p2p') AND duration_ns > 0
                GROUP BY segment_name
                HAVING sum(coalesce(exposed_ns, 0)) < {ASYNCHRONOUS_BELOW} * sum(duration_ns)""",
            attempt=self.attempt,
        )
        return frozenset(str(name) for name in table["name"].to_pylist())

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        """See `History`."""
        last, before = self._issued(rank, step - 1), self._issued(rank, step - 2)
        per_step, per_step_other = self._per_step(last, before, group), self._per_step(last, before, other)
        if per_step is None or per_step_other is None:
            return None
        twin = [one for one in last if one.group == group and one.sequence == sequence - per_step]
        if not twin:
            return None
        earlier = [one.sequence for one in (*before, *last) if one.group == other and one.start_ns < twin[0].start_ns]
        return max(earlier) + per_step_other if earlier else None

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        """See `History`."""
        last, before = self._issued(rank, step - 1), self._issued(rank, step - 2)
        per_step = self._per_step(last, before, group)
        if per_step is None:
            return None
        names = [one.segment for one in last if one.group == group and one.sequence == sequence - per_step]
        return names[0] if names else None

    def sizes(self, group: int, sequence: int) -> Mapping[int, tuple[str, int]]:
        """See `History`."""
        rows = self.store.query(
            f"""SELECT rank, segment_name, size_bytes FROM spans
                WHERE "group" = {group} AND sequence = {sequence} AND size_bytes IS NOT NULL""",
            attempt=self.attempt,
        ).to_pylist()
        return {int(row["rank"]): (str(row["segment_name"]), int(row["size_bytes"])) for row in rows}

    def expected_size(self, rank: int, step: int, group: int, sequence: int) -> int | None:
        """See `History`."""
        for before in (step, step - 1):  # an operation in flight may be of the step before the rank's own
            last = self._issued(rank, before - 1)
            per_step = self._per_step(last, self._issued(rank, before - 2), group)
            if per_step is not None:
                twin = [one.size_bytes for one in last if (one.group, one.sequence) == (group, sequence - per_step)]
                if twin:
                    return twin[0]
        return None

    def repeated(self, step: int) -> frozenset[int]:
        """See `History`: ranks with one piece of work of a step twice."""
        table = self.store.query(
            f"""SELECT DISTINCT rank FROM (
                    SELECT rank FROM spans WHERE step IN ({step}, {step - 1}) AND kind = 'compute'
                    AND microbatch IS NOT NULL
                    GROUP BY rank, step, segment_name, microbatch, chunk HAVING count(*) > 1)""",
            attempt=self.attempt,
        )
        return frozenset(int(rank) for rank in table["rank"].to_pylist())

    @staticmethod
    def _per_step(last: list[_Issued], before: list[_Issued], group: int) -> int | None:
        """Operations of a group in a step, if two steps in a row had as many."""
        counts = [Counter(one.group for one in step)[group] for step in (last, before)]
        return counts[0] if counts[0] and counts[0] == counts[1] else None

    def _issued(self, rank: int, step: int) -> list[_Issued]:
        key = (rank, step)
        if key not in self._steps:
            rows = self.store.query(
                f"""SELECT "group", sequence, segment_name, start_ns, size_bytes FROM spans
                    WHERE run = {literal(self.attempt.run)} AND rank = {rank} AND step = {step}
                    AND sequence IS NOT NULL AND "group" IS NOT NULL""",
                attempt=self.attempt,
            ).to_pylist()
            self._steps[key] = [
                _Issued(
                    int(row["group"]),
                    int(row["sequence"]),
                    str(row["segment_name"]),
                    int(row["start_ns"]),
                    row["size_bytes"],
                )
                for row in rows
            ]
        return self._steps[key]
