"""Writes tables on a thread of its own, which encodes while the simulation goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from ...collectors.tables.schemas import block_name
from ...collectors.writing.writer import TableWriter
from .job import SimulatedJob
from .tables import Rows


class Background:
    """A queue in front of a `TableWriter`, which is that thread's alone until `finish`: it uses a second core."""

    def __init__(self, writer: TableWriter, job: SimulatedJob) -> None:
        self._writer, self._job = writer, job
        self._queue: queue.Queue[tuple[str, Rows, int, Sequence[str]] | None] = queue.Queue(maxsize=4)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="simulator-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def write(self, table: str, rows: Rows, *, rank: int = 0, axes: Sequence[str] = ()) -> None:
        """Stage rows that belong to the block of a rank. Raises what an earlier write raised."""
        if self._failure is not None:
            raise self._failure
        self._queue.put((table, rows, rank, axes))

    def finish(self) -> None:
        """Wait until all is staged. Raises what a write raised."""
        self._end()
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            table, rows, rank, axes = entry
            if self._failure is None:
                try:
                    self._writer.write(table, self._job.run, self._job.attempt, rows, block=block_name(rank), axes=axes)
                except BaseException as error:  # the simulating thread raises it at its next write
                    self._failure = error
