"""PyTorch's Flight Recorder: turned on where nobody has, its dumps led to the spool, and taken on request.

NCCL writes its dumps by itself when a collective times out, after minutes; for gloo nobody does. So a thread of each
rank looks for a request, which the host's agent leaves when the job stands still, and writes what the Flight Recorders
hold. A rank whose main thread holds the interpreter's lock cannot answer: that there is no dump of it is a finding.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import MutableMapping
from pathlib import Path

from .dump_taking import take_dump
from .patching import Undo

log = logging.getLogger(__name__)

DUMPS = "dumps"
"""Folder of an attempt's dumps, in its folder of the spool."""

PREFIX = "_dump_"
REQUEST = "request"
LOOK_S = 0.5
_DEFAULTS = (
    (("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "2000"),
    (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"),
)
_PLACE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Names of a setting, today's first, then the one before it, which torch still reads."""


def turn_on(folder: Path, environment: MutableMapping[str, str] | None = None) -> Undo:
    """Set what makes torch record and dump into the attempt's ``folder``, where the user has set nothing.

    Before the process group is made; afterwards it has no effect. What is returned takes out of the environment what
    was set here, unless somebody has changed it since.
    """
    env = os.environ if environment is None else environment
    own: dict[str, str] = {}
    for names, value in (*_DEFAULTS, (_PLACE, str(folder / DUMPS / PREFIX))):
        if not any(name in env for name in names):
            env[names[0]] = own[names[0]] = value
    with contextlib.suppress(OSError):
        (folder / DUMPS).mkdir(exist_ok=True)

    def undo() -> None:
        for name, value in own.items():
            if env.get(name) == value:
                del env[name]

    return undo


def request_dumps(folder: Path, number: int = 1) -> None:
    """Ask all ranks that record into the attempt's ``folder`` for a dump each, for the ``number``-th time.

    OSError where that cannot be done.
    """
    (folder / DUMPS).mkdir(exist_ok=True)
    path = folder / DUMPS / REQUEST
    own = path.with_suffix(".tmp")
    own.write_text(f"{number}\n")
    own.replace(path)


def requested(folder: Path) -> int:
    """How often dumps were asked for in the attempt's ``folder``: for an agent that takes over from another."""
    try:
        return int((folder / DUMPS / REQUEST).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


class DumpOnRequest:
    """Waits for requests, on a thread of its own, and answers each with one dump."""

    def __init__(self, folder: Path, rank: int, undo: Undo | None = None) -> None:
        """``undo`` is called by `close`: `turn_on` gives one."""
        self._folder, self._rank, self._undo = folder / DUMPS, rank, undo
        self._ended = threading.Event()
        self._answered = self._asked_at()
        self._thread = threading.Thread(target=self._watch, name="megascope-dumps", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more, and leave the environment as it was found."""
        self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=2)
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _asked_at(self) -> int:
        try:
            return (self._folder / REQUEST).stat().st_mtime_ns
        except OSError:
            return 0

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            asked = self._asked_at()
            if asked > self._answered:
                self._answered = asked
                try:
                    self._write()
                except Exception as error:  # the rank is to go on whatever a library does here
                    log.warning("Rank %d cannot dump its Flight Recorder (%s).", self._rank, error)

    def _write(self) -> None:
        content = take_dump()
        if content is None:
            return
        path = self._folder / f"{PREFIX}{self._rank}.json"
        own = path.with_suffix(".tmp")
        own.write_text(json.dumps(content, separators=(",", ":")))
        own.replace(path)
