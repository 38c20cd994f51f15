"""How a process ends, said before it does: SIGTERM, and exceptions that end a thread."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..null import NullRecorder
from ..patching import Undo
from ..recorder import Recorder
from ..vocabulary import STATUS_CODES, SegmentKind, Status

ABORTED = STATUS_CODES.index(Status.ABORTED)

PATIENCE_S = 1.0
"""How long a main thread that is stuck in a library may take to notice a SIGTERM, before it is acted on without it."""

MAX_TEXT = 200
MAX_EXCEPTIONS = 20


class Goodbye:
    """Notes that a process was told to end. ``close`` is called with the reason; then the process ends as before.

    A handler that the user has is called as before, and one that the user sets later replaces this one. Where SIGTERM
    had its default action, that is carried out, also while the main thread is stuck in a library that has let go of the
    interpreter's lock: a thread that waits for the signal sees to it.

    A library that is stuck and holds the lock lets no Python run: then SIGTERM, which would end the process at once
    by default, does nothing, and only SIGKILL ends it, which launchers send when their grace is over (30 s by default
    for torchrun and Slurm). That is the lesser harm: without a goodbye, every rank that a launcher ends because another
    one failed would look as if it had failed as well. Who ends processes by SIGTERM alone leaves ``exit`` out.
    """

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._previous: Any = None
        self._pipe: tuple[int, int] | None = None
        self._process_id = os.getpid()
        self.was_told = False

    def install(self) -> Undo:
        """Begin to listen; not outside the main thread, and not where SIGTERM is ignored or a library's own."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        self._previous = signal.getsignal(signal.SIGTERM)
        if self._previous in (signal.SIG_IGN, None):
            return lambda: None
        signal.signal(signal.SIGTERM, self._handle)
        if self._previous is signal.SIG_DFL:
            self._watch()
        return self._uninstall

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.was_told = True
        if callable(self._previous):
            self._previous(number, frame)
        elif signal.getsignal(number) == self._handle:  # otherwise a later handler has called this one: it decides
            self._close("interrupted")
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _watch(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if previous != -1:  # an event loop has it: it notices the signal by itself
            signal.set_wakeup_fd(previous)
            os.close(reader)
            os.close(writer)
            return
        self._pipe = reader, writer
        threading.Thread(target=self._listen, args=(reader,), name="megascope-goodbye", daemon=True).start()

    def _listen(self, reader: int) -> None:
        while number := os.read(reader, 1):
            if number[0] != signal.SIGTERM:
                continue
            time.sleep(PATIENCE_S)
            if not self.was_told and signal.getsignal(signal.SIGTERM) == self._handle:  # else another one decides
                self._close("interrupted")
                ctypes.CDLL(None).signal(signal.SIGTERM, 0)  # Python allows that on the main thread only
                os.kill(os.getpid(), signal.SIGTERM)
        os.close(reader)

    def _uninstall(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may; the handler goes on as the one before would
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)
        if self._pipe is not None:
            reader, writer = self._pipe
            self._pipe = None
            if (current := signal.set_wakeup_fd(-1)) not in (-1, writer):
                signal.set_wakeup_fd(current)
            os.close(writer)  # the thread reads the end of the pipe, and ends
            if os.getpid() != self._process_id:  # a forked child, which has no such thread
                os.close(reader)


def install_exceptions(recorder: Recorder | NullRecorder) -> Undo:
    """Record an exception that ends a thread as an aborted span with its type and text; Python reports it as before.

    SystemExit ends a thread in order, and is none. An exception that ends the whole process is a line of metadata: see
    `uncaught`.
    """
    previous = threading.excepthook
    seen: set[str] = set()

    def hook(args: Any) -> None:
        if not issubclass(args.exc_type, SystemExit):
            note(describe(args.exc_type, args.exc_value))
        previous(args)

    def note(text: str) -> None:
        if len(seen) < MAX_EXCEPTIONS or text in seen:
            seen.add(text)
            span: Any = recorder.begin(recorder.segment(f"exception: {text}", SegmentKind.HOST))
            recorder.end(span, ABORTED)

    threading.excepthook = hook

    def undo() -> None:
        if threading.excepthook is hook:
            threading.excepthook = previous

    return undo


def describe(kind: type[BaseException], error: BaseException | None) -> str:
    """Type and text of an exception in one trimmed line."""
    text = " ".join(str(error).split()) if error is not None else ""
    line = f"{kind.__name__}: {text}" if text else kind.__name__
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]}..."
