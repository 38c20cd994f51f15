"""The file of racks: what it may say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.profiler.errors import UsageError
from megascope.profiler.racks import read_racks


def test_racks_are_read_from_lines_of_host_and_rack(tmp_path: Path) -> None:
    path = tmp_path / "racks.csv"
    path.write_text('\ufeffHost,Rack\n# the old hall\nnode-1, A 1\n\nnode-2,"B,2"\nnode-1,A 1\n')
    assert read_racks(path) == {"node-1": "A 1", "node-2": "B,2"}
    assert read_racks(None) is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"node-1\n", "Line 1 of"),
        (b"host,rack\nnode-1,\n", "Line 2 of"),
        (b"node-1,A\nnode-1,B\n", "puts node-1 into rack B"),
        (b"host,rack\n", "There is no host"),
        (b"\xff\xfe,", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_racks_that_cannot_be_meant_is_refused(content: bytes | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "racks.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        read_racks(path)
