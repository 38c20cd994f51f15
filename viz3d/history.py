"""What ranks usually do, from their completed spans: which operations run beside work, and how many come before one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..collectors.reading.store import Attempt, Store
from ..collectors.reading.views import literal
from .operations import sends
from .states import Flight
from .usual import Issued, UsualSteps

ASYNCHRONOUS_BELOW = 0.8
"""A segment whose exposed time is a smaller part of its duration than this usually runs beside the rank's work."""


PAST_STEPS = 6
"""Steps of a rank's past that are read: enough to find two alike beside one with an evaluation in it."""


class History(Protocol):
    """What the analysis asks about the past; None where it is not known."""

    def asynchronous(self) -> frozenset[str]:
        """Segments of communication that ranks usually let run beside their work."""
        ...

    def runs_ahead(self) -> bool | None:
        """Whether communication runs on devices, so that hosts may be ahead of it: by the clock that timed it."""
        ...

    def read_ahead(self, steps: Mapping[int, int]) -> None:
        """Read the past of many ranks at once, in place of one by one when they are asked for: rank -> its step."""
        ...

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        """How many operations a rank has usually issued in group ``other`` once it issues number ``sequence`` in
        ``group``, as the sequence number to be expected now in ``step``."""
        ...

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        """Name of the operation with that number in the group, as the rank's earlier steps have it."""
        ...

    def ends_before(self, rank: int, step: int, first: tuple[int, int], second: tuple[int, int]) -> bool | None:
        """Whether the first of two operations, (group, sequence) each, has always ended before the second began."""
        ...

    def sent(self, rank: int, step: int, group: int) -> Mapping[int, int | None]:
        """What a rank has sent over an edge in a step: number -> micro-batch, in order."""
        ...

    def sizes(self, group: int, sequence: int) -> Mapping[int, tuple[str, int]]:
        """Of the ranks that have completed an operation: its name and its payload, bytes, on each."""
        ...

    def expected_size(self, rank: int, step: int, group: int, sequence: int) -> int | None:
        """Payload of the operation with that number in the group, bytes, as the rank's earlier steps have it."""
        ...

    def begins_as_usual(
        self, rank: int, step: int, flight: Flight, before: Sequence[Flight], but: int | None = None
    ) -> bool | None:
        """Whether all that a rank has issued in its step before an operation in flight is what it usually issues first,
        those ``before`` it that are in flight included and those of group ``but`` left out. False too where a record is
        lost."""
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

    def runs_ahead(self) -> bool | None:
        """Not known."""
        return None

    def read_ahead(self, steps: Mapping[int, int]) -> None:
        """Nothing to read."""

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        """Not known."""
        return None

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        """Not known."""
        return None

    def ends_before(self, rank: int, step: int, first: tuple[int, int], second: tuple[int, int]) -> bool | None:
        """Not known."""
        return None

    def sent(self, rank: int, step: int, group: int) -> Mapping[int, int | None]:
        """Not known."""
        return {}

    def sizes(self, group: int, sequence: int) -> Mapping[int, tuple[str, int]]:
        """None are known."""
        return {}

    def expected_size(self, rank: int, step: int, group: int, sequence: int) -> int | None:
        """Not known."""
        return None

    def begins_as_usual(
        self, rank: int, step: int, flight: Flight, before: Sequence[Flight], but: int | None = None
    ) -> bool | None:
        """Not known."""
        return None

    def repeated(self, step: int) -> frozenset[int]:
        """None are known."""
        return frozenset()


