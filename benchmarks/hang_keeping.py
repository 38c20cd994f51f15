"""Copies of the stores of `trainer_hangs`, made while the job stands still: a verdict can be asked for again later."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

DUE_S = (10.0, 25.0)
"""So long after the fault a copy is made."""


@dataclass(slots=True)
class Keeper:
    """Keeps copies of one trial's store under ``folder`` (None: keeps nothing): at-10, at-25, end, ended."""

    folder: Path | None
    due_s: list[float] = field(default_factory=lambda: list(DUE_S))

    def wants_more(self) -> bool:
        """Whether the first copy is still to be made."""
        return self.folder is not None and len(self.due_s) == len(DUE_S)

    def look(self, root: Path, fault_ns: int | None) -> None:
        """Copy if it is time."""
        if fault_ns is not None and self.due_s and time.time_ns() - fault_ns >= self.due_s[0] * 1e9:
            self.keep(root, f"at-{self.due_s.pop(0):.0f}")

    def keep(self, root: Path, name: str) -> None:
        """Copy the store as it is now; the manifests first, for a file that they list stays for minutes."""
        if self.folder is None or not root.exists():
            return
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        with contextlib.suppress(shutil.Error, FileNotFoundError):  # temporary files come and go
            shutil.copytree(root / "_manifests", target / "_manifests")
        ignore = shutil.ignore_patterns("*.tmp", "_manifests", "catalog.duckdb*")
        with contextlib.suppress(shutil.Error):
            shutil.copytree(root, target, ignore=ignore, dirs_exist_ok=True)
