"""The exception that ends a process: recorded where that is chosen, and Python's hook is put back."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import megascope
from megascope.profiler.box.metadata import read_metadata


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "spool"
    megascope.shutdown()


CRASH = """
import sys
before = sys.excepthook
import megascope
assert sys.excepthook is before, "importing replaces nothing"
megascope.init(spool=sys.argv[1], agent=False, run="r", automatic=sys.argv[2])
raise {error}
"""


@pytest.mark.parametrize(
    ("automatic", "error", "reason", "is_told"),
    [
        ("all", "ValueError('bad batch')", "exception", True),
        ("exceptions", "ValueError('bad batch')", "exception", True),
        ("exceptions", "KeyboardInterrupt", "interrupted", False),
        ("-exceptions", "ValueError('bad batch')", "exited", False),
        ("none", "ValueError('bad batch')", "exited", False),
    ],
)
def test_a_crash_is_told_where_exceptions_are_chosen(
    spool: Path, automatic: str, error: str, reason: str, is_told: bool
) -> None:
    command = [sys.executable, "-c", CRASH.format(error=error), str(spool), automatic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert error.partition("(")[0] in done.stderr
    assert "AssertionError" not in done.stderr
    lines = [line for _, line in read_metadata(next(spool.glob("*/*/rank-*.meta.jsonl")))]
    assert [line["reason"] for line in lines if line["kind"] == "exit"] == [reason]
    told = [line["message"] for line in lines if line["kind"] == "exception"]
    assert told == (["bad batch"] if is_told else [])


def test_shutdown_puts_the_hook_back_and_a_later_one_goes_on_through_ours(spool: Path) -> None:
    seen: list[str] = []
    original = sys.excepthook
    sys.excepthook = lambda kind, *_: seen.append(kind.__name__)
    mine = sys.excepthook
    try:
        megascope.init(spool=spool, agent=False, run="r", attempt=0, automatic="exceptions")
        assert sys.excepthook is not mine
        megascope.shutdown()
        assert sys.excepthook is mine
        megascope.init(spool=spool, agent=False, run="r", attempt=1, automatic="exceptions")
        ours: Any = sys.excepthook
        sys.excepthook = functools.partial(ours)
        megascope.shutdown()
        sys.excepthook(ValueError, ValueError("x"), None)
        assert seen == ["ValueError"]
    finally:
        sys.excepthook = original
