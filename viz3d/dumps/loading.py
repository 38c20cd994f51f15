"""The bytes of a dump as plain values: a pickle that may name no class, or JSON."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 64 * 2**20
"""A larger file is no dump: one of 2,000 entries with frames has 3 MB."""

MOST_HOLDERS = 2**22
"""So many lists, dicts and tuples at most: each takes a byte in a file and a hundred in memory."""

MOST_DIGITS = 9
"""Bytes of a whole number. Longer ones can be made to collide as keys by the thousand."""

MOST_VALUES_A_BYTE = 16
"""A pickle names a value again in two bytes, so that a small one can stand for any number of values."""

_PLAIN = {**dict.fromkeys(b"N\x88\x89", 0), **dict.fromkeys(b"Kh", 1), **dict.fromkeys(b"M", 2),
          **dict.fromkeys(b"Jj", 4), **dict.fromkeys(b"G", 8)}  # fmt: skip
"""Operations of a pickle that give a plain value, or one that is kept, and the bytes that follow each."""

_FRAMES = {ord("\x80"): 1, ord("\x95"): 8}
"""Those that give nothing."""

_OTHERS = b"]}aesu("
"""Those on lists and dicts; nothing follows them."""

_COUNTED = {ord("\x8a"): 1, ord("\x8c"): 1, ord("X"): 4}
"""Those of a plain value followed by a length of so many bytes, and then by as many as it says."""

_KEEPS = {ord("\x94"): 0, ord("q"): 1, ord("r"): 4}
_TUPLES = {ord(")"): 0, ord("\x85"): 1, ord("\x86"): 2, ord("\x87"): 3, ord("t"): None}
"""Those that make a tuple, and of how many values; None: of all since the mark."""

_CLASSES = frozenset(b"ci\x93")
_LONG, _STOP = ord("\x8a"), ord(".")

ENOUGH = 8
"""Operations that give plain values are counted up to here, where none of them can be a tuple."""

FREE_PLACES = 2**16
"""Room for so many kept values is nothing."""


def _any_of(operations: Mapping[int, int]) -> bytes:
    return b"|".join(re.escape(bytes([one])) + b"." * follows for one, follows in operations.items())


_GIVES = _any_of(_PLAIN | _FRAMES)
_ONE = re.compile(_GIVES, re.DOTALL)
_RUN = re.compile(b"(?:(?:%b)*+[%b]++)*+((?:%b)*+)" % (_GIVES, re.escape(_OTHERS), _GIVES), re.DOTALL)
"""Operations of a fixed length one after the other; the group has the plain ones at the end."""

_HOLDERS = (dict, list, tuple)


class DumpError(Exception):
    """A file that holds no dump; the text says why, without the file's name."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dicts: a dump needs no class, and a class could run anything."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise DumpError(f"it asks for {module_name}.{global_name}, and a dump holds plain values only: it was not read")

    def persistent_load(self, pid: object) -> NoReturn:
        raise DumpError("it refers to something outside itself, and a dump does not: it was not read")


