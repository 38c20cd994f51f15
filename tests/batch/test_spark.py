"""A real cluster answers as DuckDB does, row by row; and what is said where there is none."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megascope.batch.duckdb_engine import DuckDBEngine
from megascope.batch.scope import Scope, find_scope
from megascope.batch.spark_engine import SparkEngine, _said
from megascope.cli import main
from megascope.collectors.reading.store import Store
from megascope.collectors.storage.address import store_path
from megascope.collectors.verdicts import to_json
from megascope.profiler.errors import UsageError
from support.spark_answers import answers
from support.spark_cluster import environment, spark_cluster

TESTS = Path(__file__).parents[1]


def same(ours: Any, theirs: Any) -> None:
    """Equal, but for the last digits of numbers with a fraction."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - {"saved_to"}:
            same(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(ours, float):
        assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-12)
    else:
        assert ours == theirs


@pytest.mark.alone
@pytest.mark.timeout(280)
def test_a_cluster_answers_as_duckdb_does(root: Path, tmp_path: Path) -> None:
    scope = find_scope(Store(root), None, None, None)
    engine = DuckDBEngine(scope)
    (tmp_path / "duckdb").mkdir()
    ours = json.loads(json.dumps(to_json(answers(scope, engine, tmp_path / "duckdb"))))
    engine.close()
    with spark_cluster(tmp_path) as address:
        env = {**environment(tmp_path), "PYTHONPATH": str(TESTS)}
        (tmp_path / "spark").mkdir()
        driver = subprocess.run(
            [sys.executable, "-m", "support.spark_answers", str(root), address, str(tmp_path / "spark")],
            env=env, capture_output=True, timeout=240, check=False,
        )  # fmt: skip
    assert driver.returncode == 0, driver.stderr.decode()[-3000:]
    theirs = json.loads(driver.stdout)
    assert len(ours["worst"]) > 100
    assert len(ours["whatif"]["stretches"]) == 3
    same(ours, theirs)
    made, also = (_sorted(pq.read_table(tmp_path / name / "rollups")) for name in ("duckdb", "spark"))
    assert made.num_rows > 1000
    assert made.to_pylist() == also.to_pylist()
    same(*(pq.read_table(tmp_path / name / "align").to_pylist() for name in ("duckdb", "spark")))


def _sorted(rows: pa.Table) -> pa.Table:
    keys = ("attempt", "rank", "segment", "window_steps", "first_step")
    return rows.sort_by([(name, "ascending") for name in keys])


def refused(capsys: pytest.CaptureFixture[str], root: Path, *argv: str) -> str:
    assert main(["batch", "worst", str(root), "--engine", "spark", *argv]) in {1, 2}
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("An error occurred while calling o37.parquet.\n: java.io.IOException: no\n\tat x", "java.io.IOException: no"),
        ("Traceback (most recent call last):\n  File x\nValueError: no\n\nJVM stacktrace:\nat y", "ValueError: no"),
        ("[OUT_OF] memory\nmore", "[OUT_OF] memory"),
        ("", "without a word"),
    ],
)
def test_what_spark_says_becomes_its_telling_line(text: str, said: str) -> None:
    assert _said(text) == said


def test_a_store_that_workers_cannot_read_is_refused_before_anything_is_started() -> None:
    scope = Scope(Store.__new__(Store), (), (), ())
    scope.store.root = store_path("memory://bucket/store")
    with pytest.raises(UsageError, match="memory://bucket/store is in an object store: leave --engine spark out"):
        SparkEngine(scope)


def test_what_is_missing_is_said(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        nobody = f"spark://127.0.0.1:{listener.getsockname()[1]}"
        assert "No Spark master answers" in refused(capsys, root, "--master", nobody)
    assert "is no address of a Spark master" in refused(capsys, root, "--master", "spark://here")
    with monkeypatch.context() as context:
        context.setattr(shutil, "which", lambda name: None)
        context.delenv("JAVA_HOME", raising=False)
        assert "needs Java 17" in refused(capsys, root)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert "pip install 'megascope[spark]'" in refused(capsys, root)
