"""A rank's Python stacks on a signal, also while C code holds the interpreter's lock: for the host's agent, on request.

`faulthandler` writes them without running any Python. It is opt-in (``MEGASCOPE_STACKS=1``): a signal interrupts system
calls of the rank, and foreign C code may not expect that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from pathlib import Path
from typing import IO

VARIABLE = "MEGASCOPE_STACKS"
FOLDER = "stacks"
"""Folder of an attempt's stacks, in its folder of the spool."""

NUMBER = signal.SIGRTMIN + 9


def stack_file(folder: Path, rank: int, pid: int) -> Path:
    """Where a rank's stacks go. That the file is there tells that the process knows the signal, which kills others."""
    return folder / FOLDER / f"{rank}-{pid}.txt"


class StackOnSignal:
    """Registers the signal of one rank until `close`."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file, self._pid = path, file, os.getpid()

    @classmethod
    def register(cls, folder: Path, rank: int) -> StackOnSignal | None:
        """Answer from now on; None where it is not asked for, where the signal is somebody else's, or without room."""
        if os.environ.get(VARIABLE, "0") in {"", "0"} or signal.getsignal(NUMBER) != signal.SIG_DFL:
            return None
        path = stack_file(folder, rank, os.getpid())
        try:
            path.parent.mkdir(exist_ok=True)
            own = path.with_suffix(".tmp")
            file = own.open("ab", buffering=0)
        except OSError:
            return None
        faulthandler.register(NUMBER, file=file, all_threads=True, chain=False)
        own.rename(path)  # only now may anybody send the signal
        return cls(path, file)

    def close(self) -> None:
        """Answer no more; a signal that is under way is ignored from now on."""
        if os.getpid() != self._pid:
            return
        self._path.unlink(missing_ok=True)
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may say what a signal does: it goes on being answered
        signal.signal(NUMBER, signal.SIG_IGN)
        faulthandler.unregister(NUMBER)
        signal.signal(NUMBER, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            self._file.close()
