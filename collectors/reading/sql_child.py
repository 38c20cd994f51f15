"""The process in which one query of a user runs, so that it can be ended at any moment, whatever it does.

Run as a file by `sql`, which sends a `Job` as a pickle on stdin: it imports nothing of megascope, to start fast, but
for the way into an object store. A line on stdout tells that the query begins; then comes its result as an Arrow
stream, or one JSON object on stderr.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
from typing import Any, TypedDict

import duckdb
import pyarrow as pa

READY = b"ready\n"
_STACK_BYTES = 8 * 2**20
_SPARE_BYTES = 256 * 2**20


class Job(TypedDict):
    """What to run: statements that make the views and the fence, then the query, and what it may use."""

    settings: dict[str, Any]
    object_store: str | None
    statements: list[str]
    sql: str
    parameters: list[object]
    batch_rows: int
    memory_bytes: int
    seconds: float


def main() -> int:
    """Run the job; the exit code."""
    try:
        _run(pickle.load(sys.stdin.buffer))
    except BrokenPipeError:  # there are enough rows, and nobody reads on
        return 0
    except MemoryError:
        return _fail(duckdb.OutOfMemoryException("the process has no more memory"))
    except Exception as error:
        return _fail(error)
    return 0


def _run(job: Job) -> None:
    connection = duckdb.connect(":memory:", config=job["settings"])
    if job["object_store"] is not None:
        from megascope.collectors.storage.address import store_path  # noqa: PLC0415
        from megascope.collectors.storage.object_files import register  # noqa: PLC0415

        register(connection, store_path(job["object_store"]))
    for statement in job["statements"]:
        connection.execute(statement)
    _limit(job)
    out = sys.stdout.buffer
    out.write(READY)
    out.flush()
    reader = connection.sql(job["sql"], params=job["parameters"] or None).to_arrow_reader(job["batch_rows"])
    with pa.ipc.new_stream(out, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def _limit(job: Job) -> None:
    """Backstops for what DuckDB's own limit does not count, and for a parent that is gone."""
    cores = os.cpu_count() or 1
    seconds = round(job["seconds"] * cores) + 10
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with open("/proc/self/statm") as file:  # noqa: PTH123  (one import less)
        data_bytes = int(file.read().split()[5]) * resource.getpagesize()
    most = data_bytes + cores * _STACK_BYTES + _SPARE_BYTES + 2 * job["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _fail(error: Exception) -> int:
    json.dump({"kind": type(error).__name__, "message": str(error)}, sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
