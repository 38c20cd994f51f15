"""Makes a checkpoint of step 0 from Hugging Face's safetensors, for any layout to start from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...collectors.storage.durable import make_folders, write_durably
from ...profiler.errors import MegascopeError, UsageError
from ..config import ModelConfig, Precision
from .commit import Commit, model_of, write_commit
from .description import Piece
from .exporting import INDEX
from .files import commit_path, committed_steps, remove_uncommitted
from .neox import Entry, entries, model_of_json, specs_of
from .regions import whole
from .state import STATES, format_of, grid_of
from .writing import ShardWriter, Written


@dataclass(frozen=True, slots=True)
class Imported:
    """What was made: a checkpoint of step 0 with the weights, and moments of zero."""

    folder: Path
    parameters: int
    size_bytes: int
    model: ModelConfig


def import_checkpoint(source: Path, folder: Path) -> Imported:
    """Make ``folder`` begin with the weights in ``source`` (config.json, model*.safetensors).

    Raises UsageError where the folder holds checkpoints already, MegascopeError where the source is not a model that
    our decoder computes, or is not whole. A checkpoint that is half written does not count.
    """
    if steps := committed_steps(folder):
        raise UsageError(f"{folder} holds the checkpoint of step {steps[0]}: give a folder without checkpoints.")
    model = model_of_json(_read_json(source / "config.json"))
    with ExitStack() as stack:
        tensors = _Tensors(source, stack)
        tensors.check_names(model)
        tensors.check_shapes(model)
        wide = model.precision is Precision.FP64
        _check_zeros(tensors, model)
        make_folders(folder)
        remove_uncommitted(folder)
        written = list(_write_shards(folder, tensors, model, torch.float64 if wide else torch.float32))
    content = write_commit(_commit(model, written))
    write_durably(commit_path(folder, 0), lambda file: _fill(file, content))
    return Imported(folder, len(specs_of(model)), sum(shard.size_bytes for shard in written), model)


class _Tensors:
    """The tensors of a folder of safetensors, read one by one."""

    def __init__(self, source: Path, stack: ExitStack) -> None:
        self._source = source
        index = source / INDEX
        files = set(_read_json(index).get("weight_map", {}).values()) if index.exists() else {"model.safetensors"}
        self._files: dict[str, Any] = {}
        for name in sorted(files):
            try:
                file = stack.enter_context(safe_open(source / name, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise MegascopeError(f"{source / name} cannot be read ({error}): fetch it again.") from error
            self._files |= dict.fromkeys(file.keys(), file)

    def check_names(self, model: ModelConfig) -> None:
        """Raise MegascopeError where tensors are missing, or there are others than a model of ours has."""
        needed = {entry.name: entry for entry in entries(model)}
        missing = sorted(name for name, entry in needed.items() if name not in self._files and entry.parameter)
        other = sorted(name for name in self._files if name not in needed and not _is_ignored(name))
        if missing or other:
            what = f"lacks {missing[0]}" if missing else f"has {other[0]}, which our decoder does not"
            more = len(missing or other) - 1
            raise MegascopeError(
                f"{self._source} {what}{f' (and {more} more)' if more else ''}: give a GPT-NeoX model without biases "
                "in its attention."
            )

    def check_shapes(self, model: ModelConfig) -> None:
        """Raise MegascopeError where a tensor has not the shape that config.json says."""
        for entry in entries(model):
            shape = self._files[entry.name].get_slice(entry.name).get_shape() if self.has(entry.name) else entry.shape
            if tuple(shape) != entry.shape:
                raise MegascopeError(
                    f"{entry.name} in {self._source} is {list(shape)}, but {list(entry.shape)} follows from its "
                    "config.json: they do not belong together."
                )

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._files

    def get(self, entry: Entry) -> torch.Tensor:
        """A tensor."""
        tensor: torch.Tensor = self._files[entry.name].get_tensor(entry.name)
        return tensor


def _is_ignored(name: str) -> bool:
    """Buffers that older versions of transformers wrote."""
    return name.endswith(("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"))


def _check_zeros(tensors: _Tensors, model: ModelConfig) -> None:
    """Refuse what our decoder has no place for: biases, and a second norm that is not the first."""
    first: dict[str, Entry] = {}
    for entry in entries(model):
        if entry.parameter is None:
            if tensors.has(entry.name) and bool(tensors.get(entry).count_nonzero()):
                raise MegascopeError(
                    f"{entry.name} is not zero, and our decoder has no such bias: choose another model."
                )
        elif entry.parameter not in first:
            first[entry.parameter] = entry
        elif not torch.equal(tensors.get(entry), tensors.get(first[entry.parameter])):
            raise MegascopeError(
                f"{entry.name} differs from {first[entry.parameter].name}, and our parallel block has one norm: choose "
                "another model."
            )


def _write_shards(folder: Path, tensors: _Tensors, model: ModelConfig, state: torch.dtype) -> Iterator[Written]:
    """One shard a layer, so that only one is in memory; what comes before and after the layers goes with them."""
    named: dict[str, Entry] = {}
    for entry in entries(model):
        if entry.parameter is not None:
            named.setdefault(entry.parameter, entry)
    for rank in range(model.layers):
        pieces = []
        for spec in specs_of(model):
            if _layer_of(spec.name, model.layers) != rank:
                continue
            weights = tensors.get(named[spec.name]).to(state).contiguous()
            for kind, values in zip(STATES, (weights, *[torch.zeros_like(weights)] * 2), strict=True):
                piece = Piece(spec.name, kind, format_of(values), whole(grid_of(spec)))
                pieces.append((piece, memoryview(values.flatten().view(torch.uint8).numpy().data)))
        yield ShardWriter(folder, rank, whole_every=1).write(0, pieces, {}, lambda _: nullcontext())


def _layer_of(parameter: str, layers: int) -> int:
    if parameter.startswith("layers."):
        return int(parameter.split(".")[1])
    return 0 if parameter.startswith("embedding.") else layers - 1


def _commit(model: ModelConfig, written: list[Written]) -> Commit:
    return Commit(
        step=0,
        updates=0,
        position=None,
        seed=None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model_of(model),
        layout={"axes": [["layers", len(written)]], "chunks": 1},
        bases=[],
        size_bytes=sum(shard.size_bytes for shard in written),
        state_bytes=sum(shard.state_bytes for shard in written),
        descriptions=[shard.checksum for shard in written],
    )


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MegascopeError(
            f"{path} cannot be read ({reason}): give the folder of a model, with its config.json."
        ) from error
    if not isinstance(value, dict):
        raise MegascopeError(f"{path} holds no JSON object: give the folder of a model, with its config.json.")
    return value


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
