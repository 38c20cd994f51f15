"""A recorder on a spool of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from support.recording import Recorded, settings


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    recorder = open_recorder(settings(tmp_path))
    assert isinstance(recorder, Recorder)
    yield Recorded(recorder, tmp_path / "run" / "0")
    recorder.close()
