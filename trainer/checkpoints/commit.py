"""The commit file: written last, it lists every rank's description, and what the checkpoint is of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ...profiler.errors import UsageError
from ..config import ModelConfig, Precision, TrainConfig
from .description import VERSION, checksum_of
from .files import DamagedError, commit_path

FREE = frozenset({"init_std", "precision", "dropout"})
"""Settings of the model that may change on resuming: master weights are float32 for fp32 and for bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is committed. ``model`` and ``layout`` are as JSON holds them.

    ``position`` and ``seed`` tell which sequences the next step draws from the text; None in what was imported.
    ``bases`` are the steps of other checkpoints that hold blocks of this one. ``descriptions``: checksums, by rank.
    ``text``: what `corpus.identity_of` says of what it was trained on; None in what was imported.
    """

    step: int
    updates: int
    position: Mapping[str, int] | None
    seed: int | None
    created: str
    model: Mapping[str, Any]
    layout: Mapping[str, Any]
    bases: Sequence[int]
    size_bytes: int
    state_bytes: int
    descriptions: Sequence[str]
    text: Mapping[str, Any] | None = None


def model_of(config: ModelConfig) -> dict[str, Any]:
    """The model's settings, as JSON holds them."""
    model: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return model


def layout_of(config: TrainConfig) -> dict[str, Any]:
    """Axes in their order, and chunks, as JSON holds them. A checkpoint of any layout loads under any other."""
    return {"axes": [[name, size] for name, size in config.topology().axes], "chunks": config.parallel.chunks}


def write_commit(commit: Commit) -> bytes:
    """As JSON in its canonical form, with a checksum of all the rest."""
    return _sealed({"version": VERSION, **asdict(commit)})


def read_commit(folder: Path, step: int) -> Commit:
    """The commit file of a step; errors as of `parse_commit`."""
    path = commit_path(folder, step)
    try:
        return parse_commit(path, path.read_bytes())
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror})") from error


def parse_commit(path: Path, content: bytes) -> Commit:
    """What a commit file's content says.

    Raises UsageError where another version of this program wrote it, DamagedError where it is not what was written.
    """
    try:
        value = json.loads(content)
        checksum, version = value.pop("checksum", None), value["version"]
        is_first = checksum is None and version == 1  # it had no checksum of its own
        if not is_first and content != _sealed(value):
            raise DamagedError(f"{path} is damaged: its checksum is wrong")
        if version != VERSION:
            raise UsageError(
                f"{path} is of version {version}, but this program reads {VERSION}: use the one that wrote it, "
                "or another checkpoint.folder."
            )
        del value["version"]
        return Commit(**value)
    except UsageError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} cannot be read ({error})") from error


def check_model(path: Path, commit: Commit, config: ModelConfig) -> None:
    """Raise UsageError where a checkpoint is of another model than the one that is to be trained."""
    wanted, known = model_of(config), model_of(ModelConfig())
    names = [field.name for field in fields(ModelConfig) if field.name not in FREE]
    saved = {name: commit.model.get(name, known[name]) for name in names}
    different = [name for name in names if saved[name] != wanted[name]]
    saved["precision"] = commit.model["precision"]
    if (saved["precision"] == Precision.FP64) != (wanted["precision"] == Precision.FP64):
        different.append("precision")  # its state is float64
    if different:
        raise UsageError(
            f"{path} was saved with another model "
            f"({', '.join(f'{name} {saved[name]}, now {wanted[name]}' for name in different)}): "
            "use the same, or another checkpoint.folder."
        )


def check_text(path: Path, commit: Commit, text: Mapping[str, Any] | None, *, may_differ: bool) -> None:
    """Raise UsageError where the text is not the one that a checkpoint was trained on, or its tokens are others."""
    if commit.text is None or text is None:
        return
    before = {"sampling": "places", **commit.text}  # as it was before there was a choice
    if before == text:
        return
    if before["tokenizer"] != text["tokenizer"]:
        raise UsageError(
            f"{path} was saved with the tokenizer {before['tokenizer']}, now {text['tokenizer']}, and with another one "
            "a token's number means something else: use the same text and data.tokenizer, or another checkpoint.folder."
        )
    if not may_differ:
        sizes = [name for name in ("size_bytes", "eval_share", "sampling") if before[name] != text[name]]
        different = ", ".join(f"{name} {before[name]}, now {text[name]}" for name in sizes) or "of the same size"
        raise UsageError(
            f"{path} was trained on another text ({different}): use the same with the "
            "same data.limit_bytes, data.eval_share and data.sampling, or set checkpoint.other_text to go on with this."
        )


def layout_text(layout: Mapping[str, Any]) -> str:
    """``"pp 2 x dp 1, chunks 2"``."""
    axes = " x ".join(f"{name} {size}" for name, size in layout["axes"])
    return axes if layout["chunks"] == 1 else f"{axes}, chunks {layout['chunks']}"


def _sealed(value: Mapping[str, Any]) -> bytes:
    return _canonical({**value, "checksum": checksum_of(_canonical(value))})


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
