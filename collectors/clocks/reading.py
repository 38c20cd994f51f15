"""Aligns hosts for a reader whose store nobody has aligned: a copied, imported or simulated one. Nothing is written."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ..reading.evolution import literal
from ..reading.store import Attempt, Store
from .update import ClockKeeper

_COLUMNS = {
    "run": "VARCHAR",
    "attempt": "INTEGER",
    "host": "VARCHAR",
    "moment_ns": "BIGINT",
    "offset_ns": "BIGINT",
    "drift_ppb": "DOUBLE",
    "uncertainty_ns": "BIGINT",
    "source": "VARCHAR",
}


@dataclass(slots=True)
class _Known:
    """What was aligned for one attempt of an open store, at which version of it."""

    keeper: ClockKeeper
    rows: list[Mapping[str, Any]]
    version: tuple[Any, ...] | None = None


_lock = threading.Lock()
_of_stores: WeakKeyDictionary[Store, dict[tuple[str, int], _Known]] = WeakKeyDictionary()


def ensure_clock_offsets(store: Store, attempt: Attempt) -> None:
    """Let an open store show the offsets of an attempt that its writers did not leave, as far as they can be had.

    Costs next to nothing for a job of one host, and where nothing has changed since the last call. Windows that are
    still open are left alone while the attempt runs: its agents align them when they have closed.
    """
    with _lock:
        found = _of_stores.setdefault(store, {})
        known = found.setdefault((attempt.run, attempt.attempt), _Known(ClockKeeper(attempt), []))
        if known.version == store.version():
            return
        rows = known.keeper.new_rows(store, is_over=attempt.exit_reason is not None)
        if rows:
            known.rows += rows
            store.derive("clock_offsets", attempt, _values(attempt, known.rows))
        known.version = store.version()


def _values(attempt: Attempt, rows: Iterable[Mapping[str, Any]]) -> str:
    """A SELECT of rows as they stand."""
    run = literal(attempt.run)
    lines = (
        f"({run}, {attempt.attempt}, {literal(row['host'])}, {row['moment_ns']}, {row['offset_ns']}, "
        f"{row['drift_ppb']!r}, {row['uncertainty_ns']}, {literal(row['source'])})"
        for row in rows
    )
    casts = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in _COLUMNS.items())
    return f"SELECT {casts} FROM (VALUES {', '.join(lines)}) derived({', '.join(_COLUMNS)})"
