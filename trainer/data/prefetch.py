"""Draws the batches that come next in a thread of its own, while a step trains on the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Gives what ``draw(number)`` makes, with up to ``depth`` of the following ones made ahead; 0: none, and no thread.

    ``after`` gives the number that follows one. Whoever asks for another number than was foreseen gets it all the same.
    What `draw` raises is raised to who asks for that number. ``draw`` never runs twice at a time.
    """

    def __init__(self, draw: Callable[[int], T], after: Callable[[int], int], depth: int) -> None:
        self._draw, self._after, self._depth = draw, after, depth
        self._coming: deque[tuple[int, Future[T]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="megascope-batches") if depth else None

    def take(self, number: int) -> T:
        """What belongs to ``number``, once it is made."""
        if self._thread is None:
            return self._draw(number)
        while self._coming and self._coming[0][0] != number:
            self._coming.popleft()[1].cancel()
        if not self._coming:
            self._coming.append((number, self._thread.submit(self._draw, number)))
        wanted = self._coming.popleft()[1]
        last = self._coming[-1][0] if self._coming else number
        while len(self._coming) < self._depth:
            last = self._after(last)
            self._coming.append((last, self._thread.submit(self._draw, last)))
        return wanted.result()

    def next_one(self) -> tuple[int, T] | None:
        """Number and content of the next one, if it is made by now; it stays in its place."""
        if not self._coming or not self._coming[0][1].done() or self._coming[0][1].exception() is not None:
            return None
        return self._coming[0][0], self._coming[0][1].result()

    def forget(self) -> None:
        """Drop all that was made ahead, once the draw that is under way has ended."""
        for _, future in self._coming:
            if not future.cancel():
                future.exception()
        self._coming.clear()

    def close(self) -> None:
        """End the thread, after the draw that is under way."""
        self.forget()
        if self._thread is not None:
            self._thread.shutdown()
