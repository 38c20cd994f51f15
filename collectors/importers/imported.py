"""What an importer hands over: the run as it understood it, and what it has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

Progress = Callable[[int, int], None]
"""Takes what is done and the total, in any unit."""


class Format(StrEnum):
    """What can be imported."""

    BYTEDANCE = "bytedance"
    KINETO = "kineto"
    MEGATRON_LOG = "megatron-log"
    MEGATRON_JSON = "megatron-json"
    DEEPSPEED_LOG = "deepspeed-log"


@dataclass(frozen=True, slots=True)
class Imported:
    """A run whose rows have all been handed over.

    ``layout`` maps axis to size, the outermost first. ``configuration`` holds what is known of the job; under the key
    ``recorded`` stands which of its ranks the origin recorded, where it left some out on purpose. ``notes`` are
    sentences for whoever imports it; ``rejected`` counts spans whose duration cannot be true, which
    stay without it, ``dropped`` those left out because their start cannot. ``exit_reason`` is how the job ended, None
    where nobody told: that a recording stops does not mean that the job did.
    """

    layout: dict[str, int]
    world_size: int | None
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    start_ns: int | None = None
    end_ns: int | None = None
    exit_reason: str | None = None
    notes: tuple[str, ...] = ()
    rejected: int = 0
    dropped: int = 0


class Rows(Protocol):
    """Takes the rows of tables, without run and attempt; of ``events`` it also makes rollups."""

    def add(self, table: str, rows: pa.Table) -> None:
        """Stage rows. Columns of ``ranks`` that the schema does not have are coordinates."""


class Source(Protocol):
    """One run in files of one format."""

    others: list[str]
    """Names of files that lay beside those of the format, and were left out; complete when all was read."""

    @property
    def run(self) -> str:
        """The name that the files suggest for the run."""

    def read(self, rows: Rows, progress: Progress) -> Imported:
        """Hand over all rows. Raises MegascopeError for what cannot be a trace of this format."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an import came to."""

    store: Path
    run: str
    format: Format
    ranks: int
    world_size: int | None
    steps: int
    spans: int
    rejected: int
    dropped: int
    notes: tuple[str, ...]
    seconds: float


def no_progress(done: int, total: int) -> None:
    """Shows nothing."""


def tables_of(report: Report) -> Iterator[tuple[str, str]]:
    """Label and value of what a reader wants to know first."""
    of = "" if report.world_size in (None, report.ranks) else f" of {report.world_size:,}"
    yield "run", report.run
    yield "format", str(report.format)
    yield "ranks", f"{report.ranks:,}{of}"
    yield "steps", f"{report.steps:,}"
    yield "spans", f"{report.spans:,}"
    if report.rejected:
        yield "rejected", f"{report.rejected:,} spans whose duration cannot be true"
    if report.dropped:
        yield "dropped", f"{report.dropped:,} spans whose start cannot be true"
