"""Waiting for data as spans: a wrapper for any iterable, and every DataLoader of torch."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from ..patching import Undo, replace
from ..recorder import AnyRecorder
from ..vocabulary import SegmentKind

T = TypeVar("T")

DATA_WAIT = "data_wait"
_inside = threading.local()


def timed_next(recorder: AnyRecorder, name: str, take: Callable[[], T]) -> T:
    """What ``take`` returns, with a data span around it; inside another such span there is no second one."""
    if getattr(_inside, "on", False):
        return take()
    segment = recorder.segment(name, SegmentKind.DATA)
    span: Any = recorder.begin(segment)
    clock = recorder.work_clocks.get(segment)
    if clock is not None:
        clock.enter()
    _inside.on = True
    try:
        return take()
    finally:
        _inside.on = False
        if clock is not None:
            clock.leave()
        recorder.end(span)


class TimedIterator(Generic[T]):
    """An iterator whose ``next`` is a data span."""

    __slots__ = ("_iterator", "_name", "_recorder")

    def __init__(self, iterator: Iterator[T], recorder: Callable[[], AnyRecorder], name: str) -> None:
        self._iterator, self._recorder, self._name = iterator, recorder, name

    def __iter__(self) -> TimedIterator[T]:
        return self

    def __next__(self) -> T:
        return timed_next(self._recorder(), self._name, self._iterator.__next__)


class TimedLoader(Generic[T]):
    """An iterable whose iterators are timed; everything else is the wrapped one's own.

    Of an iterator it is a `TimedStream`.
    """

    def __new__(cls, iterable: Iterable[T] | None = None, *_: Any) -> TimedLoader[T]:
        return super().__new__(TimedStream if isinstance(iterable, Iterator) else cls)

    def __init__(self, iterable: Iterable[T], recorder: Callable[[], AnyRecorder], name: str) -> None:
        self._iterable, self._recorder, self._name = iterable, recorder, name

    def __iter__(self) -> Iterator[T]:
        return TimedIterator(iter(self._iterable), self._recorder, self._name)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._iterable)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterable" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # a copy that is being made, and what copying and pickling ask for
        return getattr(self._iterable, name)


class TimedStream(TimedLoader[T]):
    """A timed iterator: ``next`` is a data span as well."""

    def __next__(self) -> T:
        iterator: Iterator[T] = self._iterable  # type: ignore[assignment]
        return timed_next(self._recorder(), self._name, iterator.__next__)


def install_data_loader(recorder: AnyRecorder) -> Undo | None:
    """Time ``next`` of all iterators over a torch DataLoader, old ones included; None while torch is not loaded."""
    module = sys.modules.get("torch.utils.data.dataloader")
    if module is None:
        return None
    original = module._BaseDataLoaderIter.__next__

    @functools.wraps(original)
    def timed(iterator: Any) -> Any:
        return timed_next(recorder, DATA_WAIT, lambda: original(iterator))

    return replace(module._BaseDataLoaderIter, "__next__", timed)
