"""An operation of torch.distributed that is under way, and whether anybody can still wait for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any


class OpenWork:
    """An operation under way (several where they were coalesced), known by its Work."""

    __slots__ = ("has_ended", "is_blind", "is_p2p", "issued_ns", "lock", "spans", "thread", "waits_in_native", "work")

    def __init__(self, work: Any, spans: Sequence[Any], *, is_p2p: bool) -> None:
        self.work, self.spans, self.is_p2p = work, spans, is_p2p
        self.lock = threading.Lock()
        self.has_ended = self.is_blind = self.waits_in_native = False  # blind: on a device that nobody can time
        self.thread = threading.get_ident()
        self.issued_ns = time.monotonic_ns()


def is_held_elsewhere(entry: OpenWork, references: int) -> bool:
    """Whether anybody else holds the Work. ``references`` is what `references_of_one_holder` gave."""
    return sys.getrefcount(entry.work) > references


def references_of_one_holder() -> int:
    """What `sys.getrefcount` counts for a Work that only the record of its span still holds."""
    entry = OpenWork(object(), (), is_p2p=False)
    return next(count for count in range(1, 8) if not is_held_elsewhere(entry, count))
