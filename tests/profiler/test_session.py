"""The public API: on, off, before and after a process group, under torchrun's environment, and when the job fails."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import megascope
from megascope.profiler import agent_process, session
from megascope.profiler.box.box import BoxReader
from megascope.profiler.box.metadata import read_metadata
from megascope.profiler.identity import identify, next_attempt_in
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import RecorderSettings, open_recorder


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "spool"
    megascope.shutdown()


def box_of(spool: Path) -> BoxReader:
    return BoxReader(next(spool.glob("*/*/rank-*.box")))


def lines_of(spool: Path) -> list[dict[str, Any]]:
    paths = [next(spool.glob(f"*/*/rank-*.{kind}.jsonl")) for kind in ("meta", "steps")]
    return [line for path in paths for _, line in read_metadata(path)]


def test_segments_steps_and_the_decorator_are_recorded(spool: Path) -> None:
    megascope.init(spool=spool, agent=False, run="r", configuration={"lr": 0.1}, automatic="none")

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


@pytest.mark.parametrize(
    ("variable", "text", "run", "attempt"),
    [
        ("MEGASCOPE_RUN", "team/job=1", "team-job-1", 2),
        ("MEGASCOPE_RUN", "..", "run", 2),
        ("TORCHELASTIC_RUN_ID", "team/job", "team-job", 2),
        ("MEGASCOPE_ATTEMPT", "second", "job", 4),
    ],
)
def test_an_environment_that_makes_no_sense_stops_nothing(
    variable: str, text: str, run: str, attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"TORCHELASTIC_RUN_ID": "job", "MEGASCOPE_ATTEMPT": "2", variable: text}
    who = identify(environment=given, next_attempt=lambda run: 4)
    assert (who.run, who.attempt) == (run, attempt)
    assert f"${variable}" in caplog.text


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
    code = (
        "import megascope, megascope.trainer, megascope.collectors.tables.schemas; print(megascope.profiler.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.returncode) == ("megascope.profiler", 0), done.stderr


def test_the_current_recorder_is_off_until_init() -> None:
    assert session.current().enabled is False


def test_a_run_that_is_started_again_gets_the_next_attempt(tmp_path: Path) -> None:
    find = next_attempt_in(tmp_path / "store", tmp_path / "spool")
    assert identify("mine", environment={}, next_attempt=find).attempt == 0
    (tmp_path / "spool" / "mine" / "0").mkdir(parents=True)
    (tmp_path / "store" / "runs" / "run=mine" / "attempt=3").mkdir(parents=True)
    (tmp_path / "store" / "runs" / "run=mine%2E" / "attempt=5").mkdir(parents=True)
    (tmp_path / "store" / "runs" / "run=other" / "attempt=9").mkdir(parents=True)
    assert identify("mine", environment={}, next_attempt=find).attempt == 4
    assert identify("mine", 2, environment={}, next_attempt=find).attempt == 2


INTERRUPTED = """
import megascope, sys
megascope.init(spool=sys.argv[1], agent=False)
megascope.step(0, loss=object())
raise KeyboardInterrupt
"""


def test_an_interrupted_script_is_not_a_crash_and_a_bad_metric_does_no_harm(spool: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(spool)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    lines = {line["kind"]: line for line in lines_of(spool)}
    assert lines["exit"]["reason"] == "interrupted"
    assert "exception" not in lines
    assert "metrics" not in lines
    assert box_of(spool).metadata_lost == 1


def test_an_agent_that_cannot_be_started_does_not_stop_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "file").write_text("not a folder")
    megascope.init(spool=tmp_path / "file" / "spool", store=tmp_path / "store")
    with megascope.segment("forward"):
        pass
    megascope.shutdown()
    assert "The agent cannot be started" in caplog.text


def test_what_had_to_go_to_the_fallback_spool_is_stored_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    blocked = tmp_path / "spool" / "full"
    blocked.parent.mkdir()
    blocked.write_text("not a folder")
    settings = RecorderSettings(run="r", attempt=0, rank=0, world_size=1, spool=blocked)
    recorder = open_recorder(settings)
    agent = agent_process.serve_fallback(recorder, blocked, tmp_path / "store")
    assert agent is not None
    with recorder.span(recorder.segment("forward")):
        pass
    recorder.close()
    assert agent_process.serve_fallback(NullRecorder(), blocked, tmp_path / "store") is None
    deadline = time.monotonic() + 30
    while not list((tmp_path / "store").glob("events/**/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert agent.end(30)
    assert list((tmp_path / "store").glob("events/run=r/**/*.parquet"))


def test_an_agent_that_died_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_process, "CHECK_INTERVAL_NS", 0)
    monkeypatch.setattr(agent_process, "RESTART_INTERVAL_NS", 0)
    agent = agent_process.HostAgent(tmp_path / "spool", tmp_path / "store")
    agent.start()
    first = agent._process
    assert first is not None
    first.kill()
    first.wait(10)
    agent.ensure()
    second = agent._process
    assert second is not None
    assert second.pid != first.pid
    agent.ensure()
    assert agent._process is second
    assert agent.end(30)


@pytest.mark.parametrize("is_new", [False, True])
def test_what_a_dead_agent_left_is_written_at_the_end(tmp_path: Path, is_new: bool) -> None:
    spool, store = tmp_path / "spool", tmp_path / "store"
    agent = agent_process.HostAgent(spool, store)
    assert not agent.revive()  # there was none to die
    agent.start()
    assert agent._process is not None
    if not is_new:  # else the signal to end meets one that does not listen yet
        agent._process.kill()
        agent._process.wait(10)
    agent.ensure()  # too early for another start
    recorder = open_recorder(RecorderSettings(run="r", attempt=0, rank=0, world_size=1, spool=spool))
    with recorder.span(recorder.segment("forward")):
        pass
    recorder.close()
    assert agent.end(30)
    assert list(store.glob("events/run=r/**/*.parquet"))