@dataclass(slots=True)
class StoreHistory:
    """The past as the store has it: what a rank did in its last steps (`usual`)."""

    store: Store
    attempt: Attempt
    _steps: dict[tuple[int, int], UsualSteps] = field(default_factory=dict)
    _communication: tuple[frozenset[str], bool | None] | None = None

    def asynchronous(self) -> frozenset[str]:
        """Segments of communication whose exposed time is well below their duration."""
        return self._how_it_communicates()[0]

    def runs_ahead(self) -> bool | None:
        """See `History`."""
        return self._how_it_communicates()[1]

    def _how_it_communicates(self) -> tuple[frozenset[str], bool | None]:
        """Segments that usually run beside work, and whether devices time any; one pass over all spans, once."""
        if self._communication is None:
            rows = self.store.query(
                """SELECT segment_name AS name, bool_or(clock = 'device') AS is_device,
                       sum(coalesce(exposed_ns, 0)) FILTER (duration_ns > 0) AS exposed_ns,
                       sum(duration_ns) FILTER (duration_ns > 0) AS duration_ns
                   FROM spans WHERE kind IN ('collective', 'p2p') GROUP BY segment_name""",
                attempt=self.attempt,
            ).to_pylist()
            beside = (
                str(row["name"])
                for row in rows
                if row["duration_ns"] and row["exposed_ns"] < ASYNCHRONOUS_BELOW * row["duration_ns"]
            )
            clocks = [bool(row["is_device"]) for row in rows if row["is_device"] is not None]
            self._communication = frozenset(beside), any(clocks) if clocks else None
        return self._communication

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        """See `History`."""
        usual = self._usual(rank, step)
        place = usual.place(group, sequence)
        return None if place is None else usual.issued_before(place, other)

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        """See `History`."""
        twin = self._twin(rank, step, group, sequence)
        return None if twin is None else twin.segment

    def ends_before(self, rank: int, step: int, first: tuple[int, int], second: tuple[int, int]) -> bool | None:
        """See `History`."""
        usual = self._usual(rank, step)
        places = usual.place(*first), usual.place(*second)
        return None if places[0] is None or places[1] is None else usual.ends_before(places[0], places[1])

    def sent(self, rank: int, step: int, group: int) -> Mapping[int, int | None]:
        """See `History`."""
        rows = self.store.query(
            f"""SELECT kind, segment_name, sequence, microbatch FROM spans
                WHERE run = {literal(self.attempt.run)} AND rank = {rank} AND step = {step} AND "group" = {group}
                ORDER BY sequence""",
            attempt=self.attempt,
        ).to_pylist()
        own = (row for row in rows if sends(str(row["kind"]), str(row["segment_name"])))
        return {int(row["sequence"]): row["microbatch"] for row in own if row["sequence"] is not None}

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
        for own in (step, step - 1):  # an operation in flight may be of the step before the rank's own
            twin = self._twin(rank, own, group, sequence)
            if twin is not None and twin.size_bytes is not None:
                return twin.size_bytes
        return None

    def begins_as_usual(
        self, rank: int, step: int, flight: Flight, before: Sequence[Flight], but: int | None = None
    ) -> bool | None:
        """See `History`."""
        usual = self._usual(rank, step)
        place = usual.place(flight.group or 0, flight.sequence or 0)
        if place is None:
            return None
        return usual.begins_as_usual(place, _issued(flight), [_issued(one) for one in before], but)

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

    def _twin(self, rank: int, step: int, group: int, sequence: int) -> Issued | None:
        usual = self._usual(rank, step)
        place = usual.place(group, sequence)
        return None if place is None else usual.twin(place)

    def read_ahead(self, steps: Mapping[int, int]) -> None:
        """See `History`."""
        ranks_at: dict[int, list[int]] = {}
        for rank, step in steps.items():
            if (rank, step) not in self._steps:
                ranks_at.setdefault(step, []).append(rank)
        for step, ranks in ranks_at.items():
            self._read(ranks, step)

    def _usual(self, rank: int, step: int) -> UsualSteps:
        if (rank, step) not in self._steps:
            self._read([rank], step)
        return self._steps[rank, step]

    def _read(self, ranks: Sequence[int], step: int) -> None:
        columns = self.store.query(
            f"""SELECT rank, step, "group", sequence, segment_name, coalesce(enqueue_ns, start_ns) AS issued_ns,
                start_ns, start_ns + duration_ns AS end_ns, size_bytes FROM spans
                WHERE run = {literal(self.attempt.run)} AND rank IN ({", ".join(map(str, ranks))})
                AND step BETWEEN {step - PAST_STEPS} AND {step}
                AND sequence IS NOT NULL AND "group" IS NOT NULL ORDER BY start_ns""",
            attempt=self.attempt,
        ).to_pydict()
        found: dict[int, dict[int, list[Issued]]] = {rank: {} for rank in ranks}
        for rank, of, *issued in zip(*columns.values(), strict=True):
            found[rank].setdefault(of, []).append(Issued(*issued))
        for rank, steps in found.items():
            begun = steps.pop(step, ())
            self._steps[rank, step] = UsualSteps(steps, step, begun)


def _issued(flight: Flight) -> Issued:
    begun_ns = flight.begun_ns or 0
    return Issued(flight.group or 0, flight.sequence or 0, flight.segment, begun_ns, begun_ns, None, flight.size_bytes)
