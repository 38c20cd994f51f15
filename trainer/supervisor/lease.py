"""The right to supervise a run, of one supervisor at a time: kept beside the run's history, renewed while it lives."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...collectors.storage.shared_claim import SharedClaim
from ...profiler.errors import MegascopeError
from ...profiler.host import host_name

LEASE_S = 90.0
"""A lease that nobody has renewed for so long is taken over."""

RENEW_S = 5.0

FRESH_S = LEASE_S / 2
"""Nodes are told that the supervisor lives only so long after it last found its lease to be its own: theirs end before
another supervisor can have taken it over. (A claim is written anew after a fifth of its time; `hub.SILENT_S` follows.)
"""

NAME = "supervisor"


class LeaseLostError(MegascopeError):
    """Another supervisor has taken over."""


class Lease:
    """The lease of one run. `held` takes it and renews it from a thread; ``is_lost`` once somebody else has it."""

    def __init__(self, folder: Path, run: str, lease_s: float = LEASE_S) -> None:
        self._run, self._lease_s = run, lease_s
        self._claim = SharedClaim(folder, NAME, json.dumps(_identity()), lease_s)
        self._fresh_at = 0.0
        self.is_lost = False

    @property
    def is_fresh(self) -> bool:
        """Whether it is certain that nobody else has it now."""
        return not self.is_lost and time.monotonic() - self._fresh_at < FRESH_S

    @contextlib.contextmanager
    def held(self, say: Callable[[str], None]) -> Iterator[None]:
        """Within, the run is this process's. MegascopeError where another supervisor has it.

        That of one that died on this host is taken over at once, any other once nobody has renewed it for its time.
        """
        self._take(say)
        is_over = threading.Event()
        thread = threading.Thread(target=self._keep, args=(is_over,), name="megascope-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(RENEW_S)  # it may stand in a file system that does not answer
            if not thread.is_alive():
                self._claim.give_free()

    def _take(self, say: Callable[[str], None]) -> None:
        path = self._claim.newest()
        holder, renewed_ns = _holder(path), _changed_ns(path)
        if path is not None and _lives(holder) is False:
            with contextlib.suppress(OSError):
                SharedClaim.set_free(path)
        is_told = False
        while not self._claim.take():
            now_at = self._claim.newest()
            if now_at != path or _changed_ns(path) != renewed_ns or _lives(holder):
                raise MegascopeError(
                    f"Run {self._run!r} is supervised already, {_where(_holder(now_at))}: end that supervisor first, "
                    "or give this run another name."
                )
            if not is_told:
                is_told = True
                say(
                    f"run {self._run} was supervised {_where(holder)}: it is taken over if nothing shows within "
                    f"{self._lease_s:.0f} s that its supervisor lives"
                )
            time.sleep(min(0.5, self._lease_s / 10))
        self._fresh_at = time.monotonic()

    def _keep(self, is_over: threading.Event) -> None:
        first = self._claim.path
        while not is_over.wait(min(RENEW_S, self._lease_s / 10)):
            looked_at = time.monotonic()
            try:
                is_own = self._claim.take()
            except OSError:  # not now: whether it is still ours will be seen
                continue
            if not is_own or self._claim.path != first:  # whoever had it meanwhile may have written another history
                self.is_lost = True
                self._claim.give_free()
                return
            self._fresh_at = looked_at


def _identity() -> dict[str, object]:
    """Who holds a lease: enough to tell on the same host whether it still runs."""
    pid = os.getpid()
    return {"host": host_name(), "pid": pid, "machine": _machine(), "started": _started(pid)}


def _machine() -> str | None:
    """This boot of this machine, and the numbering of processes in it; None where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process started, in ticks of the kernel; None where none runs, also of one that nobody has reaped yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if stat[0] in "ZX" else stat[19]
    except (OSError, IndexError):
        return None


def _lives(holder: dict[str, object] | None) -> bool | None:
    """Whether a holder still runs; None where that cannot be told, as of one on another machine."""
    if holder is None or holder.get("machine") is None or holder.get("machine") != _machine():
        return None
    pid, started = holder.get("pid"), holder.get("started")
    return _started(pid) == started if isinstance(pid, int) and started is not None else None


def _holder(path: Path | None) -> dict[str, object] | None:
    try:
        value = None if path is None else json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _changed_ns(path: Path | None) -> int | None:
    try:
        return None if path is None else path.stat().st_mtime_ns
    except OSError:
        return None


def _where(holder: dict[str, object] | None) -> str:
    return "elsewhere" if holder is None else f"on {holder.get('host')} (process {holder.get('pid')})"
