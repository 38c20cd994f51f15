"""The pages' one way to the store: results cached by its version, computed once, slow ones in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from ..collectors.reading.store import Attempt, Store
from ..heatmap.whatif.kept import KeptReplays
from ..profiler.errors import MegascopeError
from ..profiler.racks import Racks
from .looks import JudgedLooks
from .sizes import size_bytes
from .view import View

log = logging.getLogger(__name__)

T = TypeVar("T")
REFRESH_S = 1.0
CACHED_BYTES = 512 * 1024 * 1024
"""Results of one version of the store, together; the newest is kept even where it alone is larger."""

_ENTRY_BYTES = 1024

CACHED_RESULTS = 48
"""Background results, of any size: their values are verdicts."""

ABANDONED_S = 10.0
"""A page that waits for an analysis asks again at least every two seconds; who has not asked for so long has left."""


@dataclass(frozen=True, slots=True)
class Latest(Generic[T]):
    """A background result: the last value, how old it is, and why a newer one failed.

    ``stale``: it is of an older version of the store than the newest (or there is none yet): ask again.
    ``stamp`` tells one result from the next; empty before the first. ``cost_s`` is how long the last one took.
    """

    value: T | None
    age_s: float | None
    error: str | None
    stale: bool
    stamp: str
    cost_s: float | None = None


@dataclass(slots=True)
class _Background:
    value: Any = None
    version: Hashable = None
    done_at: float | None = None
    cost_s: float = 0.0
    error: str | None = None
    future: Future[None] | None = None
    asked_at: float = 0.0
    task: tuple[Hashable, Callable[[], Any]] | None = None

    def may_start(self) -> bool:
        """Whether none is running and the last one's cost has been rested, so that it takes half of a core at most."""
        if self.future is not None and not self.future.done():
            return False
        return self.done_at is None or time.monotonic() - self.done_at >= self.cost_s

    def latest(self, version: Hashable) -> Latest[Any]:
        """The result as it stands at a version of the store."""
        is_stale = self.version != version
        if self.done_at is None:
            return Latest(self.value, None, self.error, is_stale, "")
        age_s = time.monotonic() - self.done_at
        return Latest(self.value, age_s, self.error, is_stale, _short(self.version), self.cost_s)


class Workbench:
    """Shared by all pages and requests; safe to use from many threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.racks: Racks | None = None
        self.replays = KeptReplays()
        self.looks = JudgedLooks()
        self._lock = threading.Lock()
        self._refresh_lock = threading.Lock()
        self._results: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._results_of: Hashable = None
        self._sizes: dict[Hashable, int] = {}
        self._waiting: list[_Background] = []
        self._background: OrderedDict[Hashable, _Background] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="megascope-analysis")
        self._refreshed_at = 0.0
        self._version: Hashable = store.version()

    def version(self) -> Hashable:
        """The store's version now; the manifests are read again at most once a second."""
        with self._refresh_lock:
            if time.monotonic() - self._refreshed_at >= REFRESH_S:
                self.store.refresh()
                self._version = self.store.version()
                self._refreshed_at = time.monotonic()
            return self._version

    def stamp(self) -> str:
        """The version as a short text, for addresses that shall change with the data."""
        return _short(self.version())

    def attempt(self, view: View) -> Attempt:
        """The attempt that a view means. Raises UsageError naming what exists."""
        self.version()
        return self.store.attempt(view.run, view.attempt)

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result of ``compute`` at the store's version: computed once, also when many ask at the same time."""
        version = self.version()
        full_key = (version, key)
        with self._lock:
            if version != self._results_of:
                self._results.clear()
                self._sizes.clear()
                self._results_of = version
            future = self._results.get(full_key)
            mine = future is None
            if future is None:
                future = self._results[full_key] = Future()
            self._results.move_to_end(full_key)
        if mine:
            try:
                value = compute()
            except BaseException as error:
                with self._lock:
                    self._results.pop(full_key, None)
                future.set_exception(error)
            else:
                future.set_result(value)
                self._keep(full_key, size_bytes(value) + _ENTRY_BYTES)
        return cast("T", future.result())

    def _keep(self, full_key: Hashable, size: int) -> None:
        """Note a result's size, and drop the results that were not asked for the longest where all are too large."""
        with self._lock:
            if full_key not in self._results:  # of an older version
                return
            self._sizes[full_key] = size
            total = sum(self._sizes.values())
            for key in list(self._results):
                if total <= CACHED_BYTES:
                    break
                if key != full_key and key in self._sizes:  # what is being computed is not dropped
                    total -= self._sizes.pop(key)
                    del self._results[key]

    def latest(self, key: Hashable, compute: Callable[[], T], *, wait_s: float = 0.0) -> Latest[T]:
        """The last result of a slow ``compute``; a newer store starts it again, one at a time, never piling up.

        Of several that wait, the one that was asked for last runs first; what nobody asks for any more does not run.
        Waits up to ``wait_s`` for the first result. An error of ``compute`` becomes the sentence ``error``.
        """
        version = self.version()
        with self._lock:
            entry = self._background.setdefault(key, _Background())
            self._background.move_to_end(key)
            while len(self._background) > CACHED_RESULTS:
                self._background.popitem(last=False)
            entry.asked_at = time.monotonic()
            if entry.task is not None:
                entry.task = (version, compute)
            elif entry.version != version and entry.may_start():
                entry.task, entry.future = (version, compute), Future()
                self._waiting.append(entry)
                self._pool.submit(self._run_newest)
            future = entry.future
        if wait_s > 0 and entry.done_at is None and future is not None:
            _wait(future, wait_s)
        with self._lock:
            return entry.latest(version)

    def peek(self, key: Hashable) -> Latest[Any] | None:
        """As `latest`, but nothing is started and the store is not looked at; None for what nobody asked for yet."""
        with self._lock:
            entry = self._background.get(key)
            return None if entry is None else entry.latest(self._version)

    def close(self) -> None:
        """Stop the background work."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run_newest(self) -> None:
        """Run the waiting entry that was asked for last; forget those that nobody asks for any more."""
        with self._lock:
            since = time.monotonic() - ABANDONED_S
            for entry in [each for each in self._waiting if each.asked_at < since]:
                self._waiting.remove(entry)
                if entry.future is not None:
                    entry.future.cancel()
                entry.task = entry.future = None
            if not self._waiting:
                return
            entry = max(self._waiting, key=lambda each: each.asked_at)
            self._waiting.remove(entry)
            task, future, entry.task = entry.task, entry.future, None
        if task is None or future is None:
            return
        try:
            self._run(entry, *task)
        finally:
            future.set_result(None)

    def _run(self, entry: _Background, version: Hashable, compute: Callable[[], Any]) -> None:
        value, error = None, None
        begun = time.monotonic()
        try:
            value = compute()
        except MegascopeError as problem:
            error = str(problem)
        except Exception as problem:
            log.exception("A background analysis failed")
            error = f"The analysis failed ({type(problem).__name__}: {problem}). The server's log has the details."
        with self._lock:
            entry.error, entry.version, entry.done_at = error, version, time.monotonic()
            entry.cost_s = entry.done_at - begun
            entry.value = value if error is None else entry.value


def _short(version: Hashable) -> str:
    return f"{hash(version) & 0xFFFFFFFF:x}"


def _wait(future: Future[None], timeout_s: float) -> None:
    try:
        future.exception(timeout_s)
    except (TimeoutError, CancelledError):
        return
