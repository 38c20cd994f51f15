"""Log files as text, packed or not, and the run that one is named after."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TypeVar

from .chrome_json import Unbroken, open_stream
from .hostile import plain_name

T = TypeVar("T")


def run_of(path: Path) -> str:
    """Name of the run that a log is of: its file's, without what says that it is a log."""
    return re.sub(r"(\.(out|log|txt))?(\.gz)?$", "", plain_name(path)) or plain_name(path)


def read_text(path: Path, read: Callable[[TextIOWrapper], T]) -> tuple[T, bool]:
    """What ``read`` makes of a file's text, and whether it is packed and cut; bytes that are no text are replaced."""
    with closing(open_stream(path)) as stream:
        unbroken = Unbroken(stream)
        return read(TextIOWrapper(BufferedReader(unbroken), "utf-8", errors="replace")), unbroken.is_cut
