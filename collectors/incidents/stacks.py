"""Python stacks of the ranks of this host, taken once a stall was noticed: on a signal, or by py-spy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...profiler.stack_signal import NUMBER, stack_file
from ..spool.rank_drain import RankDrain

MOST_FRAMES = 24
MOST_CHARACTERS = 2000
PATIENCE_S = 5.0
PY_SPY_TIMEOUT_S = 10.0

SIGNAL, PY_SPY = "faulthandler", "py-spy"

_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_THREAD = re.compile(r"^(Current thread|Thread) .*\(most recent call first\):")


@dataclass(slots=True)
class _Asked:
    """A rank that got the signal: what it wrote is behind ``offset``."""

    rank: int
    path: Path
    offset: int
    by: float
    size: int = -1


class StackTaker:
    """Asks ranks for their stacks and hands them out as they come; never waits."""

    def __init__(self, py_spy: str | None = None) -> None:
        self._py_spy = py_spy or shutil.which("py-spy")
        self._asked: list[_Asked] = []
        self._lock = threading.Lock()
        self._taken: list[tuple[int, str, str]] = []
        self._ended = threading.Event()

    def ask(self, ranks: Sequence[RankDrain]) -> None:
        """Ask the ranks that run on this host: those that know the signal, else by py-spy where it is installed."""
        others: list[tuple[int, int]] = []
        for rank in ranks:
            if rank.is_ended or not rank.is_visible or rank.header is None:
                continue
            pid = rank.reader.pid
            path = stack_file(rank.path.parent, rank.rank, pid)
            if path.exists():
                self._signal(rank.rank, pid, path)
            else:
                others.append((rank.rank, pid))
        if others and self._py_spy is not None:
            threading.Thread(
                target=self._spy, args=(self._py_spy, others), name="megascope-stacks", daemon=True
            ).start()

    def _signal(self, rank: int, pid: int, path: Path) -> None:
        try:
            offset = path.stat().st_size
            os.kill(pid, NUMBER)
        except OSError as error:
            self._keep(rank, SIGNAL, f"(no stack: {error})")
            return
        self._asked.append(_Asked(rank, path, offset, time.monotonic() + PATIENCE_S))

    def take(self) -> list[tuple[int, str, str]]:
        """What came since the last time: rank, how it was taken, and the main thread's stack, innermost call first."""
        for asked in list(self._asked):
            text = _since(asked)
            if text is not None:
                self._asked.remove(asked)
                self._keep(asked.rank, SIGNAL, read_faulthandler(text))
            elif time.monotonic() > asked.by:
                self._asked.remove(asked)
                self._keep(asked.rank, SIGNAL, "(no stack: the process does not answer its signal)")
        with self._lock:
            taken, self._taken = self._taken, []
        return taken

    def _keep(self, rank: int, method: str, stack: str) -> None:
        with self._lock:
            self._taken.append((rank, method, stack[:MOST_CHARACTERS]))

    def _spy(self, program: str, ranks: Sequence[tuple[int, int]]) -> None:
        for rank, pid in ranks:
            if self._ended.is_set():
                return
            self._keep(rank, PY_SPY, _spied(program, pid))

    def close(self) -> None:
        """Ask nobody any more."""
        self._ended.set()


def _since(asked: _Asked) -> str | None:
    """What the rank wrote, once it has stood still from one look to the next."""
    try:
        size = asked.path.stat().st_size
        if size <= asked.offset or size != asked.size:
            asked.size = size
            return None
        with asked.path.open("rb") as file:
            file.seek(asked.offset)
            return file.read(1_000_000).decode(errors="replace")
    except OSError:
        return None


def read_faulthandler(text: str) -> str:
    """The main thread's frames in what `faulthandler` wrote: it lists the main thread last."""
    threads: list[list[str]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (found := _FRAME.match(line)):
            threads[-1].append(frame(found["name"], found["file"], found["line"]))
    with_frames = [one for one in threads if one]
    return "\n".join(with_frames[-1][:MOST_FRAMES]) if with_frames else "(no stack: none was written)"


def frame(name: str, file: str, line: str | int) -> str:
    """One call as the report shows it."""
    return f"{name}() at {file}:{line}"


def _spied(program: str, pid: int) -> str:
    command = [program, "dump", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PY_SPY_TIMEOUT_S, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(no stack: py-spy failed: {error})"[:300]
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return f"(no stack: py-spy was refused, it needs the right to ptrace the ranks: {last[0][:200]})"
    return read_py_spy(done.stdout)


def read_py_spy(text: str) -> str:
    """The main thread's frames in the JSON of ``py-spy dump --json``."""
    try:
        threads = json.loads(text)
        chosen = next((one for one in threads if one.get("thread_name") == "MainThread"), threads[0])
        frames = [frame(str(one["name"]), str(one["filename"]), one["line"]) for one in chosen["frames"]]
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return "(no stack: py-spy wrote something else than its JSON)"
    return "\n".join(frames[:MOST_FRAMES]) or "(no stack: the main thread runs no Python)"
