"""What several verbs share: choosing an attempt, ranges of steps, and output for people or for scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..profiler.errors import UsageError

if TYPE_CHECKING:
    from ..collectors.store import Attempt, Store

StorePath = Annotated[Path, Parameter(help="Folder of the store.")]
Run = Annotated[str | None, Parameter(help="Run to look at; the newest by default.")]
AttemptNumber = Annotated[int | None, Parameter(name="--attempt", help="Attempt of the run; the newest by default.")]
Steps = Annotated[str | None, Parameter(help="Steps FIRST:LAST, both included; either may be left out.")]
Ranks = Annotated[str | None, Parameter(help="Global ranks, such as 0,3,8-15; all by default.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object and nothing else.")]


def open_attempt(path: Path, run: str | None, attempt: int | None) -> tuple[Store, Attempt]:
    """Open a store and choose an attempt; says on stderr which files were left out as damaged."""
    from ..collectors.store import Store  # noqa: PLC0415

    store = Store(path)
    chosen = store.attempt(run, attempt)
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


def parse_ranks(text: str | None) -> list[int] | None:
    """``"0,3,8-15"`` to a sorted list. UsageError for anything else."""
    if text is None:
        return None
    ranks: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            ranks.update(range(int(first), int(last or first) + 1))
    except ValueError:
        raise UsageError(f"--ranks {text} is not a list of ranks: give them as 0,3,8-15.") from None
    return sorted(ranks)


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, allow_nan=False, default=str) + "\n")


def print_report(renderable: Any) -> None:
    """A report for people, on stdout: as wide as the terminal, 120 columns in a file."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    console.print(renderable)
