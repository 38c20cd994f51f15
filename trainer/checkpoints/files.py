"""The folder of checkpoints: what lies where, what is complete, and what may go."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from ...profiler.errors import UsageError

COMMIT = "commit.json"
_PREFIX = "step-"


class DamagedError(Exception):
    """A file of a checkpoint is missing or is not what was written; the message names it."""


def step_folder(folder: Path, step: int) -> Path:
    """Folder of the checkpoint taken after ``step`` updates."""
    return folder / f"{_PREFIX}{step:08d}"


def shard_path(folder: Path, step: int, rank: int) -> Path:
    """A rank's shard; its description lies beside it, with the suffix .json."""
    return step_folder(folder, step) / f"rank-{rank:05d}.shard"


def description_path(folder: Path, step: int, rank: int) -> Path:
    """What a rank's shard holds, and where."""
    return shard_path(folder, step, rank).with_suffix(".json")


def commit_path(folder: Path, step: int) -> Path:
    """The file whose presence makes a checkpoint count."""
    return step_folder(folder, step) / COMMIT


def committed_steps(folder: Path) -> list[int]:
    """Steps of all committed checkpoints, the newest first."""
    return sorted((step for step in _steps(folder) if commit_path(folder, step).exists()), reverse=True)


def check_unused(folder: Path) -> None:
    """Raise UsageError where a folder that is not to be resumed from holds committed checkpoints.

    They would count as the newest, push out those of this run, and be what a later start resumes from.
    """
    if steps := committed_steps(folder):
        raise UsageError(
            f"checkpoint.resume is false, but {folder} holds the checkpoint of step {steps[0]}: "
            "give another checkpoint.folder, or remove this one."
        )


def remove_uncommitted(folder: Path, before: int | None = None) -> None:
    """Remove what was left half written, of steps before ``before`` if given; only where no rank still writes it."""
    for step in _steps(folder):
        if not commit_path(folder, step).exists() and (before is None or step < before):
            shutil.rmtree(step_folder(folder, step), ignore_errors=True)


def remove_all_but(folder: Path, kept: Iterable[int]) -> None:
    """Remove committed checkpoints; of each the commit file first, so that no half of one counts."""
    for step in set(committed_steps(folder)) - set(kept):
        commit_path(folder, step).unlink(missing_ok=True)
        shutil.rmtree(step_folder(folder, step), ignore_errors=True)


def set_aside(folder: Path, after: int) -> list[Path]:
    """Rename the checkpoints of steps after ``after``, which were refused, so that none is taken for a newer one.

    Nothing of them is lost. Returns their new paths.
    """
    moved = []
    for step in _steps(folder):
        if step > after and commit_path(folder, step).exists():
            path, number = step_folder(folder, step), 1
            while (target := path.with_name(f"{path.name}.refused-{number}")).exists():
                number += 1
            moved.append(path.rename(target))
    return moved


def other_folders(folder: Path) -> list[str]:
    """Names of folders of steps that are half written, or that were set aside."""
    committed = {step_folder(folder, step).name for step in committed_steps(folder)}
    return sorted(path.name for path in folder.glob(f"{_PREFIX}[0-9]*") if path.name not in committed)


def _steps(folder: Path) -> list[int]:
    names = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")]
    return [int(name) for name in names if name.isdecimal()]
