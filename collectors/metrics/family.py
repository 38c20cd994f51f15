"""What a family of metrics is, and samples of many families at one moment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "summary"]


@dataclass(frozen=True, slots=True)
class Family:
    """One family, named by Prometheus' rules: base units, ``_total`` for what only grows.

    A summary has a count and a sum, and no quantiles. Of one that ``ages`` the time that has passed since the sample
    was taken is added at every scrape.
    """

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    ages: bool = False

    @property
    def series_names(self) -> tuple[str, ...]:
        """The names under which its values are queried."""
        return (f"{self.name}_count", f"{self.name}_sum") if self.kind == "summary" else (self.name,)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value; ``count`` is that of a summary, whose ``value`` is the sum."""

    labels: tuple[str, ...]
    value: float
    count: float | None = None


class Samples:
    """Samples of one moment, by family. What is missing has no sample: never 0, never NaN."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self._samples: dict[str, list[Sample]] = {}
        self._taken_at = time.monotonic()

    def add(self, name: str, value: float | None, *labels: object, count: float | None = None) -> None:
        """Add the value of a family at these labels; None adds nothing. KeyError, ValueError: not as in the list."""
        family = self._families[name]
        if len(labels) != len(family.labels) or (family.kind == "summary") != (count is not None):
            raise ValueError(f"{name} has the labels {family.labels} and is a {family.kind}")
        if value is not None:
            self._samples.setdefault(name, []).append(Sample(tuple(map(str, labels)), float(value), count))

    def add_states(self, name: str, states: Iterable[str], current: str, *labels: object) -> None:
        """One sample for each state, the last label: 1 for the current one, 0 for all others."""
        for state in states:
            self.add(name, float(state == current), *labels, state)

    def families(self) -> Iterator[tuple[Family, list[Sample]]]:
        """Families that have samples, with those, in the order of the list."""
        for name, family in self._families.items():
            if name in self._samples:
                yield family, self._samples[name]

    @property
    def age_s(self) -> float:
        """Seconds since they were taken."""
        return time.monotonic() - self._taken_at


def by_name(families: Iterable[Family]) -> dict[str, Family]:
    """Families by their names."""
    return {family.name: family for family in families}
