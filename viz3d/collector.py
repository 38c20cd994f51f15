"""Python's garbage collector, off while a look is taken and a verdict made."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Users:
    """Who is inside, of all threads, and whether the collector was on before the first came."""

    def __init__(self) -> None:
        self.lock, self.count, self.was_on = threading.Lock(), 0, False


_users = _Users()


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect no circular garbage meanwhile. Works as a decorator too.

    A verdict of a fleet makes hundreds of thousands of objects, all of them in use until it is made: the collector
    would walk through them again and again, and find nothing. Of threads that overlap here the last to end turns it
    on again.
    """
    with _users.lock:
        if _users.count == 0:
            _users.was_on = gc.isenabled()
            gc.disable()
        _users.count += 1
    try:
        yield
    finally:
        with _users.lock:
            _users.count -= 1
            if _users.count == 0 and _users.was_on:
                gc.enable()
