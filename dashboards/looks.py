"""The looks at a job that its hang verdict is being read from: a picture that is painted before the verdict shows them.

A look at a fleet takes as long as the rest of the verdict, and two threads that take one each slow each other down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from ..viz3d.states import Snapshot

Looks = tuple[Snapshot, Snapshot]
Take = Callable[[int | None], Looks]
"""Two looks, the earlier one first, at a moment (UTC ns) or the newest."""


class JudgedLooks:
    """What is being judged now, by attempt and moment. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[Hashable, Future[Looks]] = {}

    @contextmanager
    def judging(self, attempt: Hashable, take: Take) -> Iterator[Take]:
        """While a verdict on an attempt is made: ``take``, of whose looks `of` knows until the end."""
        own: dict[Hashable, Future[Looks]] = {}

        def taken(moment_ns: int | None) -> Looks:
            key, future = (attempt, moment_ns), Future[Looks]()
            with self._lock:
                self._taken[key] = own[key] = future
            try:
                looks = take(moment_ns)
            except BaseException as problem:
                future.set_exception(problem)
                raise
            future.set_result(looks)
            return looks

        try:
            yield taken
        finally:
            with self._lock:
                for key, future in own.items():
                    if self._taken.get(key) is future:
                        del self._taken[key]

    def of(self, attempt: Hashable, moment_ns: int | None) -> Looks | None:
        """The looks at a moment that are being judged, waited for where they are still being taken; None: none are.

        Raises what taking them raised.
        """
        with self._lock:
            future = self._taken.get((attempt, moment_ns))
        return None if future is None else future.result()
