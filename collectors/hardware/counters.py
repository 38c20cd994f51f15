"""Counters of hardware as differences: a counter that wraps goes on, one that begins anew or is full tells nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_WIDTHS = (32, 64)
_NEAR = 4
"""A counter wraps only from the last quarter of its range into the first one; from anywhere else it began anew."""

FULL: Mapping[str, int] = {
    "symbol_error": 2**16 - 1, "link_error_recovery": 2**8 - 1, "link_downed": 2**8 - 1,
    "port_rcv_errors": 2**16 - 1, "port_rcv_remote_physical_errors": 2**16 - 1, "port_xmit_discards": 2**16 - 1,
    "local_link_integrity_errors": 2**4 - 1, "excessive_buffer_overrun_errors": 2**4 - 1,
}  # fmt: skip
"""Counters of InfiniBand that stop at their largest value (PortCounters, InfiniBand architecture 1.4, 16.1.3.5)."""


def difference(before: int, now: int) -> int | None:
    """What was counted between two readings of a counter of 32 or 64 bits; None where it began anew."""
    if now >= before:
        return now - before
    for width in _WIDTHS:
        size = 1 << width
        if before < size and before >= size - size // _NEAR and now < size // _NEAR:
            return now + size - before
    return None


@dataclass(slots=True)
class Deltas:
    """Differences of named counters from one reading to the next, of whatever devices."""

    _before: dict[tuple[str, str], int] = field(default_factory=dict)

    def take(self, device: str, name: str, now: int | None) -> tuple[int | None, bool]:
        """(difference, whether there is a statement): without an earlier reading there is none.

        The difference is None where the counter began anew, stands at the largest value that it can have, or could not
        be read.
        """
        key = (device, name)
        if now is None:
            known = key in self._before
            self._before.pop(key, None)
            return None, known
        before = self._before.get(key)
        self._before[key] = now
        if before is None:
            return None, False
        if before == now == FULL.get(name):
            return None, True
        return difference(before, now), True

    def forget(self, device: str) -> None:
        """A device is gone: what it counted before says nothing any more."""
        for key in [key for key in self._before if key[0] == device]:
            del self._before[key]
