"""Spark over the same files: a cluster's address, or this machine's cores as a small one."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..collectors.storage.object_path import ObjectPath
from ..collectors.tables.schemas import TABLES
from ..profiler.errors import MegascopeError, UsageError
from .dialects import Dialect, translate
from .engines import Piece, Question
from .folders import new_folder
from .scope import Scope

CONNECT_S = 10.0


class SparkEngine:
    """Answers by Spark. Every worker must see the store at the same path, and have this megascope for `each_piece`.

    Memory, cores and partitions are those of the cluster's own ``spark-defaults.conf``.
    """

    def __init__(self, scope: Scope, master: str | None = None) -> None:
        if isinstance(scope.store.root, ObjectPath):
            raise UsageError(
                f"Spark reads stores in folders, and {scope.store.root} is in an object store: leave --engine spark "
                "out (DuckDB reads it), or copy it to a file system that all workers see, as with `aws s3 sync`."
            )
        self._session = _start(master)
        paths = [str(path) for one in scope.attempts for path in scope.store.files("events", one)]
        # Every worker tells times and texts alike: the schema is given, and files of older versions lack columns.
        with _one_sentence():
            events = self._session.read.schema(_schema(self._session)).parquet(*paths)
            events.createOrReplaceTempView("events")

    def ask(self, question: Question) -> pa.Table:
        """The answer, in the driver's memory."""
        with _one_sentence():
            return self._frame(question).toArrow()

    def save(self, question: Question, folder: Path) -> int:
        """The workers write the answer, into a folder that they all see."""
        with _one_sentence(), new_folder(folder) as growing:
            self._frame(question).write.mode("overwrite").option("compression", "zstd").parquet(growing.as_uri())
            return int(self._session.read.parquet(growing.as_uri()).count())

    def each_piece(self, question: Question, pieces: Mapping[int, str], work: Piece, answer: pa.Schema) -> pa.Table:
        """The pieces are worked on wherever there is a worker."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

        def on_a_worker(piece: pa.Table) -> pa.Table:  # Spark counts the arguments of functions alone rightly
            return work(piece)

        with _one_sentence():
            grouped = self._frame(question).groupBy("piece")
            return grouped.applyInArrow(on_a_worker, from_arrow_schema(answer)).toArrow().cast(answer)

    def close(self) -> None:
        """End the session; a cluster goes on."""
        self._session.stop()

    def _frame(self, question: Question) -> Any:
        for name, table in question.small.items():
            self._session.createDataFrame(table).createOrReplaceTempView(name)
        return self._session.sql(translate(question.sql, Dialect.SPARK))


def _start(master: str | None) -> Any:
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError:
        raise MegascopeError(
            "--engine spark needs pyspark, which is not installed: pip install 'megascope[spark]'."
        ) from None
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise MegascopeError("Spark needs Java 17 or newer, and there is none: install a JRE, or set JAVA_HOME to one.")
    if master is not None:
        _reach(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("megascope batch").master(master or "local[*]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _one_sentence():
        return builder.getOrCreate()


def _reach(master: str) -> None:
    """Spark itself tries for minutes before it gives up."""
    if not master.startswith("spark://"):
        return
    hosts = master.removeprefix("spark://").split(",")
    for each in hosts:
        host, _, port = each.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--master {master} is no address of a Spark master: give spark://HOST:PORT.")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), CONNECT_S):
            return
    raise MegascopeError(f"No Spark master answers at {master}: check the address, and whether it runs.")


def _schema(session: Any) -> Any:
    """The columns of ``events`` as Spark's, texts as texts."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    fields = [
        pa.field(field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        for field in TABLES["events"].schema()
    ]
    return from_arrow_schema(pa.schema(fields))


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """What Spark says on many pages, in one sentence."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if "FileNotFound" in text or "does not exist" in text or "PATH_NOT_FOUND" in text:
            raise MegascopeError(
                "A worker of Spark does not find the store's files: put the store where all workers see it at the same "
                "path, and ask again (a file may also have been replaced meanwhile)."
            ) from error
        if "No module named 'megascope" in text:
            raise MegascopeError("A worker of Spark has no megascope: install it in the workers' Python.") from error
        raise MegascopeError(f"Spark gave up: {_said(text)}") from error


def _said(text: str) -> str:
    """The telling line of what Spark says: of an error in a worker's Python the last line of its traceback, of one in
    Java the exception."""
    lines = [line.strip() for line in text.split("JVM stacktrace:", maxsplit=1)[0].splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return lines[1].lstrip(": ")
    return lines[0] if lines else "without a word"
