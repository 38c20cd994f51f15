"""A process that dies like a kill does at a named point: in a durable write, right behind it, or before a deletion."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megascope.collectors import keeper, manifest, writer
from megascope.collectors.durable import write_durably

EXIT_CODE = 9


@dataclass(frozen=True, slots=True)
class Point:
    """The ``number``-th durable write of a table or a manifest (before or after its rename), or deletion of a file.

    ``what`` is "before-rename", "after-rename" or "deletion".
    """

    what: str
    number: int


def die_at(point: Point) -> None:
    """Have this process end at the point, without any clean-up."""
    if point.what == "deletion":
        Path.unlink = _dying_unlink(point.number)  # type: ignore[method-assign]
        return
    dying = _dying_write(point)
    for module in (manifest, writer, keeper):
        module.write_durably = dying  # type: ignore[attr-defined]


def _dying_write(point: Point) -> Callable[..., int]:
    count = 0

    def write(path: Path, fill: Callable[[Path], None], **more: Any) -> int:
        nonlocal count
        count += 1
        if count < point.number:
            return write_durably(path, fill, **more)
        if point.what == "after-rename":
            write_durably(path, fill, **more)
        else:
            fill(path.with_name(path.name + ".tmp"))
        os._exit(EXIT_CODE)

    return write


def _dying_unlink(number: int) -> Callable[..., None]:
    count, unlink = 0, Path.unlink

    def dying(path: Path, missing_ok: bool = False) -> None:
        nonlocal count
        count += path.suffix in (".parquet", ".json")
        if count == number:
            os._exit(EXIT_CODE)
        unlink(path, missing_ok)

    return dying
