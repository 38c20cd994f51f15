"""Opens what a rank reads: a token file as it lies there, or a text that becomes tokens in memory."""

from __future__ import annotations

import json
from typing import Any

import torch.distributed as dist

from ..config import TrainConfig
from ..probe import Probe
from ..topology import Mesh
from .batches import Batches
from .corpus import TEXT_KEY, encode, identity_of, identity_of_tokens, read_text, train_tokenizer
from .loader import Loader
from .token_files import Tokens, open_tokens

TOKENIZER_KEY = "megascope/tokenizer"


def open_batches(config: TrainConfig, mesh: Mesh, probe: Probe) -> Batches | None:
    """The batches, on ranks that read them. Rank 0 leaves what checkpoints are to remember of the text in the store."""
    if not Loader.reads(mesh):
        return None
    remembers = mesh.rank == 0 and config.checkpoint.folder is not None
    tokens, identity = _tokens(config, mesh.rank, probe, remembers=remembers)
    if remembers:
        _store().set(TEXT_KEY, json.dumps(identity))
    return Batches(tokens, config)


def _tokens(config: TrainConfig, rank: int, probe: Probe, *, remembers: bool) -> tuple[Tokens, Any]:
    """All tokens, and their identity where it is asked for: it takes reading the whole text."""
    data = config.data
    if data.tokens is not None:
        with probe.span("setup_tokens"):
            tokens, meaning = open_tokens(data.tokens)
            return tokens, identity_of_tokens(meaning, data)
    tokenizer = None
    with probe.span("setup_text"):
        text = read_text(data)
    if data.tokenizer == "bpe":  # trained by rank 0 alone, and handed on through the store
        with probe.span("setup_tokenizer"):
            if rank == 0:
                _store().set(TOKENIZER_KEY, train_tokenizer(text, config.model.vocabulary))
            tokenizer = _store().get(TOKENIZER_KEY).decode()
    with probe.span("setup_tokens"):
        return encode(text, data, tokenizer), identity_of(text, data, tokenizer) if remembers else None


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
