"""Reads Chrome traces as a stream: one event at a time, whatever the file's size, up to where it was cut."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
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

_LONGEST_WORD = 12
"""Characters of the longest thing that the decoder takes in one: ``-Infinity`` or two escapes of a pair."""

_NEXT = re.compile(r',\s*(\{\s*")')
"""Where an event may begin."""

_LONGEST_GAP = 200
"""Characters between the comma and the first name of an event, at the most."""


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


class NoTraceError(FormatError):
    """A file that is no Chrome trace at all."""


class ChromeTrace:
    """The events of a trace, and what stands beside them.

    Iterate over it once: ``header`` is complete afterwards, ``lost`` tells in words what of a file that was cut or
    damaged could not be read (None of a whole one), and ``is_trace`` whether there was a list of events. Numbers with a
    fraction come as text. Raises NoTraceError for what is no trace at all, FormatError for a header that is damaged.
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
        self.damaged = 0
        self.is_trace = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        first = self._peek()
        if not first:
            raise NoTraceError(f"{self._name} is no Chrome trace: it is empty.")
        if first not in ("[", "{"):
            raise NoTraceError(f"{self._name} is no Chrome trace: it holds neither an object nor a list of events.")
        self._at += 1
        told = []
        try:
            yield from self._array() if first == "[" else self._object()
            if self.is_trace and self._peek():
                raise _DamageError("more stands behind the end")
        except _CutError:
            lost = len(self._buffer) - self._at
            told.append(f"was cut: {self.events:,} whole events were read, {lost:,} characters are lost")
        except _DamageError as error:
            if not self.is_trace:
                raise FormatError(f"{self._name} is damaged in its header: {error}.") from None
            told.append(f"is damaged behind event {self.events:,}, and nothing after it can be read")
        if self.damaged:
            where = "1 place" if self.damaged == 1 else f"{self.damaged:,} places"
            told.append(f"is damaged in {where}: what stands there is left out, and the rest was read")
        if told:
            self.lost = f"{self._name} {'; it '.join(told)}"

    def _object(self) -> Iterator[dict[str, Any]]:
        while (mark := self._peek()) != "}":
            if not mark:
                raise _CutError
            if mark == ",":
                self._at += 1
                continue
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                self._no_object()
            self._at += 1
            if key == EVENTS and self._peek() == "[":
                self._at += 1
                yield from self._array()
            else:
                self.header[key] = self._value()
        self._at += 1

    def _no_object(self) -> None:
        if self.is_trace:
            raise _DamageError("what stands behind the events is no JSON object")
        if not self._peek():
            raise _CutError
        raise NoTraceError(f"{self._name} is no Chrome trace: what stands beside its events is no JSON object.")

    def _array(self) -> Iterator[dict[str, Any]]:
        self.is_trace = True
        while (mark := self._peek()) != "]":
            if not mark:
                raise _CutError
            if mark == ",":
                self._at += 1
                continue
            try:
                value = self._value()
            except _DamageError:
                value = self._next_event()
                self.damaged += 1
            self.events += 1
            if isinstance(value, dict):
                yield value
        self._at += 1

    def _next_event(self) -> dict[str, Any]:
        """The first whole event behind the damage at the present place. _DamageError or _CutError: there is none."""
        start, is_cut = self._at + 1, False
        while True:
            found = _NEXT.search(self._buffer, start)
            if found is None:
                self._at, start = max(start, len(self._buffer) - _LONGEST_GAP), 0
                if not self._more():
                    raise _CutError if is_cut else _DamageError("no event follows")
                continue
            self._at = found.start(1)
            try:
                value = self._value()
            except (_DamageError, _CutError) as error:
                start, is_cut = self._at + 1, is_cut or isinstance(error, _CutError)
                continue
            if isinstance(value, dict) and "ph" in value:
                return value
            start = self._at

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
        """The next value. _CutError where the file ends inside it, _DamageError where it is none."""
        self._peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if not self._may_go_on(error):
                    raise _DamageError(error.msg) from None
                if not self._more():
                    raise _CutError from None
                continue
            except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
                raise _DamageError(type(error).__name__) from None
            if end < len(self._buffer) or not self._more():  # a number may go on
                self._at = end
                return value

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether what was read so far may be the beginning of a value."""
        length = len(self._buffer)
        if length - self._at > LARGEST_VALUE:
            return False
        return error.pos >= length - _LONGEST_WORD or error.msg.startswith("Unterminated string")

    def _more(self) -> bool:
        """Read on: as much as was not yet understood, so that a long value is not begun a thousand times."""
        if self._is_over:
            return False
        text = self._decoder.read(max(CHUNK, len(self._buffer) - self._at))
        self._is_over = not text
        self._buffer, self._at = self._buffer[self._at :] + text, 0
        return bool(text)


class _CutError(Exception):
    """The file ends inside a value."""


class _DamageError(Exception):
    """What stands here is no value, and would be none if the file went on."""


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
        except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError):
            self.is_cut = True
            return 0
        target[: len(data)] = data
        return len(data)


def open_stream(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked if it is a gzip."""
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if is_packed else path.open("rb")  # type: ignore[return-value]
