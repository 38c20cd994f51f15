"""What the replay reads from: a store, or tables held in memory that answer the same questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from ...collectors.reading.store import Attempt


class Tables(Protocol):
    """Answers one SELECT over the tables of an attempt, as `Store` does."""

    def query(self, sql: str, parameters: Sequence[object] = (), attempt: Attempt | None = None) -> pa.Table:
        """Rows of the answer."""
