"""Where there is little room for a black box, or none: it shrinks, moves, or training goes on without it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from megascope.profiler.box.box import BoxLayout, BoxReader
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from support.recording import Recorded, settings


def test_a_full_spool_shrinks_the_box_and_then_moves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = os.posix_fallocate, []

    def fallocate(fd: int, offset: int, size: int) -> None:
        sizes.append(size)
        if size > 600_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    recorder = open_recorder(settings(tmp_path))
    assert isinstance(recorder, Recorder)
    assert recorder.layout.ring_records == 512
    assert len(sizes) == 2
    recorder.close()


def test_a_box_takes_only_its_share_of_a_small_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB, as containers have it, for eight ranks: half stays free for collectives and data loaders."""
    room = os.statvfs_result((4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    recorder = open_recorder(settings(tmp_path, layout=BoxLayout(), local_world_size=8))
    assert isinstance(recorder, Recorder)
    assert recorder.layout.total_bytes <= 4 * 2**20
    assert recorder.layout.ring_records == 1024
    recorder.close()


def test_without_any_space_training_goes_on_unrecorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    recorder = open_recorder(settings(tmp_path))
    assert isinstance(recorder, NullRecorder)
    assert "Rank 0 is not recorded" in caplog.text
    with recorder.span(recorder.segment("work")):
        pass


def test_a_spool_that_cannot_be_made_falls_back_to_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    recorder = open_recorder(settings(blocker / "spool"))
    assert isinstance(recorder, Recorder)
    assert next(tmp_path.glob("megascope-*/spool-fallback/run/0/rank-00000.box"))
    recorder.close()


def test_metadata_that_cannot_be_written_is_counted_once_warned(
    recorded: Recorded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        recorded.recorder.step(0)
        recorded.recorder.step(1)
        recorded.recorder.step(2)
    assert recorded.recorder.metadata_lost == 2
    assert caplog.text.count("training goes on") == 1


def test_two_processes_that_claim_one_rank_get_a_box_each(tmp_path: Path) -> None:
    recorders = [open_recorder(settings(tmp_path)) for _ in range(2)]
    assert sorted(path.name for path in tmp_path.glob("run/0/*.box")) == ["rank-00000.1.box", "rank-00000.box"]
    for recorder in recorders:
        recorder.close()


def test_a_short_write_costs_its_own_line_alone(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
        recorded.recorder.step_metrics(0, loss=1.0)
    recorded.recorder.step_metrics(1, loss=2.0)
    assert [line["step"] for line in recorded.metadata() if line["kind"] == "metrics"] == [1]
    assert BoxReader(recorded.box).metadata_lost == 1


SMALL_FILES = """
import resource, sys
from pathlib import Path
from megascope.profiler.box.box import BoxReader
from megascope.profiler.opening import RecorderSettings, open_recorder
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
recorder = open_recorder(RecorderSettings(run="run", attempt=0, rank=0, world_size=1, spool=Path(sys.argv[1])))
segment = recorder.segment("work")
for number in range(100):
    recorder.step(number)
    with recorder.span(segment, number):
        pass
print(recorder.enabled, flush=True)
"""


@pytest.mark.parametrize(("most_bytes", "is_recorded"), [(2_000_000, True), (100_000, False)])
def test_a_file_system_that_takes_small_files_only(tmp_path: Path, most_bytes: int, is_recorded: bool) -> None:
    """As a quota: the box shrinks until it fits; where nothing fits, training goes on without it."""
    spool = tmp_path / "spool"
    command = [sys.executable, "-c", SMALL_FILES, str(spool), str(most_bytes)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert done.stdout == f"{is_recorded}\n"
    if is_recorded:
        reader = BoxReader(spool / "run" / "0" / "rank-00000.box")
        assert reader.layout.total_bytes <= most_bytes
        assert reader.read_ring(0, 0).records["microbatch"].tolist() == list(range(100))
    else:
        assert "is not recorded" in done.stderr


def test_a_read_only_spool_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, real = tmp_path / "spool", Path.mkdir

    def mkdir(path: Path, *arguments: object, **named: object) -> None:
        if path.is_relative_to(spool):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        real(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    recorder = open_recorder(settings(spool))
    assert isinstance(recorder, Recorder)
    recorder.end(recorder.begin(recorder.segment("work"), 3))
    recorder.close()
    box = next(tmp_path.glob("megascope-*/spool-fallback/run/0/rank-00000.box"))
    assert BoxReader(box).read_ring(0, 0).records["microbatch"].tolist() == [3]
