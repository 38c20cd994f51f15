"""Compaction: the many small files of many writers become few large sorted ones, while others read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from ...profiler.errors import MegascopeError
from ..manifests.files import DamagedFile, FileChecker
from ..manifests.listing import Listing
from ..manifests.manifest import FileEntry
from ..tables.schemas import TABLES, is_open_block
from ..writing.manifest_writer import GRACE_S
from .blocks import QUIET_S, Block, HeldBlock, held_block, replaceable
from .compaction_merge import Merge, StoppedError, free_bytes, is_keyed
from .compaction_plan import Limits, plan
from .sweeping import unwritable_sentence

_FAILURES = (OSError, duckdb.Error, pa.ArrowException, MegascopeError, RuntimeError)
"""A full disk; a damaged file, of which DuckDB may say so in words that are no text."""

Progress = Callable[[int, int], None]
ShouldStop = Callable[[], bool]


@dataclass(slots=True)
class CompactionReport:
    """What a compaction did. ``busy_blocks`` were held by another process; ``problems`` are sentences."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    busy_blocks: int = 0
    damaged: list[DamagedFile] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def say(self, problem: str) -> None:
        """Add a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def add(self, before: Sequence[FileEntry], after: Sequence[FileEntry]) -> None:
        """Count one merge."""
        self.files_before += len(before)
        self.files_after += len(after)
        self.rows += sum(entry.rows for entry in after)
        self.bytes_before += sum(entry.size_bytes for entry in before)
        self.bytes_after += sum(entry.size_bytes for entry in after)


def compact(
    root: Path,
    limits: Limits | None = None,
    *,
    grace_s: float = GRACE_S,
    quiet_s: float = QUIET_S,
    progress: Progress = lambda done, total: None,
    should_stop: ShouldStop = lambda: False,
) -> CompactionReport:
    """Compact a store, block by block. It may be written, read and compacted by others meanwhile, and be killed.

    A file that cannot be read is left where it is and reported. Where the disk is full, what was not merged stays as it
    was. ``should_stop`` is asked before each merge and between its pieces. Raises MegascopeError for a store of a newer
    schema.
    """
    chosen, report = limits or Limits(), CompactionReport()
    checker, listing = FileChecker(root), Listing(root)
    listing.refresh()
    blocks = _promising(listing, chosen, quiet_s)
    for number, block in enumerate(blocks):
        progress(number, len(blocks))
        if should_stop():
            break
        try:
            with held_block(root, block, listing, grace_s=grace_s, quiet_s=quiet_s) as held:
                if held is None:
                    report.busy_blocks += 1
                else:
                    _compact_block(root, held, chosen, checker, report, should_stop)
        except MegascopeError as error:
            report.say(str(error))
        except OSError as error:
            report.say(unwritable_sentence(root, error))
            break
    progress(len(blocks), len(blocks))
    report.damaged = sorted(checker.damaged.values(), key=lambda file: file.path)
    return report


def _promising(listing: Listing, limits: Limits, quiet_s: float) -> list[Block]:
    """Blocks in which there is something to merge, as far as can be seen without holding them."""
    free = replaceable(listing, quiet_s=quiet_s)
    by_block: dict[Block, list[FileEntry]] = {}
    for entry in listing.all_entries():
        if entry.path in free and not is_open_block(entry.block):
            by_block.setdefault((entry.run, entry.attempt, entry.block), []).append(entry)
    return sorted(block for block, entries in by_block.items() if plan(entries, limits))


def _compact_block(
    root: Path, held: HeldBlock, limits: Limits, checker: FileChecker, report: CompactionReport, should_stop: ShouldStop
) -> None:
    for planned in plan([entry for entry in held.usable if checker.is_sound(entry)], limits):
        with held.holding(planned) as batch:
            if len(batch) < len(planned) and len(batch) < max(2, limits.min_files):
                continue  # their writer is back
            problem = _merge(root, held, batch, report, should_stop)
            if problem and checker.check_thoroughly([root / entry.path for entry in batch]):
                sound = [entry for entry in batch if checker.is_sound(entry)]
                problem = _merge(root, held, sound, report, should_stop) if len(sound) >= limits.min_files else None
        if problem:
            report.say(problem)


def _merge(
    root: Path, held: HeldBlock, batch: Sequence[FileEntry], report: CompactionReport, should_stop: ShouldStop
) -> str | None:
    """Replace files by one, or by one for each length of windows; a sentence where that failed and nothing changed."""
    table, where = batch[0].table, f"{batch[0].table} of run {batch[0].run}, attempt {batch[0].attempt}"
    size = sum(entry.size_bytes for entry in batch)
    if free_bytes(root) < 2 * size:
        return f"{len(batch)} files of {where} were not merged: the disk has less than {2 * size} bytes left."
    if should_stop():
        return None
    try:
        with Merge(root, batch, held.keeper.spill, should_stop) as merge:
            made = [held.keeper.make(table, partial(merge.write, level=level)) for level in merge.levels()]
        expected = sum(entry.rows for entry in batch)
        if sum(entry.rows for entry in made) != expected and not is_keyed(TABLES[table]):
            raise OSError(f"they have other than {expected} rows")
        held.keeper.replace(batch)
        held.keeper.commit(held.listed)
    except StoppedError:
        held.keeper.rollback()
        return None
    except _FAILURES as error:
        held.keeper.rollback()
        reason = " ".join(str(error).split())[:200]
        return f"{len(batch)} files of {where} were not merged ({reason}): they stay as they are."
    report.add(batch, made)
    return None
