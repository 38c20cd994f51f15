"""Which spans of a run a job reads: attempts, steps, and never a step that a newer attempt repeated."""

from __future__ import annotations

from dataclasses import dataclass

from ..collectors.reading.evolution import literal
from ..collectors.reading.store import Attempt, Store
from ..profiler.errors import MegascopeError

FAR = 2**62


@dataclass(frozen=True, slots=True)
class Scope:
    """Attempts of one run, oldest first, with the steps of each that count: inclusive ranges, ascending, disjoint.

    ``recorded`` are the first and the last step of each attempt's spans.
    """

    store: Store
    attempts: tuple[Attempt, ...]
    kept: tuple[tuple[tuple[int, int], ...], ...]
    recorded: tuple[tuple[int, int], ...]

    @property
    def run(self) -> str:
        """The run."""
        return self.attempts[0].run

    @property
    def about_spans(self) -> int:
        """How many spans count, about: the rows of the files, by the share of the recorded steps that count."""
        total = 0.0
        for one, ranges, (first, last) in zip(self.attempts, self.kept, self.recorded, strict=True):
            share = sum(to - since + 1 for since, to in ranges) / (last - first + 1)
            total += share * sum(entry.rows for entry in self.store.entries("events", one))
        return round(total)

    def where(self, events: str = "events") -> str:
        """SQL of a boolean: whether a row of ``events`` is a timed span of a step that counts."""
        chosen = " OR ".join(
            f"({events}.attempt = {one.attempt} AND {events}.step BETWEEN {first} AND {last})"
            for one, ranges in zip(self.attempts, self.kept, strict=True)
            for first, last in ranges
        )
        return f"{events}.run = {literal(self.run)} AND {events}.status = 'ok' AND ({chosen})"


def find_scope(store: Store, run: str | None, attempt: int | None, steps: tuple[int, int] | None) -> Scope:
    """All attempts of a run (the newest by default), or one of them, and the steps asked for.

    Raises UsageError for a run or attempt that is not there, and MegascopeError where no single spans are left.
    """
    newest = store.attempt(run, attempt)
    chosen = [newest] if attempt is not None else [one for one in store.attempts() if one.run == newest.run]
    chosen.sort(key=lambda one: one.attempt)
    asked = steps or (0, FAR)
    recorded = [_recorded(store, one) for one in chosen]
    kept = []
    for at, one in enumerate(recorded):
        ranges = [] if one is None else [(max(one[0], asked[0]), min(one[1], asked[1]))]
        for newer in recorded[at + 1 :]:
            ranges = ranges if newer is None else [part for each in ranges for part in _without(each, newer)]
        kept.append(tuple(part for part in ranges if part[0] <= part[1]))
    found = [
        (one, ranges, steps_of)
        for one, ranges, steps_of in zip(chosen, kept, recorded, strict=True)
        if ranges and steps_of is not None
    ]
    if not found:
        raise MegascopeError(
            f"Run {newest.run} has no single spans{'' if steps is None else ' in those steps'}: they were pruned or "
            "never recorded; `megascope stragglers` and the pages read the rollups, which are kept longer."
        )
    attempts, ranges_of, recorded_of = zip(*found, strict=True)
    return Scope(store, attempts, ranges_of, recorded_of)


def _recorded(store: Store, attempt: Attempt) -> tuple[int, int] | None:
    """First and last step of an attempt's spans."""
    row = store.query("SELECT min(step) AS first, max(step) AS last FROM events", attempt=attempt).to_pylist()[0]
    return None if row["first"] is None else (int(row["first"]), int(row["last"]))


def _without(steps: tuple[int, int], repeated: tuple[int, int]) -> list[tuple[int, int]]:
    """A range without the steps of another one."""
    if repeated[0] > steps[1] or repeated[1] < steps[0]:
        return [steps]
    return [(steps[0], repeated[0] - 1), (repeated[1] + 1, steps[1])]
