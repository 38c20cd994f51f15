"""The spool as its agent sees it: which boxes there are, whose it is, and what is left to clear away."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ...profiler.errors import MegascopeError
from ...profiler.exits import EXITS
from ...profiler.stack_signal import FOLDER as STACKS
from ..storage.locks import FileLock


def patient_lock(spool: Path, patience_s: float, ended: threading.Event) -> FileLock | None:
    """The lock of the spool, which is made if need be; None where another agent keeps it.

    Who holds it may be past its last look at the boxes: that one is given time to end. Raises MegascopeError for a
    folder that cannot be used.
    """
    give_up_at = time.monotonic() + patience_s
    try:
        while True:
            spool.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # an agent that ends has just removed the folder
                lock = FileLock.acquire(spool / "agent.lock")
                if lock is not None or time.monotonic() >= give_up_at or ended.wait(0.1):
                    return lock
    except OSError as error:
        raise MegascopeError(f"The spool {spool} cannot be used ({error}): give another folder.") from error


def clear_away(spool: Path) -> None:
    """Remove a spool in which nothing is left but what the agent put there; a log that says something stays."""
    log = spool / "agent.log"
    with contextlib.suppress(OSError):
        if log.stat().st_size == 0:
            log.unlink()
    with contextlib.suppress(OSError):
        spool.rmdir()


def remove_attempt(folder: Path) -> None:
    """Remove an attempt's folder in a spool once its boxes are gone; with any, only their stacks go."""
    shutil.rmtree(folder / STACKS, ignore_errors=True)
    if not any(folder.glob("*.box")):
        for path in (*folder.glob("clock*.json"), folder / EXITS):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
            folder.parent.rmdir()


def boxes(spool: Path, run: str | None = None, attempt: int | None = None) -> Iterator[Path]:
    """The boxes in a spool, of one run or attempt if one is given: in folders of runs, in folders with numbers."""
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(spool.glob("*/*/*.box")):
            of_run, number = path.parts[-3:-1]
            if number.isdecimal() and run in (None, of_run) and attempt in (None, int(number)):
                yield path
