"""What checkpoints a folder holds, and whether each is intact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...profiler.errors import MegascopeError, UsageError
from .commit import layout_text
from .files import DamagedError, committed_steps, other_folders
from .reading import BlockReader, Saved, read_saved

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Summary:
    """One committed checkpoint; all but the step is None where its files are too damaged to tell.

    ``size_bytes`` is what it added to the disk, ``state_bytes`` what it restores; ``bases`` are the steps that it
    builds upon.
    """

    step: int
    problem: str | None
    created: str | None = None
    layout: str | None = None
    ranks: int | None = None
    bases: tuple[int, ...] | None = None
    size_bytes: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A folder's checkpoints, the newest first, and the names of what is half written or was set aside."""

    folder: Path
    checkpoints: tuple[Summary, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """What reading every block of a checkpoint has shown: a sentence for each rank whose part is not intact."""

    step: int
    size_bytes: int
    problems: tuple[str, ...]


def list_checkpoints(folder: Path) -> Listing:
    """Look at commit files and descriptions only. MegascopeError where there is no such folder."""
    _check(folder)
    return Listing(
        folder, tuple(_summary(folder, step) for step in committed_steps(folder)), tuple(other_folders(folder))
    )


def verify_checkpoints(folder: Path, step: int | None = None, progress: Progress | None = None) -> list[Verified]:
    """Read all checkpoints, or that of one step, and check every block; the newest first.

    Raises MegascopeError where there is none, UsageError where there is none of that step.
    """
    _check(folder)
    steps = committed_steps(folder)
    if step is not None and step not in steps:
        known = ", ".join(str(known) for known in steps) or "no checkpoint"
        raise UsageError(f"There is no checkpoint of step {step} in {folder}, which has {known}: give one of them.")
    if not steps:
        raise MegascopeError(f"There is no checkpoint in {folder}: check the path.")
    return [_verified(folder, one, progress or (lambda *_: None)) for one in (steps if step is None else [step])]


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise MegascopeError(f"There is no folder {folder}: check the path.")


def _summary(folder: Path, step: int) -> Summary:
    try:
        commit = read_saved(folder, step).commit
    except (DamagedError, UsageError) as error:
        return Summary(step, str(error))
    return Summary(
        step,
        None,
        commit.created,
        layout_text(commit.layout),
        len(commit.descriptions),
        tuple(commit.bases),
        commit.size_bytes,
        commit.state_bytes,
    )


def _verified(folder: Path, step: int, progress: Progress) -> Verified:
    try:
        saved = read_saved(folder, step)
    except (DamagedError, UsageError) as error:
        return Verified(step, 0, (str(error),))
    with BlockReader(folder, os.cpu_count() or 1) as reader:
        problems = tuple(_problems(saved, reader, progress))
        return Verified(step, reader.size_bytes, problems)


def _problems(saved: Saved, reader: BlockReader, progress: Progress) -> Iterator[str]:
    for number, description in enumerate(saved.descriptions):
        try:
            blocks = (block for piece in description.pieces for block in piece.blocks)
            for _ in reader.read_all((description.rank, block) for block in blocks):
                pass
        except DamagedError as error:
            yield str(error)
        progress(number + 1, len(saved.descriptions))
