"""Imports files for a test, into a store or only into memory, and reads what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from megascope.collectors.importers.imported import Format, Imported, Report, no_progress
from megascope.collectors.importers.importing import import_run, open_source
from megascope.collectors.importers.kineto.kineto import DEFAULT_DEPTH
from megascope.collectors.importers.recognise import recognise
from megascope.collectors.reading.store import Store
from megascope.collectors.tables.schemas import TABLES


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """A real file, and what has to be known of the run that it becomes.

    ``ranks`` are those recorded. ``stragglers`` and ``hang`` are the verdicts' words, ``accused`` the ranks of each
    finding. ``slowdown`` is what its origin published, None where there is nothing to replay. ``worst`` is the rank
    whose own work costs the most, where that is known.
    """

    path: str
    run: str
    ranks: int
    spans: int
    stragglers: str = "insufficient-evidence"
    accused: list[list[int]] = field(default_factory=list)
    hang: str = "inconclusive"
    slowdown: float | None = None
    worst: int | None = None

    def __str__(self) -> str:
        return self.path


REAL_FILES = [
    ImportedFile("bytedance_whatif/trace-AR.parquet", "AR", 16, 117_216, "findings", [[0]], slowdown=1.973, worst=0),
    ImportedFile("bytedance_whatif/trace-ST.parquet", "ST", 8, 6_784, "findings", [[]], slowdown=1.179),
    ImportedFile("kineto/dlrm_kineto.tar.gz", "dlrm_kineto", 8, 6_417),
    ImportedFile("kineto/linear_kineto.json.gz", "linear_kineto", 1, 18_234),
    ImportedFile("hta/cpu_only", "cpu_only", 1, 14),
    ImportedFile("hta/distributed_info_unavailable", "distributed_info_unavailable", 1, 995),
    ImportedFile("hta/nccl_parser_config", "nccl_parser_config", 1, 7_005),
    ImportedFile("hta/negative_queue_length_values_check", "negative_queue_length_values_check", 1, 17_654),
    ImportedFile("hta/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz", "rank-70.Mar_25_20_48_12.2861", 1, 2),
    ImportedFile("hta/rank_unavailable", "rank_unavailable", 1, 995),
    ImportedFile("hta/trace_filter", "trace_filter", 2, 3_501),
    ImportedFile("megatron/mixtral_8x7b_tp2pp4ep4_h100.json", "mixtral_8x7b_tp2pp4ep4_h100", 1, 4_538),
    ImportedFile("logs/meg_gpt2_perf_n16-1999618.out.gz", "meg_gpt2_perf_n16-1999618", 1, 47, hang="finished"),
    ImportedFile("logs/meg_ds_3d_gpt2_perf_n16.out.gz", "meg_ds_3d_gpt2_perf_n16", 1, 12),
    ImportedFile("superbench/megatron_deepspeed.log", "megatron_deepspeed", 1, 5, hang="finished"),
]
"""Every kind of file that can be imported: nobody made them for these tests."""


def imported(folder: Path, *paths: Path, **options: Any) -> tuple[Report, Store]:
    """The report of an import, and the open store."""
    report = import_run(paths, folder / "imported", **options)
    return report, Store(folder / "imported")


@dataclass(frozen=True, slots=True)
class Taken:
    """What an importer handed over, in memory: its tables, and the view ``spans`` as a store has it."""

    done: Imported
    connection: duckdb.DuckDBPyConnection

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a SELECT."""
        found: list[dict[str, Any]] = self.connection.sql(sql).to_arrow_table().to_pylist()
        return found


class _Memory:
    def __init__(self) -> None:
        self.tables: dict[str, list[pa.Table]] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        """Keep rows in the order and types of the schema, with NULL for what was not given."""
        schema = TABLES[table].schema()
        columns = {
            field.name: rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(len(rows), field.type)
            for field in schema
        }
        axes = {name: rows[name] for name in rows.column_names if name not in columns}
        self.tables.setdefault(table, []).append(pa.table({**columns, **axes}))


def taken(*paths: Path, depth: int = DEFAULT_DEPTH) -> Taken:
    """Let an importer read files without a store."""
    memory = _Memory()
    done = open_source(recognise(paths), paths, None, depth).read(memory, no_progress)
    connection = duckdb.connect()
    for name in ("events", "steps", "ranks", "groups", "segments", "schedule"):
        parts = memory.tables.get(name) or [TABLES[name].schema().empty_table()]
        connection.register(f"{name}_rows", pa.concat_tables(parts).unify_dictionaries())
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {name}_rows")
    connection.execute(
        """CREATE VIEW spans AS SELECT events.*, segments.name AS segment_name, segments.kind, segments.axis
           FROM events JOIN segments USING (segment)"""
    )
    return Taken(done, connection)


def rows(source: Store | Taken, sql: str) -> list[dict[str, Any]]:
    """Rows of a SELECT over the newest run."""
    if isinstance(source, Taken):
        return source.rows(sql)
    found: list[dict[str, Any]] = source.query(sql, attempt=source.attempt()).to_pylist()
    return found


__all__ = ["REAL_FILES", "Format", "ImportedFile", "Taken", "imported", "rows", "taken"]
