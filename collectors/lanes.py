"""Puts spans into lanes in which they only nest: viewers draw a lane as a stack and cannot show an overlap."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Lanes:
    """The lanes of one rank. Each wanted lane (a thread, a stream) gets further ones as soon as its spans overlap."""

    _ends: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _numbers: dict[tuple[str, int], int] = field(default_factory=dict)

    def place(self, wanted: str, start_ns: int, end_ns: int) -> int:
        """Number (from 1) of the lane for a span; spans must come in the order of their start, the longest first."""
        copy = 0
        while True:
            ends = self._ends.setdefault((wanted, copy), [])
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or ends[-1] >= end_ns:
                ends.append(end_ns)
                return self._numbers.setdefault((wanted, copy), len(self._numbers) + 1)
            copy += 1

    def names(self) -> dict[int, str]:
        """Name of every lane by its number; ``#2`` marks the second one of a thread."""
        return {
            number: wanted if copy == 0 else f"{wanted} #{copy + 1}" for (wanted, copy), number in self._numbers.items()
        }
