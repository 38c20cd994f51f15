"""Retention: deleting the oldest raw data of a store, remembering what was deleted, while others read and write."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ...profiler.errors import MegascopeError
from ..manifests.files import FileChecker
from ..manifests.listing import Listing
from ..manifests.manifest import FileEntry, Pruned
from ..storage.object_files import open_object
from ..storage.object_path import ObjectPath
from ..writing.manifest_writer import GRACE_S
from .blocks import QUIET_S, Block, HeldBlock, held_block, replaceable
from .compaction_plan import moment_ns
from .retention_beside import beside_tables, delete_beside, is_beside, is_quiet, pruned_beside
from .retention_plan import Retention, choose
from .sweeping import unwritable_sentence

_STEP_COLUMNS = ("step", "first_step")


@dataclass(slots=True)
class PruneReport:
    """What was deleted, or would be. ``being_written`` files are still their writer's; ``problems`` are sentences.

    ``size_bytes`` is what readers see of the store afterwards.
    """

    pruned: list[Pruned] = field(default_factory=list)
    size_bytes: int = 0
    being_written: int = 0
    busy_blocks: int = 0
    problems: list[str] = field(default_factory=list)

    def say(self, problem: str) -> None:
        """Add a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)


def prune(
    root: Path,
    retention: Retention,
    *,
    dry_run: bool = False,
    grace_s: float = GRACE_S,
    quiet_s: float = QUIET_S,
    now_ns: int | None = None,
) -> PruneReport:
    """Delete what is beyond the limits. Files leave the disk after the grace; damaged ones are left where they are.

    Files that a living writer has not sealed yet stay, however old the rest of the attempt is. Raises MegascopeError
    for a store of a newer schema.
    """
    listing, checker, report = Listing(root), FileChecker(root), PruneReport()
    listing.refresh()
    beside = beside_tables(root)
    chosen = choose([*listing.all_entries(), *beside], retention, time.time_ns() if now_ns is None else now_ns)
    _prune_beside(root, filter(is_beside, chosen), report, quiet_s=quiet_s, dry_run=dry_run)
    chosen = [entry for entry in chosen if not is_beside(entry) and checker.is_sound(entry)]
    if dry_run:
        free = replaceable(listing, quiet_s=quiet_s)
        found = [_pruned(root, entry) for entry in chosen if entry.path in free]
        report.pruned += found
        report.being_written += len(chosen) - len(found)
    else:
        _prune_blocks(root, chosen, listing, report, grace_s=grace_s, quiet_s=quiet_s)
    listing.refresh()
    left = beside if dry_run else beside_tables(root)
    report.size_bytes = sum(entry.size_bytes for entry in (*listing.all_entries(), *left))
    if dry_run:
        report.size_bytes -= sum(each.size_bytes for each in report.pruned)
    report.pruned = _together(report.pruned)
    return report


def _prune_beside(
    root: Path, chosen: Iterable[FileEntry], report: PruneReport, *, quiet_s: float, dry_run: bool
) -> None:
    for entry in chosen:
        if not is_quiet(entry, quiet_s):
            report.being_written += 1
        elif dry_run:
            report.pruned.append(pruned_beside(entry))
        else:
            try:
                report.pruned += delete_beside(root, [entry])
            except OSError as error:
                report.say(unwritable_sentence(root, error))


def _prune_blocks(
    root: Path, chosen: Sequence[FileEntry], listing: Listing, report: PruneReport, *, grace_s: float, quiet_s: float
) -> None:
    by_block: dict[Block, list[FileEntry]] = defaultdict(list)
    for entry in chosen:
        by_block[entry.run, entry.attempt, entry.block].append(entry)
    for block, files in sorted(by_block.items()):
        try:
            with held_block(root, block, listing, grace_s=grace_s, quiet_s=quiet_s) as held:
                if held is None:
                    report.busy_blocks += 1
                else:
                    _prune_block(root, held, files, report)
        except MegascopeError as error:
            report.say(str(error))
        except OSError as error:
            report.say(unwritable_sentence(root, error))
            break


def _prune_block(root: Path, held: HeldBlock, files: Sequence[FileEntry], report: PruneReport) -> None:
    usable = {entry.path for entry in held.usable}
    each = {entry.path: _pruned(root, entry) for entry in files if entry.path in usable}
    with held.holding(entry for entry in files if entry.path in usable) as entries:
        report.being_written += len(files) - len(entries)
        if not entries:
            return
        pruned = _together(each[entry.path] for entry in entries)
        held.keeper.replace(entries)
        held.keeper.prune(pruned)
        try:
            held.keeper.commit(held.listed)
        except OSError:
            held.keeper.rollback()
            raise
        report.pruned += pruned


def _pruned(root: Path, entry: FileEntry) -> Pruned:
    until_ns = entry.max_ns if entry.max_ns is not None else moment_ns(entry) or None
    step = _last_step(root / entry.path, entry.level)
    return Pruned(entry.run, entry.attempt, entry.table, entry.level, 1, entry.rows, entry.size_bytes, until_ns, step)


def _last_step(path: Path, level: int | None) -> int | None:
    """The last step in a file, from its footer; None where it has none."""
    try:
        metadata = pq.read_metadata(open_object(path) if isinstance(path, ObjectPath) else path)
    except (OSError, pa.ArrowException):
        return None
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    index = next((names.index(name) for name in _STEP_COLUMNS if name in names), None)
    if index is None:
        return None
    groups = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
    steps = [found.max for found in groups if found is not None and found.has_min_max]
    return max(steps) + (level or 1) - 1 if steps else None


def _together(pruned: Iterable[Pruned]) -> list[Pruned]:
    found: dict[tuple[str, int, str, int | None], Pruned] = {}
    for each in pruned:
        key = (each.run, each.attempt, each.table, each.level)
        found[key] = found[key] + each if key in found else each
    return [found[key] for key in sorted(found, key=lambda key: (*key[:3], key[3] or 0))]


def pruned_sentence(pruned: Pruned) -> str:
    """What a page or a verdict says in place of "no data"."""
    names = {
        "events": "raw spans",
        "rank_windows": f"windows of {pruned.level} steps",
        "hardware_events": "events of hardware",
    }
    what = names.get(pruned.table, pruned.table)
    until = "" if pruned.last_step is None else f" up to step {pruned.last_step}"
    moment = "" if pruned.until_ns is None else f" ({datetime.fromtimestamp(pruned.until_ns / 1e9, UTC):%F %T} UTC)"
    return f"{pruned.rows} {what}{until}{moment} were pruned to keep the store small."
