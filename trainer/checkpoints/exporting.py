"""Writes the weights of a checkpoint as Hugging Face's safetensors, whatever the layout that saved it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from ...collectors.storage.durable import make_folders, write_durably
from ...profiler.errors import MegascopeError, UsageError
from ..config import ModelConfig, Precision
from .commit import Commit
from .files import DamagedError, committed_steps
from .neox import Entry, config_json, entries, unmapped
from .reading import BITS, Assembler, BlockReader, read_saved
from .regions import whole

INDEX = "model.safetensors.index.json"
MAX_FILE_BYTES = 5 * 10**9

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. ``is_exact``: the weights are bit for bit those of the checkpoint."""

    folder: Path
    step: int
    files: tuple[str, ...]
    tensors: int
    size_bytes: int
    number_format: str
    is_exact: bool
    unmapped: tuple[str, ...]


def export_checkpoint(
    folder: Path,
    out: Path,
    *,
    step: int | None = None,
    number_format: str | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Exported:
    """Write ``out``/model.safetensors (or several files and their index) and, last, config.json.

    ``step`` None is the newest checkpoint that is intact; ``number_format`` None is the masters' own, which is exact.
    Raises MegascopeError where there is no such checkpoint, or it is damaged, and UsageError where ``out`` is in use.
    """
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty: give a folder that is not there yet.")
    if number_format is not None and number_format not in FORMATS:
        raise UsageError(f"{number_format} is no format for weights: use {', '.join(FORMATS)}.")
    make_folders(out)
    problems = []
    for chosen in committed_steps(folder) if step is None else [step]:
        try:
            return _export(folder, chosen, out, number_format, max_file_bytes)
        except DamagedError as error:
            problems.append(f"checkpoint {chosen}: {error}")
    raise MegascopeError(
        f"No checkpoint in {folder} can be exported ({'; '.join(problems) or 'there is none'}): look at them with "
        f"megascope checkpoint verify {folder}."
    )


def model_in(commit: Commit) -> ModelConfig:
    """The model's settings of a checkpoint; those that it does not have are at their defaults."""
    names = {field.name for field in fields(ModelConfig)}
    values = {name: value for name, value in commit.model.items() if name in names}
    return ModelConfig(**{**values, "precision": Precision(values["precision"])})


def _export(folder: Path, step: int, out: Path, number_format: str | None, max_file_bytes: int) -> Exported:
    saved = read_saved(folder, step)
    model = model_in(saved.commit)
    listed = list(entries(model))
    with BlockReader(folder) as reader:
        assembler = Assembler(saved, reader)
        stored = _stored_format(assembler)
        written = number_format or stored
        width = FORMATS[written].itemsize
        groups = list(_groups(listed, width, max_file_bytes))
        names = [_file_name(index, len(groups)) for index in range(len(groups))]
        total = 0
        for name, group in zip(names, groups, strict=True):
            tensors = {entry.name: _tensor(assembler, entry, stored).to(FORMATS[written]) for entry in group}
            total += write_durably(out / name, lambda path, held=tensors: _save(held, path))  # type: ignore[misc]
    if len(groups) > 1:
        weights = {entry.name: name for name, group in zip(names, groups, strict=True) for entry in group}
        size = sum(int(np.prod(entry.shape)) * width for entry in listed)
        _write_json(out / INDEX, {"metadata": {"total_size": size}, "weight_map": weights})
    _write_json(out / "config.json", config_json(model, written, saved.commit.model))
    files = (*names, *([INDEX] if len(groups) > 1 else []), "config.json")
    is_exact = written in (stored, "float64")
    tokenizer = (saved.commit.text or {}).get("tokenizer", "bytes")
    lost = [] if tokenizer == "bytes" else ["the tokenizer, which training has of its text or token file"]
    return Exported(out, step, files, len(listed), total, written, is_exact, (*unmapped(model), *lost))


def _stored_format(assembler: Assembler) -> str:
    piece = assembler.any_piece("embedding.weight", "master")
    if piece is None:
        raise DamagedError("it has no embedding.weight")
    return piece.dtype


def _tensor(assembler: Assembler, entry: Entry, stored: str) -> torch.Tensor:
    if entry.parameter is None:
        return torch.zeros(entry.shape, dtype=FORMATS[stored])
    piece = assembler.any_piece(entry.parameter, "master")
    if piece is None or piece.span.grid.shape != entry.shape:
        raise DamagedError(f"it has no {entry.parameter} of {list(entry.shape)}")
    wanted = whole(piece.span.grid)
    tensor = torch.zeros(wanted.length, dtype=FORMATS[stored])
    assembler.fill(entry.parameter, "master", wanted, stored, tensor.numpy().view(BITS[stored]))
    return tensor.view(entry.shape)


def _groups(listed: Sequence[Entry], width: int, limit: int) -> Iterator[list[Entry]]:
    """Tensors that go into a file together."""
    group, size = list[Entry](), 0
    for entry in listed:
        own = int(np.prod(entry.shape)) * width
        if group and size + own > limit:
            yield group
            group, size = [], 0
        group.append(entry)
        size += own
    yield group


def _file_name(index: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{index + 1:05d}-of-{count:05d}.safetensors"


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    # safetensors refuses tensors that share memory, as a norm written under two names does
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def _write_json(path: Path, value: Any) -> None:
    write_durably(path, lambda file: _fill(file, (json.dumps(value, indent=2) + "\n").encode()))


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
