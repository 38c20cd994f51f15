"""The host's own metrics through psutil: processor, memory, swap, disks and network."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from .counters import difference

Reading = tuple[str, float | None]


class HostReader:
    """Reads the host; ``spool`` is the folder whose disk must not run full. Nothing here waits for a device."""

    def __init__(self, spool: Path | None = None) -> None:
        self._spool = spool
        self._before: dict[str, int] = {}
        self._at: float | None = None
        with contextlib.suppress(OSError, RuntimeError):
            psutil.cpu_percent()  # the first call only starts the measurement

    def read(self) -> list[Reading]:
        """(metric, value) of all that this host tells; rates and deltas from the second reading on."""
        now = time.monotonic()
        elapsed_s = None if self._at is None else now - self._at
        self._at = now
        found: list[Reading] = []
        for part in (self._gauges, lambda: self._counted(elapsed_s)):
            with contextlib.suppress(OSError, RuntimeError):  # a container may hide what psutil reads
                found.extend(part())
        return found

    def _gauges(self) -> Iterator[Reading]:
        yield "cpu_percent", psutil.cpu_percent()
        yield "load_1min", psutil.getloadavg()[0]
        memory = psutil.virtual_memory()
        yield "memory_percent", memory.percent
        yield "memory_used_bytes", memory.used
        yield "swap_used_bytes", psutil.swap_memory().used
        if self._spool is not None:
            with contextlib.suppress(OSError):
                room = os.statvfs(self._spool)
                usable = room.f_blocks - room.f_bfree + room.f_bavail
                yield "spool_disk_percent", 100 * (1 - room.f_bavail / usable) if usable else None

    def _counted(self, elapsed_s: float | None) -> Iterator[Reading]:
        """Rates a second, and counts since the reading before."""
        swap, disk, network = psutil.swap_memory(), _or_none(psutil.disk_io_counters), _or_none(psutil.net_io_counters)
        rates = {"swap_read_bytes_per_s": swap.sin}
        deltas = {}
        if disk is not None:
            rates |= {"disk_read_bytes_per_s": disk.read_bytes, "disk_written_bytes_per_s": disk.write_bytes}
        if network is not None:
            rates |= {
                "network_sent_bytes_per_s": network.bytes_sent, "network_received_bytes_per_s": network.bytes_recv,
            }  # fmt: skip
            deltas = {
                "network_errors": network.errin + network.errout,
                "network_dropped_packets": network.dropin + network.dropout,
            }
        for name, value in (*rates.items(), *deltas.items()):
            before = self._before.get(name)
            self._before[name] = value
            if before is None or elapsed_s is None or elapsed_s <= 0:
                continue
            change = difference(before, value)
            is_rate = name in rates
            yield name, change / elapsed_s if is_rate and change is not None else change


def _or_none(read: Callable[[], Any]) -> Any:
    with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
        return read()
    return None
