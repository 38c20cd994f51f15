"""How processes of ranks ended: exit codes in words, and what their launcher notes of them in the spool.

A code is a process' own exit code, or the negative number of the signal that killed it, as in `subprocess`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .opening import attempt_folder, fallback_spool

EXITS = "exits.jsonl"
"""In an attempt's folder of the spool: lines that launchers add, each with the process id of a rank."""

_OF_A_SHELL = 128
_REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
_ON_REQUEST = frozenset({-number for number in _REQUESTS} | {_OF_A_SHELL + number for number in _REQUESTS})


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. ``asked``: the last signal by which its own launcher had told it to end before it did;

    ``asked_ns``: when it was told first, in the host's time. None is what is not known, or what was not done.
    """

    code: int | None = None
    asked: int | None = None
    asked_ns: int | None = None

    @property
    def was_on_request(self) -> bool:
        """Whether it ended because its launcher said so: told to, and with no other code than that leads to."""
        return self.asked is not None and (self.code in (None, 0) or self.code in _ON_REQUEST)

    def was_told_by(self, moment_ns: int) -> bool:
        """Whether its launcher had told it to end by a moment, in the host's time."""
        return self.asked_ns is not None and self.asked_ns <= moment_ns


def signal_name(number: int) -> str:
    """SIGKILL for 9; "signal 99" for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_words(code: int) -> str:
    """A code as the end of a sentence: ``was killed by signal 9 (SIGKILL)``, ``ended with exit code 1``."""
    if code < 0:
        return f"was killed by signal {-code} ({signal_name(-code)})"
    if code - _OF_A_SHELL in {int(number) for number in signal.Signals}:
        return f"ended with exit code {code} (as for {signal_name(code - _OF_A_SHELL)})"
    return f"ended with exit code {code}"


class ExitNotes:
    """A launcher's notes on its ranks, in those of ``folders`` that ranks have made; what cannot be written is left."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = tuple(folders)

    def asked(self, rank: int, pid: int, number: int) -> None:
        """A rank is about to get a signal that ends it; to be noted before it is sent."""
        self._write({"rank": rank, "pid": pid, "asked": number, "moment_ns": time.time_ns()})

    def ended(self, rank: int, pid: int, code: int) -> None:
        """A rank has ended with a code."""
        self._write({"rank": rank, "pid": pid, "code": code})

    def _write(self, values: dict[str, int]) -> None:
        line = json.dumps(values, separators=(",", ":")).encode() + b"\n"
        for folder in self._folders:
            with contextlib.suppress(OSError):  # no folder: nothing is recorded there, and nobody reads it
                file = os.open(folder / EXITS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                try:
                    os.write(file, line)
                finally:
                    os.close(file)


def notes_on(spool: Path, run: str, attempt: int) -> ExitNotes:
    """For the launcher of an attempt on this host. UsageError for a run whose name cannot be a folder's."""
    return ExitNotes([attempt_folder(folder, run, attempt) for folder in (spool, fallback_spool(spool))])


def read_exits(folder: Path) -> dict[tuple[int, int], Exit]:
    """What launchers noted in an attempt's folder, by rank and process id; lines that are none are passed over."""
    try:
        lines = (folder / EXITS).read_bytes().splitlines()
    except OSError:
        return {}
    found: dict[tuple[int, int], Exit] = {}
    for line in lines:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            values: dict[str, Any] = json.loads(line)
            key = int(values["rank"]), int(values["pid"])
            found[key] = _with(found.get(key, Exit()), values)
    return found


def _with(known: Exit, values: Mapping[str, Any]) -> Exit:
    """What is known of an exit, and what a line adds."""
    code, asked, moment_ns = values.get("code"), values.get("asked"), values.get("moment_ns")
    return Exit(
        known.code if code is None else int(code),
        known.asked if asked is None else int(asked),
        int(moment_ns) if known.asked_ns is None and moment_ns is not None else known.asked_ns,
    )
