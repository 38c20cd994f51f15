"""Small answers about an open store that several analyses ask for: worked out once for each version of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from .store import Store

T = TypeVar("T")


@dataclass(slots=True)
class _Answers:
    version: Hashable = None
    known: dict[Hashable, Future[Any]] = field(default_factory=dict)


_lock = threading.Lock()
_of_stores: WeakKeyDictionary[Store, _Answers] = WeakKeyDictionary()


def kept(store: Store, key: Hashable, compute: Callable[[], T]) -> T:
    """What ``compute`` returned for this key at the store's version; who asks meanwhile waits for it.

    What it raises is raised, and not kept. It is not copied: nobody may change it.
    """
    version = store.version()
    with _lock:
        answers = _of_stores.setdefault(store, _Answers())
        if answers.version != version:
            answers.version, answers.known = version, {}
        known = answers.known
        future = known.get(key)
        is_mine = future is None
        if future is None:
            future = known[key] = Future()
    if is_mine:
        try:
            future.set_result(compute())
        except BaseException as error:
            with _lock:
                known.pop(key, None)
            future.set_exception(error)
    return cast("T", future.result())
