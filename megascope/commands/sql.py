"""``megascope sql``: questions in SQL, fenced."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import UsageError
from .common import AttemptNumber, Json, Run, StorePath, open_attempt, print_json, print_report, report_damage


def sql(
    store: StorePath,
    query: Annotated[str, Parameter(help="One SELECT statement over the tables of the store.")],
    /,
    *,
    run: Run = None,
    attempt: AttemptNumber = None,
    json: Json = False,
    as_csv: Annotated[bool, Parameter(name="--csv", negative="", help="Print comma-separated values.")] = False,
    limit: Annotated[int, Parameter(help="Most rows to print.", validator=Number(gte=1))] = 10_000,
) -> int:
    """Ask a store in SQL (DuckDB's). It may read the store's tables and nothing else.

    Without --run the tables hold all runs of the store.

    Example: megascope sql runs/demo/store "select rank, avg(duration_ns) from spans where segment_name = 'forward' group by rank"
    """  # noqa: E501  (an example is one line, to be pasted)
    from ..collectors.reading.sql import SqlLimits, run_sql  # noqa: PLC0415

    if json and as_csv:
        raise UsageError("--json and --csv exclude each other: give one of them.")
    opened, chosen = open_attempt(store, run, attempt)
    whole = run is None and attempt is None
    result = run_sql(opened, query, attempt=None if whole else chosen, limits=SqlLimits(rows=limit))
    names, rows = result.table.column_names, list(zip(*(c.to_pylist() for c in result.table.columns), strict=True))
    if json:
        print_json({"columns": names, "rows": rows, "truncated": result.truncated})
    elif as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(rows)
    else:
        print_report(_table(names, rows))
    if result.truncated:
        sys.stderr.write(f"megascope: only the first {limit} rows are shown; raise --limit for more.\n")
    report_damage(opened)
    return 0


def _table(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> object:
    from rich.table import Column, Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*(Column(Text(name)) for name in names))
    for row in rows:
        table.add_row(*(Text("NULL" if value is None else str(value)) for value in row))
    return table
