"""The folder of checkpoints: where shards and commit files lie, what is complete, and what fits a configuration."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..profiler.errors import UsageError
from .config import TrainConfig

VERSION = 1
COMMIT = "commit.json"


def step_folder(folder: Path, step: int) -> Path:
    """Folder of the checkpoint taken after ``step`` updates."""
    return folder / f"step-{step:08d}"


def shard_path(folder: Path, step: int, rank: int) -> Path:
    """A rank's shard; its description lies beside it, with the suffix .json."""
    return step_folder(folder, step) / f"rank-{rank:05d}.shard"


def layout_of(config: TrainConfig) -> dict[str, Any]:
    """What must be equal for a shard to fit, as JSON holds it: axes in their order, chunks, buckets and model."""
    axes = [[name, size] for name, size in config.topology().axes]
    parallel = {"chunks": config.parallel.chunks, "bucket_bytes": config.parallel.bucket_bytes}
    layout: dict[str, Any] = json.loads(json.dumps({"axes": axes, **parallel, "model": asdict(config.model)}))
    return layout


class DamagedError(Exception):
    """A file of a checkpoint is missing or is not what was written; the message names it."""


def read_commit(folder: Path, step: int, layout: Mapping[str, Any]) -> dict[str, Any]:
    """The commit file of a step: version, step, layout, and size and checksum of every shard.

    Raises UsageError where it was saved by another version or with another layout, DamagedError where it is unreadable.
    """
    path = step_folder(folder, step) / COMMIT
    try:
        commit: dict[str, Any] = json.loads(path.read_bytes())
        version, saved = commit["version"], dict(commit["layout"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DamagedError(f"{path} cannot be read ({error})") from error
    if version != VERSION:
        raise UsageError(
            f"{path} is of version {version}, but this program reads {VERSION}: use the one that wrote it."
        )
    different = [name for name in layout if saved.get(name) != layout[name]]
    if different:
        raise UsageError(
            f"{path} was saved with another {' and '.join(different)} "
            f"({', '.join(f'{name} {_shown(saved.get(name))}' for name in different)}): "
            "use the same, or another checkpoint.folder."
        )
    return commit


def check_unused(folder: Path) -> None:
    """Raise UsageError where a folder that is not to be resumed from holds committed checkpoints.

    They would count as the newest, push out those of this run, and be what a later start resumes from.
    """
    if steps := committed_steps(folder):
        raise UsageError(
            f"checkpoint.resume is false, but {folder} holds the checkpoint of step {steps[0]}: "
            "give another checkpoint.folder, or remove this one."
        )


def committed_steps(folder: Path) -> list[int]:
    """Steps of all committed checkpoints, the newest first."""
    found = [path.parent.name.removeprefix("step-") for path in folder.glob(f"step-*/{COMMIT}")]
    return sorted((int(name) for name in found if name.isdecimal()), reverse=True)


def checksum_of(content: bytes | memoryview) -> str:
    """BLAKE2b of a shard, 16 bytes in hexadecimal."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def remove_uncommitted(folder: Path) -> None:
    """Remove what an attempt that died left half written; only while no rank of this attempt can save."""
    for step in folder.glob("step-*"):
        if step.name.removeprefix("step-").isdecimal() and not (step / COMMIT).exists():
            shutil.rmtree(step, ignore_errors=True)


def read_shard(path: Path, expected: Mapping[str, Any]) -> bytes:
    """The content of a shard. DamagedError where it is not what was committed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror})") from error
    if len(content) != expected["size_bytes"]:
        raise DamagedError(f"{path} has {len(content)} bytes, {expected['size_bytes']} were written")
    if checksum_of(content) != expected["checksum"]:
        raise DamagedError(f"the checksum of {path} is wrong")
    return content


def _shown(value: Any) -> str:
    """A value of a layout, for a message: axes as in pp 2 x dp 1."""
    is_axes = isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value)
    return " x ".join(f"{name} {size}" for name, size in value) if is_axes else str(value)
