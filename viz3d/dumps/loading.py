"""The bytes of a dump as plain values: a pickle that may name no class, or JSON."""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 256 * 2**20
"""A larger file is no dump: one of 2,000 entries with frames has 3 MB."""

MOST_VALUES_A_BYTE = 16
"""A pickle names a value again in two bytes, so that a small one can stand for any number of values."""

_FIXED = {
    **dict.fromkeys(b".(N\x88\x89]})t\x85\x86\x87aesu\x94", 0),
    **dict.fromkeys(b"\x80Khq", 1),
    **dict.fromkeys(b"M", 2),
    **dict.fromkeys(b"Jjr", 4),
    **dict.fromkeys(b"G\x95", 8),
}
"""Operations of a pickle of plain values, and the bytes that follow each."""

_COUNTED = {ord("\x8a"): 1, ord("\x8c"): 1, ord("X"): 4}
"""Those followed by a length of so many bytes, and then by as many as it says."""

_CLASSES = frozenset(b"ci\x93")
_KEEPS_AT = ord("r")
_STOP = ord(".")

FREE_PLACES = 2**16
"""Room for so many kept values is nothing."""

_MANY = re.compile(
    b"|".join(
        [
            *(re.escape(bytes([one])) + b"." * follows for one, follows in _FIXED.items() if one not in b".r"),
            rb"r..\x00\x00",  # a place below `FREE_PLACES`
        ]
    ).join([b"(?:", b")++"]),
    re.DOTALL,
)
"""Operations of a fixed length one after the other, but for the last of all."""

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
    value = _json(content) if content.lstrip()[:1] in (b"{", b"[") else _pickle(content)
    if not isinstance(value, dict) or "version" not in value:
        raise DumpError("it has no version, so it is no Flight Recorder dump")
    return value


def _json(content: bytes) -> Any:
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
    would be worth gigabytes. Classes are left to the unpickler, which stops there and says which one.
    """
    at, size = 0, len(content)
    while True:
        many = _MANY.match(content, at)
        at = at if many is None else many.end()
        operation = content[at]
        follows = _FIXED.get(operation)
        if follows is None:
            if operation in _CLASSES:
                return
            width = _COUNTED.get(operation)
            if width is None:
                raise DumpError(f"it is damaged ({size:,} bytes: operation {operation:#04x} at {at:,} is of no dump)")
            follows = width + int.from_bytes(content[at + 1 : at + 1 + width], "little")
        elif operation == _KEEPS_AT and int.from_bytes(content[at + 1 : at + 5], "little") > max(size, FREE_PLACES):
            raise DumpError(f"it is damaged ({size:,} bytes: it would keep more values than it has)")
        elif operation == _STOP:
            return
        at += 1 + follows


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
