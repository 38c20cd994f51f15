"""What answers questions: one interface, and how an engine is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from ..profiler.errors import UsageError
from .scope import Scope

Tables = Mapping[str, pa.Table]
Piece = Callable[[pa.Table], pa.Table]


class EngineName(StrEnum):
    """The engines."""

    DUCKDB = "duckdb"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class Question:
    """SQL over the view ``events`` and over small tables that are handed along.

    Written in the subset of DuckDB's dialect that `dialects` explains. ``small`` are tables of at most some hundred
    thousand rows, which every machine gets whole.
    """

    sql: str
    small: Tables = field(default_factory=dict)


class Engine(Protocol):
    """Answers questions about the raw spans of a scope."""

    def ask(self, question: Question) -> pa.Table:
        """The answer, in memory: for answers that fit."""

    def save(self, question: Question, folder: Path) -> int:
        """Write the answer as Parquet files into a new folder, which appears when it is whole; the number of rows."""

    def each_piece(self, question: Question, pieces: Mapping[int, str], work: Piece, answer: pa.Schema) -> pa.Table:
        """Hand the question's rows to ``work``, all with one number in the column ``piece`` together, wherever the
        engine computes; the answers [schema ``answer``] together.

        ``pieces`` are the numbers, each with SQL that all of its rows meet, by which files can be passed over.
        """

    def close(self) -> None:
        """End what was started."""


def open_engine(name: EngineName, scope: Scope, master: str | None = None) -> Engine:
    """The engine over a scope; ``master`` is the address of a Spark cluster, by default this machine.

    Raises UsageError or MegascopeError, one sentence, where it cannot be had.
    """
    if name == EngineName.SPARK:
        from .spark_engine import SparkEngine  # noqa: PLC0415

        return SparkEngine(scope, master)
    if master is not None:
        raise UsageError("--master is the address of a Spark cluster: give --engine spark with it.")
    from .duckdb_engine import DuckDBEngine  # noqa: PLC0415

    return DuckDBEngine(scope)
