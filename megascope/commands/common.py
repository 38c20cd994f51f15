"""What several verbs share: choosing an attempt, ranges of steps, and output for people or for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..profiler.errors import MegascopeError, UsageError

if TYPE_CHECKING:
    from ..collectors.reading.store import Attempt, Store

MAX_RANKS = 1_000_000

StorePath = Annotated[Path, Parameter(help="Folder of the store.")]
Run = Annotated[str | None, Parameter(help="Run to look at; the newest by default.")]
AttemptNumber = Annotated[int | None, Parameter(name="--attempt", help="Attempt of the run; the newest by default.")]
Steps = Annotated[str | None, Parameter(help="Steps FIRST:LAST, both included; either may be left out.")]
Ranks = Annotated[str | None, Parameter(help="Global ranks, such as 0,3,8-15; all by default.")]
Since = Annotated[datetime | None, Parameter(help="Only steps that began at or after this moment, UTC.")]
Until = Annotated[datetime | None, Parameter(help="Only steps that began before this moment, UTC.")]
RacksPath = Annotated[Path | None, Parameter(name="--racks", help="File of lines HOST,RACK, for the 3D page.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object and nothing else.")]


def open_attempt(
    path: Path, run: str | None, attempt: int | None, open_store: Callable[[Path], Store] | None = None
) -> tuple[Store, Attempt]:
    """Open a store and choose an attempt; what was pruned of it is said on stderr."""
    from ..collectors.reading.store import Store  # noqa: PLC0415
    from ..collectors.upkeep.retention import pruned_sentence  # noqa: PLC0415

    store = (open_store or Store)(path)
    chosen = store.attempt(run, attempt)
    for pruned in store.pruned(chosen):
        sys.stderr.write(f"megascope: {pruned_sentence(pruned)}\n")
    return store, chosen


def report_damage(store: Store) -> None:
    """Say on stderr which files of the store could not be read."""
    for damaged in store.damaged:
        sys.stderr.write(f"megascope: left out {damaged.path}: {damaged.reason}\n")


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """``"20:40"`` to (20, 40); an open end is as far as an int64 goes. UsageError for anything else."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        bounds = (int(first) if first else 0, int(last) if last else 2**62 if colon else int(first))
    except ValueError:
        raise UsageError(f"--steps {text} is not FIRST:LAST: give two step numbers, such as 20:40.") from None
    if bounds[0] > bounds[1]:
        raise UsageError(f"--steps {text} ends before it begins: give the lower step first.")
    return bounds


def choose_steps(
    store: Store, attempt: Attempt, steps: str | None, since: datetime | None, until: datetime | None
) -> tuple[int, int] | None:
    """The steps that ``--steps``, ``--since`` and ``--until`` leave; None for all. A time without a zone is UTC.

    Raises MegascopeError where no step began in that time, or where the attempt has no date.
    """
    chosen = parse_steps(steps)
    if since is None and until is None:
        return chosen
    from ..collectors.reading.attempts import UNDATED_NS  # noqa: PLC0415

    if attempt.start_ns is not None and attempt.start_ns < UNDATED_NS:
        raise MegascopeError(
            f"Run {attempt.run}, attempt {attempt.attempt} has no date: give --steps instead of --since and --until."
        )
    bounds = [max(_nanoseconds(since) if since else 0, UNDATED_NS), _nanoseconds(until) if until else 2**62]
    found: dict[str, int | None] = {"first": None, "last": None}
    for table in ("steps", "events"):  # a foreign store may have spans alone
        if found["first"] is None:
            sql = f"SELECT min(step) AS first, max(step) AS last FROM {table} WHERE start_ns >= ? AND start_ns < ?"
            found = store.query(sql, bounds, attempt).to_pylist()[0]
    if found["first"] is None or found["last"] is None:
        raise MegascopeError(
            f"No step of run {attempt.run}, attempt {attempt.attempt} began then: give other --since or --until."
        )
    first, last = chosen or (0, 2**62)
    if first > found["last"] or last < found["first"]:
        raise MegascopeError(
            f"Steps {found['first']} to {found['last']} of run {attempt.run} began then, none of them in --steps "
            f"{steps}: give other --steps, --since or --until."
        )
    return max(first, found["first"]), min(last, found["last"])


def _nanoseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1e6) * 1000


def parse_ranks(text: str | None) -> list[int] | None:
    """``"0,3,8-15"`` to a sorted list. UsageError for anything else."""
    if text is None:
        return None
    ranks: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            chosen = range(int(first), int(last or first) + 1)
            if len(ranks) + len(chosen) > MAX_RANKS:
                raise ValueError
            ranks.update(chosen)
    except ValueError:
        raise UsageError(f"--ranks {text} is not a list of at most {MAX_RANKS} ranks: give them as 0,3,8-15.") from None
    return sorted(ranks)


def local_path(path: Path, option: str) -> Path:
    """A path on this machine, to be written to. UsageError for a URL: as a path it would name a folder here."""
    from ..profiler.store_address import store_url  # noqa: PLC0415

    url = store_url(path)
    if url is not None:
        raise UsageError(f"{option} {url} is in an object store: give a path on this machine, and copy it from there.")
    return path


def print_json(value: Any) -> None:
    """One JSON object on stdout; a number that is not finite is null."""
    from ..collectors.verdicts import to_json  # noqa: PLC0415

    sys.stdout.write(json.dumps(to_json(value), allow_nan=False, default=str) + "\n")


def print_report(renderable: Any) -> None:
    """A report for people, on stdout: as wide as the terminal, 120 columns in a file."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    console.print(renderable)


@contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function (done, total) that shows a bar on stderr where that is a terminal."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
