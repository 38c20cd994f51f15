"""Checks of what a configuration points at: racks, text, tokenizer and checkpoints; before anything is started."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path

from ..collectors.storage.durable import make_folders
from ..profiler.errors import MegascopeError, UsageError
from ..profiler.opening import attempt_folder
from ..profiler.racks import read_racks
from .checkpoints.commit import check_model, read_commit
from .checkpoints.files import DamagedError, check_unused, commit_path, committed_steps
from .config import Tokenizer, TrainConfig
from .data.batches import check_length
from .data.corpus import NO_TOKENIZERS, open_text
from .data.token_files import open_tokens


def check_inputs(config: TrainConfig) -> None:
    """Raise UsageError or MegascopeError, one sentence, for what every rank would stumble over one by one.

    Creates the folder of the checkpoints where some are to be written.
    """
    if config.record.enabled and config.record.run is not None:
        attempt_folder(Path(), config.record.run, 0)
    read_racks(config.parallel.racks)
    _check_text(config)
    if config.checkpoint.folder is not None:
        _check_checkpoints(config.checkpoint.folder, config)


def _check_text(config: TrainConfig) -> None:
    data = config.data
    if data.tokens is not None:
        _check_tokens(data.tokens, config)
        return
    if data.tokenizer is Tokenizer.BPE and importlib.util.find_spec("tokenizers") is None:
        raise UsageError(NO_TOKENIZERS)
    sizes = [] if data.limit_bytes is None else [data.limit_bytes]
    if data.text is not None:
        with open_text(data.text) as file:
            sizes.append(os.fstat(file.fileno()).st_size)
    if sizes:
        check_length(min(sizes), config)  # a byte is a token at most


def _check_tokens(path: Path, config: TrainConfig) -> None:
    tokens, meaning = open_tokens(path)
    if meaning.vocabulary > config.model.vocabulary:
        raise UsageError(
            f"{path} has tokens up to {meaning.vocabulary - 1}, but model.vocabulary is {config.model.vocabulary}: "
            f"set it to {meaning.vocabulary} or more, divisible by parallel.tp."
        )
    check_length(len(tokens), config)


def _check_checkpoints(folder: Path, config: TrainConfig) -> None:
    if not config.checkpoint.resume:
        check_unused(folder)
    elif steps := committed_steps(folder):
        with contextlib.suppress(DamagedError):  # `Restorer.restore` passes over it
            check_model(commit_path(folder, steps[0]), read_commit(folder, steps[0]), config.model)
    if not config.checkpoint.every:
        return
    try:
        make_folders(folder)
        reason = None if os.access(folder, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise MegascopeError(f"Cannot write checkpoints to {folder} ({reason}): change checkpoint.folder.")
