"""Python's garbage collector, off while a look is taken and a verdict made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect no circular garbage meanwhile. Works as a decorator too.

    A verdict of a fleet makes hundreds of thousands of objects, all of them in use until it is made: the collector
    would walk through them again and again, and find nothing. Of threads that overlap here the first to end turns it
    on again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
