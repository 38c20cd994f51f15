"""Flight Recorder dumps on their way from the spool to the store, and the request for them when a job stands still."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...profiler.errors import FormatError
from ...profiler.flight_recorder import DUMPS, REQUEST, request_dumps, requested
from ...profiler.topology_file import (
    TOPOLOGY_FILE,
    file_of_host,
    read_hosts,
    read_topology_file,
    share_topology_file,
    write_hosts,
)
from ..storage.durable import make_folders, write_durably
from ..storage.object_path import ObjectPath

log = logging.getLogger(__name__)

STORED = "_dumps"
"""Folder of the store that has the dumps, in folders of run and attempt."""

MOST_BYTES = 64 * 2**20
"""A larger dump is left in the spool; a full one of NCCL, with frames, has 3 MB."""

LEFT_OUT = "left-out.{}.txt"
"""Beside the dumps in the store: what a host could not bring, a line each with the reason."""

_Mark = tuple[int, int]


def dumps_folder(store: Path, run: str, attempt: int) -> Path:
    """Where the dumps of an attempt lie in a store."""
    return store / STORED / f"run={run}" / f"attempt={attempt}"


class DumpGathering:
    """The dumps of one attempt on this host. Each is copied once it has stood still from one look to the next."""

    def __init__(self, folder: Path, store: Path, run: str, attempt: int) -> None:
        self._folder, self._target = folder, dumps_folder(store, run, attempt)
        self._asked = requested(folder)
        self._seen: dict[str, _Mark] = {}
        self._copied: dict[str, _Mark] = {}
        self._hosts: dict[int, str] = {}
        self._told: dict[str, str] = {}
        self._noted: dict[str, str] = {}
        self._has_topology = False

    @property
    def left_out(self) -> Mapping[str, str]:
        """Files of the spool that are not in the store, by name, each with the reason."""
        return {name: reason for name, reason in self._told.items() if name not in self._copied}

    def poll(self, stalls: int, hosts: Mapping[int, str], *, is_last: bool = False) -> None:
        """Ask for dumps where the attempt has stalled once more, and copy what is new; ``is_last`` waits for nothing.

        ``hosts`` are those of this host's ranks. A store that cannot be written now is tried again. A file that cannot
        be read, or is too large, is left where it is, told of once and listed beside the dumps; the others go on.
        """
        with contextlib.suppress(OSError):
            if stalls > self._asked:
                request_dumps(self._folder, stalls)
                self._asked = stalls
        with contextlib.suppress(OSError):
            self._copy(hosts, is_last=is_last)

    def _copy(self, hosts: Mapping[int, str], *, is_last: bool) -> None:
        ready = [(path, mark) for path, mark in self._new() if self._is_still(path, mark) or is_last]
        if ready or self.left_out:
            make_folders(self._target)
        for path, mark in ready:
            if mark == _mark_of(self._target / path.name):  # by an agent before this one
                self._copied[path.name] = mark
                continue
            try:
                self._copy_one(path, mark)
            except OSError as error:
                self._leave(path, error.strerror or str(error))
        if self._copied:
            self._describe(hosts)
        self._note_left_out()

    def _new(self) -> Iterator[tuple[Path, _Mark]]:
        """Files that are not in the store as they are now, and may be."""
        for path in sorted((self._folder / DUMPS).glob("*")):
            if path.name == REQUEST or path.suffix == ".tmp":
                continue
            try:
                state = path.lstat()
            except OSError:  # gone since
                continue
            mark = state.st_size, state.st_mtime_ns
            if self._copied.get(path.name) == mark or stat.S_ISDIR(state.st_mode):
                continue
            if not stat.S_ISREG(state.st_mode):
                self._leave(path, "it is no plain file")
            elif state.st_size > MOST_BYTES:
                self._leave(path, f"its {state.st_size:,} bytes are more than the {MOST_BYTES:,} that are copied")
            else:
                yield path, mark

    def _is_still(self, path: Path, mark: _Mark) -> bool:
        was, self._seen[path.name] = self._seen.get(path.name), mark
        return was == mark

    def _copy_one(self, path: Path, mark: _Mark) -> None:
        """Copy a file with its moment, by which a later agent knows it again. OSError where that cannot be done."""
        with path.open("rb") as file:
            content = file.read(MOST_BYTES)

        def fill(temporary: Path) -> None:
            temporary.write_bytes(content)
            os.utime(temporary, ns=(mark[1], mark[1]))

        write_durably(self._target / path.name, fill)
        self._copied[path.name] = mark
        self._told.pop(path.name, None)

    def _leave(self, path: Path, reason: str) -> None:
        if self._told.get(path.name) != reason:
            log.warning("The dump %s is not copied to the store (%s): it is left where it is.", path, reason)
        self._told[path.name] = reason

    def _describe(self, hosts: Mapping[int, str]) -> None:
        """The mesh beside the dumps, the same from every host, and this host's ranks in a file of its own."""
        known = None
        with contextlib.suppress(OSError, FormatError):
            known = read_topology_file(self._folder / TOPOLOGY_FILE)
        if known is not None and not self._has_topology:
            with _writable(self._target) as folder:
                share_topology_file(folder, dataclasses.replace(known, hosts={}))
            self._has_topology = True
        more = {**({} if known is None else known.hosts), **self._hosts, **hosts}
        if more == self._hosts:
            return
        name = (hosts or more)[min(hosts or more)]
        with contextlib.suppress(FormatError):
            more = {**read_hosts(self._target / file_of_host(name)), **more}
        with _writable(self._target) as folder:
            write_hosts(folder, name, more)
        self._hosts = more

    def _note_left_out(self) -> None:
        """Beside the dumps, so that who reads them elsewhere knows which there were."""
        left = dict(self.left_out)
        if left == self._noted:
            return
        text = "".join(f"{self._folder / DUMPS / name}: {reason}\n" for name, reason in sorted(left.items()))
        path = self._target / LEFT_OUT.format(_this_host())
        if text:
            write_durably(path, lambda temporary: _fill(temporary, text))
        else:
            path.unlink(missing_ok=True)
        self._noted = left

    def remove(self) -> None:
        """Delete what was copied from the spool as it is now; what was not, stays there."""
        dumps = self._folder / DUMPS
        for path in dumps.glob("*") if dumps.is_dir() else ():
            is_copied = path.name in self._copied and self._copied[path.name] == _mark_of(path)
            if path.name == REQUEST or path.suffix == ".tmp" or is_copied:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            dumps.rmdir()
        (self._folder / TOPOLOGY_FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def _writable(target: Path) -> Iterator[Path]:
    """A folder to write small files to; what is in it afterwards is put where there is none yet, in an object store."""
    if not isinstance(target, ObjectPath):
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="megascope-dumps-") as folder:
        yield Path(folder)
        for path in Path(folder).iterdir():
            if path.name != TOPOLOGY_FILE or not (target / path.name).exists():
                (target / path.name).put_file(path)


def _this_host() -> str:
    return os.uname().nodename.replace("/", "_")


def _mark_of(path: Path) -> _Mark | None:
    try:
        state = path.lstat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def _fill(path: Path, text: str) -> None:
    path.write_text(text)
