"""What keeps a store in shape, in an order that is right at any moment: sweep, prune, compact, prune, sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ...profiler.errors import MegascopeError
from ..clocks.update import update_clock_offsets
from ..manifests.listing import Listing
from ..manifests.manifest import Pruned, manifest_folders
from ..manifests.marker import check_marker
from ..reading.store import CATALOG, Store
from ..storage.quota import size_text
from ..writing.manifest_writer import GRACE_S
from .blocks import QUIET_S
from .compaction import CompactionReport, compact
from .compaction_plan import Limits
from .retention import PruneReport, prune
from .retention_plan import Retention
from .sweeping import sweep, unwritable_sentence

_COUNTS = ("files_before", "files_after", "rows", "bytes_before", "bytes_after")


@dataclass(slots=True)
class UpkeepReport:
    """What was done; ``size_bytes`` is what readers see of the store afterwards, ``problems`` are sentences.

    ``waiting_files`` were replaced and are deleted by the first run after their grace. ``busy_blocks`` were held by
    another process.
    """

    root: Path
    dry_run: bool
    compacted: CompactionReport = field(default_factory=CompactionReport)
    pruned: list[Pruned] = field(default_factory=list)
    size_bytes: int = 0
    being_written: int = 0
    busy_blocks: int = 0
    deleted_files: int = 0
    waiting_files: int = 0
    problems: list[str] = field(default_factory=list)

    def say(self, problem: str) -> None:
        """Add a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def take(self, report: PruneReport) -> None:
        """Add what one round of pruning did; the sizes are those after the last."""
        self.pruned += report.pruned
        for problem in report.problems:
            self.say(problem)
        self.size_bytes, self.being_written = report.size_bytes, report.being_written
        self.busy_blocks = max(self.busy_blocks, report.busy_blocks)

    def delete_replaced(self, grace_s: float) -> None:
        """Delete what was replaced longer ago than the grace."""
        try:
            self.deleted_files += sweep(self.root, grace_s, say=self.say)
        except OSError as error:
            self.say(unwritable_sentence(self.root, error))

    def as_json(self) -> dict[str, Any]:
        """For scripts: counts, bytes, and what was pruned."""
        damaged = [{"path": str(file.path), "reason": file.reason} for file in self.compacted.damaged]
        return {
            "store": str(self.root),
            "dry_run": self.dry_run,
            "size_bytes": self.size_bytes,
            "compacted": {name: getattr(self.compacted, name) for name in _COUNTS},
            "pruned": [asdict(each) for each in self.pruned],
            "deleted_files": self.deleted_files,
            "being_written": self.being_written,
            "waiting_files": self.waiting_files,
            "busy_blocks": self.busy_blocks,
            "damaged": damaged,
            "problems": self.problems,
        }


def upkeep(
    root: Path,
    retention: Retention,
    limits: Limits | None = None,
    *,
    compacts: bool = True,
    dry_run: bool = False,
    grace_s: float = GRACE_S,
    quiet_s: float = QUIET_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> UpkeepReport:
    """Tidy a store up. Pruning comes before compaction, to make room for it, and again behind it, for the windows.

    Raises MegascopeError for a folder that is no store and for a store of a newer schema. Where nothing can be written
    the report says so.
    """
    if not check_marker(root) and next(manifest_folders(root), None) is None:
        raise MegascopeError(f"{root} is no store of megascope (it has no manifests): check the path.")
    report = UpkeepReport(root, dry_run)
    if not dry_run:
        report.delete_replaced(grace_s)
        _align_clocks(root, report)
    report.take(prune(root, retention, dry_run=dry_run, grace_s=grace_s, quiet_s=quiet_s))
    if compacts and not dry_run:
        report.compacted = compact(root, limits, grace_s=grace_s, quiet_s=quiet_s, progress=progress)
        for problem in report.compacted.problems:
            report.say(problem)
        report.busy_blocks = max(report.busy_blocks, report.compacted.busy_blocks)
        report.take(prune(root, retention, grace_s=grace_s, quiet_s=quiet_s))
    if not dry_run:
        _refresh_catalog(root, report)
        report.delete_replaced(grace_s)  # what was replaced of writers that are gone begins its grace
        if grace_s <= 0:
            report.delete_replaced(grace_s)  # and has none
        report.waiting_files = _waiting_files(root)
    if retention.size_bytes is not None and report.size_bytes > retention.size_bytes:
        report.problems.append(
            f"The store {root} still has {size_text(report.size_bytes)}, more than {size_text(retention.size_bytes)}: "
            "what is left is being written, is held by another process, or belongs to tables that are kept."
        )
    return report


def _waiting_files(root: Path) -> int:
    listing = Listing(root)
    listing.refresh()
    retired = {root / each.path for manifest in listing.manifests().values() for each in manifest.retired}
    return sum(1 for path in retired | {root / path for path in listing.replaced} if path.exists())


def _align_clocks(root: Path, report: UpkeepReport) -> None:
    """Note how the hosts' clocks differ while the spans that tell it are there, where no agent has."""
    try:
        update_clock_offsets(root)
    except (MegascopeError, OSError, duckdb.Error, pa.ArrowException, ValueError) as error:
        report.say(f"The clocks of the hosts in {root} were not aligned ({error}): run prune again.")


def _refresh_catalog(root: Path, report: UpkeepReport) -> None:
    """Write the views for other DuckDB clients again where there are any: their files are about to go."""
    if not (root / CATALOG).exists():
        return
    try:
        with Store(root) as store:
            store.write_catalog()
    except (MegascopeError, OSError, duckdb.Error) as error:
        report.problems.append(f"The catalog of {root} was not written ({error}): run prune again.")
