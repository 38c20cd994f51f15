"""Values of files that nobody vouches for: whole numbers that fit, and names that can be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INT32 = 1 << 31
INT64 = 1 << 63

_MOST_DIGITS = 20


def whole(value: Any, limit: int = INT64) -> int | None:
    """A number from 0 to below ``limit``, also written as text; None for anything else.

    Text counts if it is ASCII digits: `str.isdigit` takes a superscript for one, and `int` refuses 5,000 of them.
    """
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value.lstrip("0")) <= _MOST_DIGITS):
            return None
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


def printable(text: str) -> str:
    """The text as any terminal and any encoding takes it: names of files need not be UTF-8, nor of one line."""
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "_" for one in readable)


def plain_name(path: Path | str) -> str:
    """A file's own name, printable."""
    return printable(Path(path).name)
