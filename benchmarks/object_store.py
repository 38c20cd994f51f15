"""What a store in an object store costs beside one on a disk: writing, opening, reading, compacting, in one run.

The same spans of 512 ranks go to a folder and to ``s3://``: to the server that ``$AWS_ENDPOINT_URL`` names (with
``--bucket``), else to moto's on this machine, which is a process beside this one and answers in milliseconds. Each time
is the best of several, in milliseconds; ``requests`` are those that the store made for it, so that what a farther
server costs can be told: most of them wait for one another. ``again`` reads what is in memory by then.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from megascope.collectors.reading.store import Store
from megascope.collectors.storage import object_files
from megascope.collectors.storage.address import store_path
from megascope.collectors.storage.object_path import ObjectPath
from megascope.collectors.storage.remote import remote_of
from megascope.collectors.upkeep.compaction import compact
from megascope.collectors.writing.writer import TableWriter

from .machine import report

T = TypeVar("T")

RANKS, WRITERS, SPANS_A_STEP = 512, 8, 40
REPEATS = 3
QUERIES = {
    "count": "SELECT count(*) FROM events",
    "mean_by_rank_and_segment": "SELECT rank, segment, avg(duration_ns) FROM events GROUP BY ALL",
    "one_rank": "SELECT * FROM events WHERE rank = 77 ORDER BY start_ns",
    "one_step": "SELECT rank, segment, start_ns, duration_ns FROM events WHERE step = 3",
}


def spans(writer: int, step: int) -> pa.Table:
    """One step of the ranks of one writer."""
    ranks = np.arange(writer * RANKS // WRITERS, (writer + 1) * RANKS // WRITERS)
    rng = np.random.default_rng(1000 * writer + step)
    count = len(ranks) * SPANS_A_STEP
    durations = rng.integers(10_000, 9_000_000, count)
    return pa.table(
        {
            "rank": pa.array(np.repeat(ranks, SPANS_A_STEP), pa.int32()),
            "step": pa.array(np.full(count, step), pa.int64()),
            "segment": pa.array(np.tile(np.arange(SPANS_A_STEP) % 16, len(ranks)), pa.int64()),
            "start_ns": pa.array(1_790_000_000_000_000_000 + step * 10**9 + np.cumsum(durations) // len(ranks)),
            "duration_ns": pa.array(durations),
            "self_ns": pa.array(durations // 2),
            "clock": pa.array(["device"] * count),
            "status": pa.array(["ok"] * count),
        }
    )


class Side:
    """One of the two stores, and what was measured of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.found: dict[str, Any] = {}
        self.requests: dict[str, int] = {}

    def timed(self, name: str, call: Callable[[], T], repeats: int = REPEATS) -> T:
        """Note the best time of a call under a name, and the requests of the first."""
        times, result = [], None
        for number in range(repeats):
            before = self._requests()
            began = time.perf_counter()
            result = call()
            times.append(time.perf_counter() - began)
            if number == 0:
                self.requests[name] = self._requests() - before
        self.found[f"{name}_ms"] = round(min(times) * 1e3, 2)
        assert result is not None
        return result

    def _requests(self) -> int:
        return remote_of("s3").requests if isinstance(self.root, ObjectPath) else 0

    def forget(self) -> None:
        """Drop what readers keep in memory of an object store."""
        object_files._caches.clear()

    def as_json(self) -> dict[str, Any]:
        """Times, and requests where there are any."""
        return self.found | ({"requests": self.requests} if isinstance(self.root, ObjectPath) else {})


def measure(side: Side, steps: int) -> int:
    """Write, read, compact, and read again; the rows."""
    written = [spans(writer, step) for step in range(steps) for writer in range(WRITERS)]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(TableWriter(side.root, f"agent-{number}")) for number in range(WRITERS)]
        commits = iter(written)

        def commit() -> int:
            for writer in writers:
                writer.write("events", "run", 0, next(commits))
                number = writer.commit({})
            return number

        for _ in range(steps - REPEATS):
            commit()
        side.timed("commit_of_8_writers", commit)
    rows = read(side, "")
    done = side.timed("compact", lambda: compact(side.root, quiet_s=-3600.0), repeats=1)
    side.found |= {"files_before": done.files_before, "files_after": done.files_after, "problems": done.problems}
    assert read(side, "_compacted") == rows
    return rows


def read(side: Side, when: str) -> int:
    """Open the store and ask the queries; the rows of `events`."""

    def opened() -> int:
        with Store(side.root) as store:
            return len(store.entries("events"))

    side.timed(f"open{when}", opened)
    for name, sql in QUERIES.items():

        def fresh(sql: str = sql) -> pa.Table:
            side.forget()
            with Store(side.root) as store:
                return store.query(sql)

        side.timed(f"{name}{when}", fresh)
    with Store(side.root) as store:
        for name, sql in QUERIES.items():
            store.query(sql)
            side.timed(f"{name}_again{when}", lambda sql=sql: store.query(sql))  # type: ignore[misc]
        return int(store.query(QUERIES["count"]).column(0)[0].as_py())


@contextlib.contextmanager
def server(bucket: str) -> Iterator[str]:
    """The server to use, which has the bucket; what it is."""
    if "AWS_ENDPOINT_URL" in os.environ:
        yield os.environ["AWS_ENDPOINT_URL"]
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 0.2).close()
                    break
                time.sleep(0.1)
            remote_of("s3").filesystem.mkdir(bucket)
            yield "moto on this machine"
        finally:
            child.kill()


def main() -> None:
    """Measure both and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="steps of 512 ranks x 40 spans")
    parser.add_argument("--bucket", default="megascope-benchmark")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="megascope-object-store-"))
    try:
        with server(chosen.bucket) as where:
            place = store_path(f"s3://{chosen.bucket}/{uuid.uuid4().hex}")
            sides = {"local": Side(folder / "store"), "s3": Side(place)}
            rows = {name: measure(side, chosen.steps) for name, side in sides.items()}
            assert rows["local"] == rows["s3"] == chosen.steps * RANKS * SPANS_A_STEP
            if isinstance(place, ObjectPath):
                place.remove_all()
    finally:
        shutil.rmtree(folder)
    results = {name: side.as_json() for name, side in sides.items()}
    report("object_store", {"server": where, "spans": rows["s3"], **results})


if __name__ == "__main__":
    main()
