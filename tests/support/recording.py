"""What a recorder wrote, read back; and settings for one on a spool of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megascope.profiler.box.box import BoxLayout, BoxReader
from megascope.profiler.box.metadata import read_metadata
from megascope.profiler.opening import RecorderSettings
from megascope.profiler.recorder import Recorder

SMALL = BoxLayout(slots=32, rings=4, ring_records=2048, groups=16)


@dataclass
class Recorded:
    """One recorder and its files."""

    recorder: Recorder
    folder: Path

    @property
    def box(self) -> Path:
        return self.folder / "rank-00000.box"

    def spans(self, ring: int = 0) -> np.ndarray[Any, Any]:
        reader = BoxReader(self.box)
        try:
            return reader.read_ring(ring, 0).records
        finally:
            reader.close()

    def metadata(self) -> list[dict[str, Any]]:
        """All lines: of the job, then of its steps."""
        paths = [self.box.with_suffix(".meta.jsonl"), self.box.with_suffix(".steps.jsonl")]
        return [line for path in paths for _, line in read_metadata(path)]


def settings(spool: Path, **changes: Any) -> RecorderSettings:
    values: dict[str, Any] = {"run": "run", "attempt": 0, "rank": 0, "world_size": 1, "spool": spool, "layout": SMALL}
    return RecorderSettings(**{**values, **changes})


def golden(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded
