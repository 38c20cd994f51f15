"""What-if on the published traces of two production jobs: the ratios beside the published ones, and what they cost.

    python -m benchmarks.whatif [--traces FOLDER] [--repeats N]

``seconds`` is the shortest of N runs from the trace's file to all ratios and contributions, in memory, with the
importer that `megascope import` uses, ``cpu_seconds`` the least processor time of them; ``import_seconds`` and
``store_seconds`` are the way through a store: writing it, and the ratios from it, the best of N runs.
``ratio_to_origin`` is the time that the origin's own analyser took for the ratios (12.6 s and 5.0 s on a machine with
two shared cores) over ``seconds``, of either way.
Without traces in the folder the object holds none.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.machine import report
from megascope.collectors.importers.bytedance.bytedance import ByteDanceTrace
from megascope.collectors.importers.imported import no_progress
from megascope.collectors.importers.importing import import_run
from megascope.collectors.reading.store import Attempt, Store
from megascope.heatmap.matrix import load_placement
from megascope.heatmap.peers import Placement
from megascope.heatmap.whatif.finding import find_whatif
from megascope.heatmap.whatif.result import WhatIf

FOLDER = Path(__file__).parents[2] / "shared/traces/bytedance_whatif"
ORIGIN_SECONDS = {"AR": 12.6, "ST": 5.0}


class MemoryTables:
    """The rows of an importer, answering the same SELECTs as a store with one attempt."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._tables: dict[str, pa.Table] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        """Take the rows of a table; columns that the importer leaves out are NULL."""
        for name in {"events": ("parent", "self_ns", "group")}.get(table, ()):
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
        self._tables[table] = rows
        self._connection.register(table, rows)

    def query(self, sql: str, parameters: Sequence[object] = (), attempt: Attempt | None = None) -> pa.Table:
        """Run one SELECT."""
        return self._connection.sql(sql, params=list(parameters) or None).to_arrow_table()

    def placement(self, axes: Sequence[str]) -> Placement:
        """Where the ranks stand."""
        return Placement.from_table(self._tables["ranks"], axes)


def in_memory(trace: Path) -> WhatIf:
    """From the file to the ratios."""
    tables = MemoryTables()
    imported = ByteDanceTrace(trace).read(tables, no_progress)
    attempt = Attempt("trace", 0, imported.layout, imported.world_size)
    return find_whatif(tables, attempt, tables.placement(list(imported.layout)), _steps(tables))


def through_store(trace: Path, folder: Path) -> tuple[WhatIf, float, float]:
    """The same through a store, with the seconds for writing it and for the ratios from it."""
    began = time.perf_counter()
    import_run([trace], folder)
    written = time.perf_counter()
    with Store(folder) as store:
        attempt = store.attempt()
        found = find_whatif(store, attempt, load_placement(store, attempt), _steps(store, attempt))
    return found, written - began, time.perf_counter() - written


def _steps(tables: MemoryTables | Store, attempt: Attempt | None = None) -> Any:
    sql = "SELECT DISTINCT step FROM events WHERE step IS NOT NULL ORDER BY 1"
    return tables.query(sql, attempt=attempt)["step"].to_numpy()


def measure(trace: Path, repeats: int) -> dict[str, Any]:
    """All figures of one trace."""
    seconds, cpu_seconds = [], []
    for _ in range(repeats):
        began, busy = time.perf_counter(), time.process_time()
        found = in_memory(trace)
        seconds.append(time.perf_counter() - began)
        cpu_seconds.append(time.process_time() - busy)
    with tempfile.TemporaryDirectory() as folder:
        ways = [through_store(trace, Path(folder) / f"store{number}") for number in range(repeats)]
    stored, import_seconds, store_seconds = min(ways, key=lambda way: way[1] + way[2])
    name = trace.stem.removeprefix("trace-")
    origin_seconds = ORIGIN_SECONDS.get(name)
    return {
        "slowdown": round(found.slowdown, 6),
        "m_w": _rounded(found.m_w),
        "m_s": _rounded(found.m_s),
        "published": _published(trace.parent, name),
        "steps": found.step_count,
        "seconds": round(min(seconds), 3),
        "cpu_seconds": round(min(cpu_seconds), 3),
        "origin_seconds": origin_seconds,
        "ratio_to_origin": None if origin_seconds is None else round(origin_seconds / min(seconds), 1),
        "through_store": {
            "slowdown": round(stored.slowdown, 6),
            "import_seconds": round(import_seconds, 3),
            "store_seconds": round(store_seconds, 3),
            "seconds": round(import_seconds + store_seconds, 3),
            "ratio_to_origin": None
            if origin_seconds is None
            else round(origin_seconds / (import_seconds + store_seconds), 1),
        },
        "costliest": [
            {"part": str(one.part), "name": one.name, "recovered": round(one.recovered, 4)}
            for one in sorted(found.contributions, key=lambda one: -one.recovered)[:4]
        ],
    }


def _published(folder: Path, name: str) -> dict[str, float]:
    """What the origin's analyser found, where its output lies beside the trace."""
    sources = {
        "slowdown": (f"result-{name}.json", "blocking_slowdown"),
        "m_w": (f"mw-{name}.json", "Mw"),
        "m_s": (f"ms-{name}.json", "Ms"),
    }
    return {
        key: round(float(json.loads((folder / file).read_text())[value]), 6)
        for key, (file, value) in sources.items()
        if (folder / file).exists()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def main() -> None:
    """Measure every trace of the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=FOLDER)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    traces = sorted(arguments.traces.glob("trace-*.parquet"))
    found = {trace.stem.removeprefix("trace-"): measure(trace, arguments.repeats) for trace in traces}
    report("whatif", {"traces": found})


if __name__ == "__main__":
    main()
