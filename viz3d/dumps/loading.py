"""The bytes of a dump as plain values: a pickle that may name no class, or JSON."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 256 * 2**20
"""A larger file is no dump: one of 2,000 entries with frames has 3 MB."""


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
        return _PlainUnpickler(io.BytesIO(content)).load()
    except DumpError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        told = str(error) or type(error).__name__
        raise DumpError(f"it is cut or damaged ({len(content):,} bytes: {told})") from error
