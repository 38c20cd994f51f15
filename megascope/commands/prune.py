"""``megascope prune``: makes one file of many small ones, and deletes what is too old or too much."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import MegascopeError, UsageError
from .common import Json, StorePath, print_json, print_report, progress_of

if TYPE_CHECKING:
    from rich.table import Table

    from ..collectors.upkeep.upkeep import UpkeepReport

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def prune(
    store: StorePath,
    /,
    *,
    older_than: Annotated[
        str | None, Parameter(help="Delete spans, heartbeats, health and dumps that came longer ago: 12h, 7d, 4w.")
    ] = None,
    rollups_older_than: Annotated[
        str | None, Parameter(help="Delete windows of 10 and 100 steps that came longer ago.")
    ] = None,
    max_size: Annotated[
        str | None, Parameter(help="Delete the oldest until the store has at most so much: 500GB, 1.5TiB.")
    ] = None,
    compact: Annotated[bool, Parameter(help="Make one large sorted file of many small ones.")] = True,
    grace: Annotated[
        float,
        Parameter(
            help="Seconds that replaced files stay for those who read them; a later run deletes them.",
            validator=Number(gte=0),
        ),
    ] = 600.0,
    dry_run: Annotated[bool, Parameter(negative="", help="Say what would be deleted, and change nothing.")] = False,
    json: Json = False,
) -> int:
    """Tidy a store up: merge the small files of many agents, and delete what is beyond the limits.

    Without limits nothing is deleted but files whose rows are in others. With limits, the oldest raw data goes first:
    spans, then heartbeats and health, then dumps, then windows of 10 steps, of 100, of 1000, then steps. Runs, ranks,
    incidents and the other small tables stay. Jobs may write and people may read meanwhile, and it may be killed. The
    store remembers what was deleted. Replaced files leave the disk with the first run after the grace; with --grace 0,
    which is for when nobody reads, at once. Run it from one machine, for instance daily.

    Example: megascope prune /data/store --older-than 7d --max-size 500GB
    """
    from ..collectors.storage.address import store_path  # noqa: PLC0415
    from ..collectors.upkeep.retention_plan import Retention  # noqa: PLC0415
    from ..collectors.upkeep.upkeep import upkeep  # noqa: PLC0415

    store = store_path(store)
    if not store.is_dir():
        raise MegascopeError(f"There is no store at {store}: check the path.")
    retention = Retention(
        raw_age_s=parse_age("--older-than", older_than),
        rollup_age_s=parse_age("--rollups-older-than", rollups_older_than),
        size_bytes=parse_size("--max-size", max_size),
    )
    with progress_of("Compacting") as progress:
        report = upkeep(store, retention, compacts=compact, dry_run=dry_run, grace_s=grace, progress=progress)
    for problem in report.problems:
        sys.stderr.write(f"megascope: {problem}\n")
    if json:
        print_json(report.as_json())
    else:
        print_report(_table(report))
    return 1 if report.problems else 0


def parse_age(option: str, text: str | None) -> float | None:
    """``"7d"`` to seconds. UsageError for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text.lower())
    if match is None:
        raise UsageError(f"{option} {text} is no age: give a number with s, m, h, d or w behind it, such as 7d.")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(option: str, text: str | None) -> int | None:
    """``"500GB"`` or ``"1.5TiB"`` to bytes. UsageError for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if match is None:
        raise UsageError(f"{option} {text} is no size: give a number with MB, GB, TB or GiB behind it, such as 500GB.")
    return int(float(match[1]) * (_BINARY if match[3] else _BYTES)[match[2]])


def _table(report: UpkeepReport) -> Table:
    from rich.table import Table  # noqa: PLC0415

    from ..collectors.storage.quota import size_text  # noqa: PLC0415

    table = Table(title=f"{report.root}: {size_text(report.size_bytes)}", title_justify="left")
    for column in ("What", "Files", "Rows", "Size", "Until step"):
        table.add_column(column, justify="left" if column == "What" else "right")
    done = report.compacted
    if done.files_before:
        size = f"{size_text(done.bytes_before)} > {size_text(done.bytes_after)}"
        table.add_row("merged", f"{done.files_before} > {done.files_after}", str(done.rows), size, "")
    verb = "would be deleted" if report.dry_run else "deleted"
    for each in report.pruned:
        name = each.table if each.level is None else f"{each.table} of {each.level} steps"
        where = f"{verb}: {name} of run {each.run}, attempt {each.attempt}"
        step = "" if each.last_step is None else str(each.last_step)
        table.add_row(where, str(each.files), str(each.rows), size_text(each.size_bytes), step)
    for what, count in (
        ("replaced, to be deleted by a run after the grace", report.waiting_files),
        ("still being written", report.being_written),
        ("damaged, left", len(done.damaged)),
        ("blocks held by another process, left", report.busy_blocks),
    ):
        if count:
            table.add_row(what, str(count), "", "", "")
    if not table.row_count:
        table.add_row("nothing to do", "", "", "", "")
    return table
