"""What keeps a store in shape, in an order that is right at any moment: sweep, prune, compact, prune, sweep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from ..profiler.errors import MegascopeError
from .blocks import QUIET_S
from .compaction import CompactionReport, compact
from .compaction_plan import Limits
from .manifest import Pruned, check_marker, manifest_folders
from .manifest_writer import GRACE_S
from .quota import size_text
from .retention import PruneReport, prune
from .retention_plan import Retention
from .store import CATALOG, Store
from .sweeping import sweep

_COUNTS = ("files_before", "files_after", "rows", "bytes_before", "bytes_after")


@dataclass(slots=True)
class UpkeepReport:
    """What was done; ``size_bytes`` is what readers see of the store afterwards, ``problems`` are sentences."""

    root: Path
    dry_run: bool
    compacted: CompactionReport = field(default_factory=CompactionReport)
    pruned: list[Pruned] = field(default_factory=list)
    size_bytes: int = 0
    being_written: int = 0
    busy_blocks: int = 0
    deleted_files: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_waiting(self) -> bool:
        """Whether there are files that `delete_replaced` can delete after the grace."""
        return bool(self.pruned or self.compacted.files_before)

    def take(self, report: PruneReport) -> None:
        """Add what one round of pruning did; the sizes are those after the last."""
        self.pruned += report.pruned
        self.problems += report.problems
        self.size_bytes, self.being_written = report.size_bytes, report.being_written
        self.busy_blocks = max(self.busy_blocks, report.busy_blocks)

    def delete_replaced(self, grace_s: float) -> None:
        """Delete what was replaced longer ago than the grace; on a full disk, later."""
        with contextlib.suppress(OSError):
            self.deleted_files += sweep(self.root, grace_s)

    def as_json(self) -> dict[str, Any]:
        """For scripts: counts, bytes, and what was pruned."""
        done = asdict(self.compacted)
        damaged = [{"path": str(file.path), "reason": file.reason} for file in self.compacted.damaged]
        return {
            "store": str(self.root),
            "dry_run": self.dry_run,
            "size_bytes": self.size_bytes,
            "compacted": {
                key: done[key] for key in ("files_before", "files_after", "rows", "bytes_before", "bytes_after")
            },
            "pruned": [asdict(each) for each in self.pruned],
            "deleted_files": self.deleted_files,
            "being_written": self.being_written,
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

    Raises MegascopeError for a folder that is no store and for a store of a newer schema, OSError where nothing can be
    written.
    """
    if not check_marker(root) and next(manifest_folders(root), None) is None:
        raise MegascopeError(f"{root} is no store of megascope (it has no manifests): check the path.")
    report = UpkeepReport(root, dry_run)
    if not dry_run:
        report.delete_replaced(grace_s)
    report.take(prune(root, retention, dry_run=dry_run, grace_s=grace_s, quiet_s=quiet_s))
    if compacts and not dry_run:
        report.compacted = compact(root, limits, grace_s=grace_s, quiet_s=quiet_s, progress=progress)
        report.problems += report.compacted.problems
        report.busy_blocks = max(report.busy_blocks, report.compacted.busy_blocks)
        report.take(prune(root, retention, grace_s=grace_s, quiet_s=quiet_s))
    if not dry_run:
        _refresh_catalog(root, report)
        report.delete_replaced(grace_s)  # what was replaced of writers that are gone begins its grace
    if retention.size_bytes is not None and report.size_bytes > retention.size_bytes:
        report.problems.append(
            f"The store {root} still has {size_text(report.size_bytes)}, more than {size_text(retention.size_bytes)}: "
            "what is left is being written, is held by another process, or belongs to tables that are kept."
        )
    return report


def _refresh_catalog(root: Path, report: UpkeepReport) -> None:
    """Write the views for other DuckDB clients again where there are any: their files are about to go."""
    if not (root / CATALOG).exists():
        return
    try:
        with Store(root) as store:
            store.write_catalog()
    except (MegascopeError, OSError, duckdb.Error) as error:
        report.problems.append(f"The catalog of {root} was not written ({error}): run prune again.")
