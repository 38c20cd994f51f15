"""The exception that ends the process, recorded before Python reports it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import TracebackType

from ..patching import Undo, replace
from ..recorder import AnyRecorder


def install_uncaught(recorder: AnyRecorder, close: Callable[[str], None]) -> Undo:
    """Record an exception that nobody catches as a line of metadata, and close with the reason; then as before."""
    previous = sys.excepthook
    is_over = False

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not is_over:
            with contextlib.suppress(Exception):
                if issubclass(kind, KeyboardInterrupt):
                    close("interrupted")
                else:
                    recorder.exception(error)
                    close("exception")
        previous(kind, error, traceback)

    put_back = replace(sys, "excepthook", hook)

    def undo() -> None:
        nonlocal is_over
        is_over = True  # whoever has wrapped ours since goes on through it
        put_back()

    return undo
