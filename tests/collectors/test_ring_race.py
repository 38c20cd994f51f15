"""A ring that is written while it is read: what may have been overwritten during the copy is lost, and counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.profiler.box.box import BoxReader
from megascope.profiler.recorder import Recorder


@pytest.mark.parametrize(("before", "between"), [(512, 0), (512, 1), (600, 100), (100, 100), (100, 450), (512, 2000)])
def test_what_was_overwritten_during_the_copy_is_lost(
    recorder: Callable[..., Recorder], spool: Path, monkeypatch: pytest.MonkeyPatch, before: int, between: int
) -> None:
    capacity = 512
    rank = recorder(records=capacity)
    segment = rank.segment("work")
    count = 0

    def write(spans: int) -> None:
        nonlocal count
        for _ in range(spans):
            rank.end(rank.begin(segment, count))
            count += 1

    write(before)
    reader = BoxReader(spool / "run" / "0" / "rank-00000.box")
    copy = BoxReader._copy

    def copy_while_written(box: BoxReader, ring: int, first: int, end: int) -> Any:
        copied = copy(box, ring, first, end)
        write(between)
        return copied

    monkeypatch.setattr(BoxReader, "_copy", copy_while_written)
    first = reader.read_ring(0, 0)
    oldest = max(0, before - capacity, before + between - capacity)
    assert first.records["microbatch"].tolist() == list(range(oldest, before))
    assert (first.tail, first.lost) == (before, min(oldest, before))
    monkeypatch.undo()
    second = reader.read_ring(0, first.tail)
    assert len(first.records) + first.lost + len(second.records) + second.lost == before + between
    reader.close()
