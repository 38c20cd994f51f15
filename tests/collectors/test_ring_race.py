"""A ring that is written while it is read: what may have been overwritten during the copy is lost, and counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from megascope.profiler.box import BoxReader
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
    head, looks = BoxReader.head, iter((0, between, 0, 0, 0, 0))

    def moving_head(box: BoxReader, ring: int) -> int:
        write(next(looks))
        return head(box, ring)

    monkeypatch.setattr(BoxReader, "head", moving_head)
    first = reader.read_ring(0, 0)
    # The record under the pen is counted as overwritten too: the writer may be in the middle of it.
    oldest = max(0, before - capacity, before + between - capacity + 1 if between else 0)
    assert first.records["microbatch"].tolist() == list(range(oldest, before))
    assert (first.tail, first.lost) == (before, min(oldest, before))
    monkeypatch.undo()
    second = reader.read_ring(0, first.tail)
    assert len(first.records) + first.lost + len(second.records) + second.lost == before + between
    reader.close()
