"""Operations that are issued late, as over a slow link: in order, and without holding up what comes in meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

CLOSE_S = 5.0
"""For what waits to be issued when training ends."""


class LateWork:
    """An operation that will be issued. `wait` is as of torch's Work: it raises what the operation or its issue did."""

    __slots__ = ("_error", "_issued", "_work")

    def __init__(self) -> None:
        self._issued = threading.Event()
        self._work: Any = None
        self._error: BaseException | None = None

    def issue(self, operation: Callable[[], Any]) -> None:
        """Issue it now; called once."""
        try:
            with torch.no_grad():  # the caller's mode is its thread's own
                self._work = operation()
        except BaseException as error:
            self._error = error
        finally:
            self._issued.set()

    def wait(self) -> None:
        """Wait until it is issued and complete."""
        self._issued.wait()
        if self._error is not None:
            raise self._error
        if self._work is not None:
            self._work.wait()


class LateIssuer:
    """Issues operations of one process group on a thread of its own, one after another, each after its delay.

    An operation is issued and not waited for: two ranks that both send late must still be able to receive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[tuple[LateWork, Callable[[], Any], float] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, operation: Callable[[], Any], delay_s: float) -> LateWork:
        """Have an operation issued so many seconds after the one before was, or after now."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        work = LateWork()
        self._queue.put((work, operation, delay_s))
        return work

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            work, operation, delay_s = entry
            time.sleep(delay_s)
            work.issue(operation)

    def close(self) -> None:
        """End the thread once all that was submitted is issued."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=CLOSE_S)
