"""Reads Chrome traces as a stream: one event at a time, whatever the file's size, up to where it was cut."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any

from ...profiler.errors import FormatError

CHUNK = 1 << 18
LARGEST_VALUE = 1 << 26
"""Characters of one event or header value: more than any tracer writes, and the bound on memory."""

EVENTS = "traceEvents"

NS_PER_US = 1000

LARGEST_NS = 1 << 62

_SPACE = " \t\r\n"


def ns_of(value: Any) -> int | None:
    """Microseconds, as they stand in the trace, to whole ns; None for what is no finite number.

    Floats come as text (see `ChromeTrace`), so that nothing of 1694128201435447.304 is lost.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        result = value * NS_PER_US
    else:
        try:
            exact = Decimal(str(value))
            if not exact.is_finite() or exact.adjusted() > 20:
                return None
            result = int((exact * NS_PER_US).to_integral_value())
        except (InvalidOperation, ValueError):
            return None
    return result if abs(result) < LARGEST_NS else None


class ChromeTrace:
    """The events of a trace, and what stands beside them.

    Iterate over it once: ``header`` is complete afterwards, and ``lost`` tells in words what of a file that was cut
    could not be read (None of a whole one). Numbers with a fraction come as text. Raises FormatError for what is no
    trace at all.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self._name = stream, name
        self._decoder = io.TextIOWrapper(
            io.BufferedReader(Unbroken(stream), CHUNK), "utf-8-sig", errors="replace", newline=""
        )
        self._json = json.JSONDecoder(parse_float=str, strict=False)
        self._buffer, self._at, self._is_over = "", 0, False
        self.header: dict[str, Any] = {}
        self.lost: str | None = None
        self.events = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        first = self._peek()
        if first not in ("[", "{"):
            raise FormatError(f"{self._name} is no Chrome trace: it holds neither an object nor a list of events.")
        self._at += 1
        try:
            yield from self._array() if first == "[" else self._object()
        except _CutError:
            lost = len(self._buffer) - self._at
            self.lost = f"{self._name} was cut: {self.events:,} whole events were read, {lost:,} characters are lost"

    def _object(self) -> Iterator[dict[str, Any]]:
        while (mark := self._peek()) != "}":
            if not mark:
                raise _CutError
            if mark == ",":
                self._at += 1
                continue
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                raise FormatError(f"{self._name} is no Chrome trace: what stands beside its events is no JSON object.")
            self._at += 1
            if key == EVENTS and self._peek() == "[":
                self._at += 1
                yield from self._array()
            else:
                self.header[key] = self._value()

    def _array(self) -> Iterator[dict[str, Any]]:
        while (mark := self._peek()) != "]":
            if not mark:
                raise _CutError
            if mark == ",":
                self._at += 1
                continue
            value = self._value()
            self.events += 1
            if isinstance(value, dict):
                yield value
        self._at += 1

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if len(self._buffer) - self._at > LARGEST_VALUE:
                    raise FormatError(f"{self._name} is damaged behind event {self.events:,}: {error.msg}.") from None
                if not self._more():
                    raise _CutError from None
                continue
            if end < len(self._buffer) or not self._more():  # a number may go on
                self._at = end
                return value

    def _more(self) -> bool:
        if self._is_over:
            return False
        text = self._decoder.read(CHUNK)
        self._is_over = not text
        self._buffer, self._at = self._buffer[self._at :] + text, 0
        return bool(text)


class _CutError(Exception):
    """The file ends inside a value."""


class Unbroken(io.RawIOBase):
    """A stream that ends where a compressed file was cut."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self.is_cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        try:
            data = self._stream.read1(len(target)) if hasattr(self._stream, "read1") else self._stream.read(len(target))
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.is_cut = True
            return 0
        target[: len(data)] = data
        return len(data)


def open_stream(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked if it is a gzip."""
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if is_packed else path.open("rb")  # type: ignore[return-value]
