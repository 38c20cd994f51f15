"""A run is imported as a whole or not at all: beside other imports, and whenever the process is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from megascope.collectors.importers.imported import Imported
from megascope.collectors.importers.importing import import_run
from megascope.collectors.importers.intake import Intake, intake
from megascope.collectors.reading.store import Store
from megascope.profiler.errors import UsageError
from support.chrome import kernel, marker, write_trace

DRIVER = """
import sys, time
from megascope.cli import main
from megascope.collectors.importers import intake
from megascope.collectors.writing.writer import TableWriter

def paused(owner, name):
    before = getattr(owner, name)
    def wait(*given, **more):
        print("here", flush=True)
        time.sleep(1.5)
        return before(*given, **more)
    setattr(owner, name, wait)

paused({"finish": intake.Intake, "commit": TableWriter, "_align": intake.Intake}[sys.argv[1]], sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""
"""Runs the command line with a pause before a step of the import."""


GROUP: dict[str, Any] = {"Process Group Ranks": "[0, 1]", "Group size": 2}


def ranks(rank: int) -> pa.Table:
    return pa.table({"rank": pa.array([rank], pa.int32()), "host": [f"host-of-rank-{rank}"]})


def fill(rows: Intake, rank: int = 0) -> None:
    rows.add("ranks", ranks(rank))


def fail(root: Path) -> None:
    with intake(root, "bad") as bad:
        fill(bad)
        raise RuntimeError("broken")


def runs(root: Path) -> list[str]:
    with Store(root) as store:
        return sorted(one.run for one in store.attempts())


def trace(folder: Path) -> Path:
    for rank in (0, 1):
        events = [marker(0, 0, 500), *(kernel("ncclDevKernel_AllReduce", 100 * i, 9, **GROUP) for i in range(5))]
        write_trace(folder / f"rank{rank}.json", events, rank=rank, world_size=2)
    return folder


def test_an_import_that_fails_leaves_others_alone(tmp_path: Path) -> None:
    root = tmp_path / "made" / "store"
    with intake(root, "good") as good:
        fill(good)
        with pytest.raises(RuntimeError, match="broken"):
            fail(root)
        fill(good, 1)
        good.finish(Imported({}, 2))
    assert runs(root) == ["good"]
    with Store(root) as store:
        assert store.query("SELECT count(*) AS n FROM ranks", attempt=store.attempt("good")).to_pylist() == [{"n": 2}]
    assert not list(root.glob("*/run=bad"))


def test_an_import_that_fails_leaves_nothing_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        fail(tmp_path / "made" / "below" / "store")
    assert list(tmp_path.iterdir()) == []
    root = tmp_path / "there"
    root.mkdir()
    (root / "notes.txt").write_text("mine")
    with pytest.raises(RuntimeError, match="broken"):
        fail(root)
    assert {path.name for path in root.iterdir()} >= {"notes.txt"}
    assert not [path for path in root.rglob("*") if path.is_dir()]


def test_of_two_imports_of_one_run_the_second_is_refused(tmp_path: Path) -> None:
    with intake(tmp_path / "store", "one") as first:
        fill(first)
        with pytest.raises(UsageError, match=r"is being imported into .* by another process"):
            import_run([trace(tmp_path / "traces")], tmp_path / "store", run="one")
        first.finish(Imported({}, 1))
    assert runs(tmp_path / "store") == ["one"]
    with pytest.raises(UsageError, match="has a run 'one' already"):
        import_run([tmp_path / "traces"], tmp_path / "store", run="one")


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("at", "number", "said"),
    [
        ("finish", signal.SIGINT, "Stopped: nothing was imported."),
        ("_align", signal.SIGTERM, "Stopped: nothing was imported."),
        ("commit", signal.SIGINT, "Stopped when the import was done: run 'job' is in"),
        ("commit", signal.SIGKILL, None),
    ],
)
def test_a_stopped_import_leaves_a_whole_run_or_none(
    tmp_path: Path, at: str, number: signal.Signals, said: str | None
) -> None:
    traces, store = trace(tmp_path / "traces"), tmp_path / "below" / "store"
    command = [sys.executable, "-c", DRIVER, at, "import", str(traces), "--to", str(store), "--run", "job"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "here\n"
            child.send_signal(number)
            _, err = child.communicate(timeout=60)
        finally:
            child.kill()
    is_done = said is not None and "done" in said
    if said is not None:
        assert child.returncode == 130
        assert said in err
        assert err.count("\n") == 1
        assert store.parent.exists() == is_done
    if not is_done:
        import_run([traces], store, run="job")
    assert runs(store) == ["job"]
    listed = {path.name for path in store.rglob("*.parquet")}
    with Store(store) as opened:
        known = {path.name for table in ("ranks", "events", "steps", "runs", "rank_windows", "heartbeats", "segments",
                 "groups", "clock_offsets") for path in opened.files(table, opened.attempt("job"))}  # fmt: skip
    assert listed == known
    assert not list(store.rglob("*.tmp"))
