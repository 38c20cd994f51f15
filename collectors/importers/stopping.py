"""Being stopped by Ctrl-C or SIGTERM: at once while files are read, never in the middle of what must be whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ...profiler.errors import MegascopeError

_STOPS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(MegascopeError):
    """The import was stopped from outside; the message says what became of it."""

    exit_code = 130


@contextmanager
def held_back() -> Iterator[list[int]]:
    """Signals that stop a process wait for the end of the block; the list has the numbers of those that came.

    Only the main thread can do so, and only it is interrupted: in another thread nothing changes.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {one: signal.signal(one, lambda number, _: came.append(number)) for one in _STOPS if _stops(one)}
    try:
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


def _stops(number: signal.Signals) -> bool:
    return signal.getsignal(number) is not signal.SIG_IGN


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as SIGINT does, so that both clean up; of the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
