"""Who looks on while an agent drains an attempt: told of what was read, before it is in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .event_rows import SpanArrays
    from .rank_drain import RankDrain


class Observer(Protocol):
    """Of one attempt. It raises nothing, takes next to no time, and keeps nothing of what it is given."""

    def rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of a table that grows, each once."""

    def spans(self, rank: RankDrain, arrays: Sequence[SpanArrays]) -> None:
        """Spans of one rank, each once."""


Observe = Callable[[str, int], Observer]
"""The observer of a run's attempt."""
