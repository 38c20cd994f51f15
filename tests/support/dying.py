"""A process that dies like a kill does at a named point, or meets an error there: in a durable write, right behind its
rename, or before a deletion."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megascope.collectors.manifests import manifest
from megascope.collectors.storage import durable
from megascope.collectors.upkeep import keeper
from megascope.collectors.writing import merging, writer

EXIT_CODE = 9

_place_durably = durable.place_durably


@dataclass(frozen=True, slots=True)
class Point:
    """The ``number``-th durable write of a table or a manifest (before or after its rename), or deletion of a file.

    ``what`` is "before-rename", "after-rename" or "deletion"; with "large-" in front of the first two, only the merges
    of a writer's large files count. ``how``: "exit" dies without any clean-up, "error" raises OSError there, once, and
    "interrupt" KeyboardInterrupt.
    """

    what: str
    number: int
    how: str = "exit"

    def happen(self) -> None:
        """Die, or raise."""
        if self.how == "error":
            raise OSError(5, "Input/output error")
        if self.how == "interrupt":
            raise KeyboardInterrupt
        os._exit(EXIT_CODE)


def die_at(point: Point) -> None:
    """Have this process end (or fail) at the point."""
    if point.what == "deletion":
        Path.unlink = _dying_unlink(point)  # type: ignore[method-assign]
        return
    counter = _Counter(point)
    merging.place_durably = counter.place  # type: ignore[attr-defined]
    if not point.what.startswith("large-"):
        for module in (manifest, writer, keeper):
            module.write_durably = counter.write  # type: ignore[attr-defined]


class _Counter:
    """Counts durable writes. What is raised after a rename is raised as the sync of the folder would raise it."""

    def __init__(self, point: Point) -> None:
        self._point, self._count, self._after = point, 0, point.what.endswith("after-rename")

    def _is_due(self) -> bool:
        self._count += 1
        return self._count == self._point.number

    def write(self, path: Path, fill: Callable[[Path], None], **more: Any) -> int:
        is_due, size = self._is_due(), 0
        if is_due and not self._after:
            temporary = path.with_name(path.name + ".tmp")
            try:
                fill(temporary)
                self._point.happen()
            finally:
                temporary.unlink(missing_ok=True)
        size = durable.write_durably(path, fill, **more)
        if is_due:
            self._point.happen()
        return size

    def place(self, temporary: Path, path: Path) -> None:
        is_due = self._is_due()
        if is_due and not self._after:
            self._point.happen()
        _place_durably(temporary, path)
        if is_due:
            self._point.happen()


def _dying_unlink(point: Point) -> Callable[..., None]:
    count, unlink = 0, Path.unlink

    def dying(path: Path, missing_ok: bool = False) -> None:
        nonlocal count
        count += path.suffix in (".parquet", ".json")
        if count == point.number and path.suffix in (".parquet", ".json"):
            point.happen()
        unlink(path, missing_ok)

    return dying
