"""Flight Recorder dumps on their way from the spool to the store, and the request for them when a job stands still."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from ..profiler.errors import FormatError
from ..profiler.flight_recorder import DUMPS, REQUEST, request_dumps
from ..profiler.topology_file import TOPOLOGY_FILE, read_topology_file, write_topology_file
from .durable import make_folders, write_durably

STORED = "_dumps"
"""Folder of the store that has the dumps, in folders of run and attempt."""

MOST_BYTES = 64 * 2**20
"""A larger dump is left in the spool; a full one of NCCL, with frames, has 3 MB."""


def dumps_folder(store: Path, run: str, attempt: int) -> Path:
    """Where the dumps of an attempt lie in a store."""
    return store / STORED / f"run={run}" / f"attempt={attempt}"


class DumpGathering:
    """The dumps of one attempt on this host. Each is copied once it has stood still from one look to the next."""

    def __init__(self, folder: Path, store: Path, run: str, attempt: int) -> None:
        self._folder, self._target = folder, dumps_folder(store, run, attempt)
        self._asked = 0
        self._seen: dict[str, tuple[int, int]] = {}
        self._copied: dict[str, tuple[int, int]] = {}

    def poll(self, stalls: int, hosts: Mapping[int, str], *, is_last: bool = False) -> None:
        """Ask for dumps where the attempt has stalled once more, and copy what is new; ``is_last`` waits for nothing.

        ``hosts`` are those of this host's ranks. A store that cannot be written now is tried again.
        """
        with contextlib.suppress(OSError):
            if stalls > self._asked:
                request_dumps(self._folder)
                self._asked = stalls
            self._copy(hosts, is_last=is_last)

    def _copy(self, hosts: Mapping[int, str], *, is_last: bool) -> None:
        for path in sorted((self._folder / DUMPS).glob("*")):
            if path.name == REQUEST or path.suffix == ".tmp" or path.is_dir():
                continue
            state = path.stat()
            mark = state.st_size, state.st_mtime_ns
            is_still = self._seen.get(path.name) == mark
            self._seen[path.name] = mark
            if self._copied.get(path.name) == mark or state.st_size > MOST_BYTES or not (is_still or is_last):
                continue
            if not self._copied:
                make_folders(self._target)
                self._copy_topology(hosts)
            content = path.read_bytes()
            write_durably(self._target / path.name, lambda file, content=content: _fill(file, content))  # type: ignore[misc]
            self._copied[path.name] = mark

    def _copy_topology(self, hosts: Mapping[int, str]) -> None:
        """The topology beside the dumps, with the hosts that agents know; another host's agent may have begun it."""
        for path in (self._target / TOPOLOGY_FILE, self._folder / TOPOLOGY_FILE):
            with contextlib.suppress(OSError, FormatError):
                known = read_topology_file(path)
                write_topology_file(self._target, dataclasses.replace(known, hosts={**known.hosts, **hosts}))
                return

    def remove(self) -> None:
        """Delete what was copied from the spool; what was not, stays there."""
        dumps = self._folder / DUMPS
        for path in dumps.glob("*") if dumps.is_dir() else ():
            if path.name == REQUEST or path.suffix == ".tmp" or path.name in self._copied:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            dumps.rmdir()
        (self._folder / TOPOLOGY_FILE).unlink(missing_ok=True)


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
