"""The public API: on, off, before and after a process group, under torchrun's environment, and when the job fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from megascope.profiler import session
from megascope.profiler.box import BoxReader
from megascope.profiler.identity import identify
from megascope.profiler.metadata import read_metadata
from megascope.profiler.null import NullRecorder

import megascope


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "spool"
    megascope.shutdown()


def box_of(spool: Path) -> BoxReader:
    return BoxReader(next(spool.glob("*/*/rank-*.box")))


def lines_of(spool: Path) -> list[dict[str, Any]]:
    return [line for _, line in read_metadata(next(spool.glob("*/*/rank-*.meta.jsonl")))]


def test_segments_steps_and_the_decorator_are_recorded(spool: Path) -> None:
    megascope.init(spool=spool, agent=False, run="r", configuration={"lr": 0.1})

    @megascope.timed(kind="data")
    def load() -> int:
        return 5

    megascope.step(0)
    with megascope.segment("forward", microbatch=2, chunk=1):
        assert load() == 5
    span = megascope.begin("backward", microbatch=3)
    megascope.end(span)
    megascope.step(1, loss=2.5)
    megascope.shutdown()
    records = box_of(spool).read_ring(0, 0).records
    names = {line["index"]: line["name"] for line in lines_of(spool) if line["kind"] == "segment"}
    shown = [(names[r["segment"]].split(".")[-1], int(r["step"])) for r in records]
    assert shown == [("load", 0), ("forward", 0), ("backward", 0)]
    assert records["microbatch"].tolist()[1:] == [2, 3]
    kinds = {line["kind"] for line in lines_of(spool)}
    assert {"header", "topology", "configuration", "segment", "step", "metrics", "exit"} <= kinds
    assert box_of(spool).closed


def test_a_second_init_returns_the_recorder_that_is_there(spool: Path) -> None:
    first = megascope.init(spool=spool, agent=False)
    assert megascope.init(spool=spool, agent=False) is first
    assert len(list(spool.glob("*/*/*.box"))) == 1


@pytest.mark.parametrize("off", ["argument", "environment"])
def test_off_is_a_no_op(spool: Path, off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if off == "environment":
        monkeypatch.setenv("MEGASCOPE_OFF", "1")
    recorder = megascope.init(spool=spool, agent=False, enabled=False if off == "argument" else None)
    assert isinstance(recorder, NullRecorder)
    megascope.step(0, loss=1.0)
    with megascope.segment("forward"):
        megascope.end(megascope.begin("x"))
    assert not spool.exists()


def test_an_unknown_kind_is_refused(spool: Path) -> None:
    megascope.init(spool=spool, agent=False)
    with pytest.raises(ValueError, match="not a valid SegmentKind"), megascope.segment("x", kind="nonsense"):
        pass


def test_a_topology_of_another_size_is_said_and_not_recorded(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    megascope.init(spool=spool, agent=False, topology={"tp": 2})
    assert "has 2 ranks, but the job has 1" in caplog.text
    assert all(line["kind"] != "topology" for line in lines_of(spool))


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".", "x" * 300, "a=b"])
def test_a_run_name_that_is_a_path_is_refused(spool: Path, name: str) -> None:
    if not name:
        from megascope.profiler.opening import attempt_folder

        with pytest.raises(megascope.UsageError):
            attempt_folder(spool, name, 0)
    else:
        with pytest.raises(megascope.UsageError, match="cannot be used"):
            megascope.init(spool=spool, agent=False, run=name)


def test_identity_comes_from_the_launcher() -> None:
    torchrun = {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "TORCHELASTIC_RUN_ID": "job-17",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    who = identify(environment=torchrun)
    assert (who.run, who.attempt, who.rank, who.world_size, who.local_rank) == ("job-17", 2, 3, 8, 1)
    own = {**torchrun, "MEGASCOPE_RUN": "mine", "MEGASCOPE_ATTEMPT": "5"}
    assert (identify(environment=own).run, identify(environment=own).attempt) == ("mine", 5)
    assert identify("given", 7, own).run == "given"


def test_ranks_of_one_launcher_agree_on_a_run_without_being_told() -> None:
    environments = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    assert len({identify(environment=environment).run for environment in environments}) == 1


FAILING = """
import megascope, sys
megascope.init(spool=sys.argv[1], agent=False)
megascope.step(0)
with megascope.segment("forward"):
    raise ValueError("bad batch")
"""


def test_an_exception_is_recorded_with_its_text(spool: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(spool)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "ValueError: bad batch" in done.stderr
    lines = {line["kind"]: line for line in lines_of(spool)}
    assert (lines["exception"]["type"], lines["exception"]["message"]) == ("ValueError", "bad batch")
    assert lines["exit"]["reason"] == "exception"


def test_importing_megascope_loads_only_the_profiler() -> None:
    code = (
        "import sys, megascope; heavy = {'torch', 'dash', 'plotly', 'duckdb', 'pyarrow', 'rich', 'cyclopts'};"
        "print(sorted(heavy & set(sys.modules)), sorted(m for m in sys.modules if m.startswith('megascope.')"
        " and not m.startswith('megascope.profiler')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[] []"


def test_decoys_in_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    for decoy in ("trainer/__init__.py", "profiler.py", "collectors.py"):
        (tmp_path / decoy).write_text("raise SystemExit('a decoy was imported')")
    code = "import megascope, megascope.trainer, megascope.collectors.schemas; print(megascope.profiler.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.returncode) == ("megascope.profiler", 0), done.stderr


def test_the_current_recorder_is_off_until_init() -> None:
    assert session.current().enabled is False
    assert os.name == "posix"
