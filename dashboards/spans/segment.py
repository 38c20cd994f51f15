"""What a span executes, as the Timeline names it."""

from __future__ import annotations

from dataclasses import dataclass

from ...profiler.vocabulary import WAITING_KINDS

IN_FLIGHT = "in flight"
"""Lane and status of what has begun and not ended."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Name, kind and axis of a segment; a name that is not stored is "unknown", such a kind is empty."""

    name: str
    kind: str
    axis: str | None

    @property
    def waits(self) -> bool:
        """Whether its duration contains waiting for other ranks."""
        return self.kind in WAITING_KINDS

    @property
    def receives(self) -> bool:
        """Whether it is the receiving end of a message."""
        return self.kind == "p2p" and ("recv" in self.name or "receive" in self.name)