def load(path: Path) -> dict[str, Any]:
    """The top level of a dump. DumpError where the file is empty, cut, damaged, too large or something else."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise DumpError(f"it has {size / 2**20:,.0f} MiB, and a dump has a few")
        content = path.read_bytes()
    except OSError as error:
        raise DumpError(f"it cannot be read ({error.strerror or error})") from error
    if not content:
        raise DumpError("it is empty: the rank began to write it and did not go on, or had no room")
    value = _json(content) if _looks_like_json(content) else _pickle(content)
    if not isinstance(value, dict) or "version" not in value:
        raise DumpError("it has no version, so it is no Flight Recorder dump")
    return value


def is_json(path: Path) -> bool:
    """Whether a file that `load` reads is JSON, whatever it is called."""
    with path.open("rb") as file:
        return _looks_like_json(file.read(256))


def _looks_like_json(content: bytes) -> bool:
    return content.lstrip()[:1] in (b"{", b"[")


def _json(content: bytes) -> Any:
    if content.count(b"[") + content.count(b"{") > MOST_HOLDERS:
        raise DumpError(f"it holds more than {MOST_HOLDERS:,} lists, as no dump does: it was not read")
    try:
        return json.loads(content)
    except (ValueError, RecursionError, MemoryError) as error:
        raise DumpError(f"it is cut or damaged JSON ({len(content):,} bytes: {error})") from error


def _pickle(content: bytes) -> Any:
    try:
        _check_operations(content)
        value = _PlainUnpickler(io.BytesIO(content)).load()
    except DumpError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        told = str(error) or type(error).__name__
        raise DumpError(f"it is cut or damaged ({len(content):,} bytes: {told})") from error
    _check_extent(value, MOST_VALUES_A_BYTE * len(content))
    return value


def _check_operations(content: bytes) -> None:
    """Refuse operations that plain values do not need, before any is done; IndexError where it is cut.

    The unpickler makes room for the place that is given with a value to be kept, before it reads on: one flipped bit
    would be worth gigabytes. A key is hashed as it is read, and the hash of a tuple of tuples has no bound, neither in
    time nor in depth. Classes are left to the unpickler, which stops there and says which one.
    """
    at, size, read = 0, len(content), _Read()
    if content.count(b"}") + content.count(b"]") > MOST_HOLDERS:
        raise DumpError(f"it holds more than {MOST_HOLDERS:,} lists, as no dump does: it was not read")
    while True:
        run = _RUN.match(content, at)
        assert run is not None
        if run.end() > at:
            if run.start(1) > at:
                read.begins(content[run.start(1) - 1])
            read.gives(run.group(1))
            at = run.end()
        operation = content[at]
        follows = 0
        if operation in _COUNTED:
            width = _COUNTED[operation]
            length = int.from_bytes(content[at + 1 : at + 1 + width], "little")
            if operation == _LONG and length > MOST_DIGITS:
                raise DumpError(f"it is damaged ({size:,} bytes: a number at {at:,} has {length} bytes)")
            follows = width + length
            read.gives(b"N")
        elif operation in _KEEPS:
            follows = _KEEPS[operation]
            place = int.from_bytes(content[at + 1 : at + 1 + follows], "little") if follows else len(read.kept)
            if place > max(size, FREE_PLACES):
                raise DumpError(f"it is damaged ({size:,} bytes: it would keep more values than it has)")
            read.keeps(place, at, at + 1 + follows)
        elif operation in _TUPLES:
            read.makes_tuple(_TUPLES[operation])
        elif operation in _CLASSES or operation == _STOP:
            return
        elif operation in _PLAIN or operation in _FRAMES:
            raise IndexError("it ends within an operation")
        else:
            raise DumpError(f"it is damaged ({size:,} bytes: operation {operation:#04x} at {at:,} is of no dump)")
        at += 1 + follows


class _Read:
    """What is known of the newest values of a pickle while its operations are checked one by one."""

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self._tuples: set[int] = set()
        self._kept_to = -1
        self._made = 0
        self._plain = 0
        self._is_after_mark = self._is_tuple = False

    def begins(self, operation: int) -> None:
        """An operation on lists or dicts."""
        self._plain, self._is_after_mark, self._is_tuple = 0, operation == ord("("), False

    def gives(self, operations: bytes) -> None:
        """Plain values, or kept ones: a tuple among them is none."""
        told = _ONE.finditer(operations)
        for each in told if self._tuples else islice(told, ENOUGH):
            one = each.group()
            if one[:1] in b"hj" and int.from_bytes(one[1:], "little") in self._tuples:
                self._plain, self._is_after_mark = 0, False
            elif one[0] not in _FRAMES:
                self._plain += 1
        self._is_tuple = self._is_tuple and not operations

    def keeps(self, place: int, at: int, end: int) -> None:
        """The newest value is kept, by an operation that stands from ``at`` to ``end``: once, as picklers do."""
        if at == self._kept_to:
            raise DumpError(f"it is damaged: it keeps one value twice at {at:,}")
        self._kept_to = end
        self.kept.add(place)
        if len(self.kept) > MOST_HOLDERS:
            raise DumpError(f"it keeps more than {MOST_HOLDERS:,} values, as no dump does: it was not read")
        (self._tuples.add if self._is_tuple else self._tuples.discard)(place)

    def makes_tuple(self, values: int | None) -> None:
        """A tuple of the newest values, which have to be plain."""
        if not (self._is_after_mark if values is None else self._plain >= values):
            raise DumpError("it has tuples of other things than numbers and text, as no dump does: it was not read")
        self._made += 1
        if self._made > MOST_HOLDERS:
            raise DumpError(f"it holds more than {MOST_HOLDERS:,} tuples, as no dump does: it was not read")
        self._plain, self._is_after_mark, self._is_tuple = 0, False, True


def _check_extent(value: object, most: int) -> None:
    """Refuse values that hold the same ones so often, or themselves, that reading them all would take for ever."""
    within = [value] if isinstance(value, _HOLDERS) else []
    while within:
        one = within.pop()
        most -= len(one)
        if most < 0:
            raise DumpError("it holds the same values over and over, as no dump does: it was not read")
        held = one.values() if isinstance(one, dict) else one
        within += [each for each in held if isinstance(each, _HOLDERS)]
