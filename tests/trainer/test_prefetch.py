"""Batches drawn ahead: the right ones whatever is asked for, once each, and none left running."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megascope.trainer.data.prefetch import Prefetch
from megascope.trainer.data.uploads import Uploads
from megascope.trainer.skipping import batch_after, batch_of

JOIN_S = 10


@given(st.lists(st.integers(0, 6), max_size=20), st.integers(0, 4))
def test_any_number_gives_what_belongs_to_it(asked: list[int], depth: int) -> None:
    ahead = Prefetch(lambda number: number * 10, lambda number: number + 1, depth)
    try:
        assert [ahead.take(number) for number in asked] == [number * 10 for number in asked]
    finally:
        ahead.close()


@given(st.sets(st.integers(0, 12), max_size=6))
def test_the_batch_after_is_the_one_of_the_next_step(skipped: set[int]) -> None:
    batches = [batch_of(step, skipped) for step in range(15)]
    assert [batch_after(batch, skipped) for batch in batches[:-1]] == batches[1:]


def test_the_next_ones_are_drawn_while_nobody_asks() -> None:
    drawn: list[int] = []
    both = threading.Event()

    def draw(number: int) -> int:
        drawn.append(number)
        if number == 2:
            both.set()
        return number

    ahead = Prefetch(draw, lambda number: number + 1, 2)
    assert ahead.take(0) == 0
    assert both.wait(JOIN_S)
    ahead.take(1)
    ahead.take(2)
    ahead.close()
    assert drawn[:3] == [0, 1, 2]
    assert len(drawn) == len(set(drawn)), "a batch was drawn twice"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("megascope-batches")]


def test_what_a_draw_raises_is_raised_where_its_batch_is_asked_for() -> None:
    def draw(number: int) -> int:
        if number == 1:
            raise OSError("the disk is gone")
        return number

    ahead = Prefetch(draw, lambda number: number + 1, 2)
    assert ahead.take(0) == 0
    with pytest.raises(OSError, match="the disk is gone"):
        ahead.take(1)
    ahead.close()


def test_what_was_drawn_at_another_position_is_forgotten() -> None:
    position = 0
    ahead = Prefetch(lambda number: number + position, lambda number: number + 1, 3)
    ahead.take(0)
    ahead.forget()
    position = 100
    assert ahead.take(1) == 101
    ahead.close()


class FakeCuda:
    """Streams that note what is enqueued on them."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, str]] = []

    def Stream(self, _: torch.device) -> FakeStream:  # noqa: N802
        return FakeStream("copies", self)

    def current_stream(self, _: torch.device) -> FakeStream:
        return FakeStream("current", self)

    def stream(self, _: FakeStream) -> Any:
        return nullcontext()


class FakeStream:
    """One of them."""

    def __init__(self, name: str, cuda: FakeCuda) -> None:
        self.name, self._cuda = name, cuda

    def wait_stream(self, other: FakeStream) -> None:
        self._cuda.waits.append((self.name, other.name))


class Rows:
    """A batch that notes its copies."""

    def __init__(self, number: int) -> None:
        self.number, self.copies, self.held_by = number, 0, ""

    def to(self, *_: object, **__: object) -> Rows:
        self.copies += 1
        return self

    def record_stream(self, stream: FakeStream) -> None:
        self.held_by = stream.name


def test_the_next_batch_is_copied_ahead_and_once() -> None:
    cuda = FakeCuda()
    uploads = Uploads(torch.device("cpu"), cuda)
    rows = [Rows(number) for number in range(3)]
    batches: list[Any] = list(rows)
    uploads.take(0, batches[0])
    uploads.begin(1, batches[1])
    uploads.begin(1, batches[1])
    assert cuda.waits == []
    assert uploads.take(1, batches[1]) is batches[1]
    assert (rows[1].copies, rows[1].held_by) == (1, "current")
    assert cuda.waits == [("current", "copies")]
    uploads.begin(2, batches[2])
    uploads.forget()
    assert uploads.take(2, batches[2]) is batches[2]
    assert rows[2].copies == 2
    assert cuda.waits == [("current", "copies")]
