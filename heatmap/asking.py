"""A single number asked from the store: how every piece of evidence gets its value."""

from __future__ import annotations

from ..collectors.reading.store import Attempt, Store


def ask(store: Store, sql: str, attempt: Attempt | None = None) -> float | None:
    """The one number that a query gives; None where it gives no row, or NULL."""
    table = store.query(sql, attempt=attempt)
    value = table.column(0)[0].as_py() if table.num_rows else None
    return None if value is None else float(value)
