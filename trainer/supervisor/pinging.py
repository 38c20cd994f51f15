"""Telling the nodes that their supervisor lives, from a thread of its own: whatever the supervisor waits for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

PING_S = 2.0


@contextlib.contextmanager
def pinging(ping: Callable[[], None], may_ping: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Within, ``ping`` is called every `PING_S`, as long as ``may_ping`` says so."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(PING_S):
            if may_ping():
                ping()

    thread = threading.Thread(target=work, name="megascope-pings", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
