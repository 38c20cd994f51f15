"""The text to train on: Python's own standard-library sources, or a file; as bytes, or byte-pair encoded."""

from __future__ import annotations

import hashlib
import mmap
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...profiler.errors import MegascopeError, UsageError
from ..config import DataConfig, Tokenizer
from .token_files import Meaning, Tokens, narrowest

Text = bytes | mmap.mmap

TEXT_KEY = "megascope/text"
"""Where in the rendezvous store rank 0 leaves what `identity_of` says of the text."""
NO_TOKENIZERS = "data.tokenizer is bpe, but the package tokenizers is not installed: pip install 'megascope[bpe]'."
SKIPPED_FOLDERS = frozenset({"test", "tests", "site-packages", "dist-packages", "idlelib", "__pycache__", "lib2to3"})


def standard_library_sources() -> Iterator[Path]:
    """Python's own sources without tests and installed packages, in one order on every machine."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]  # most of all files lie there
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    yield from sorted((path for path in paths if path.is_file()), key=lambda path: path.relative_to(root).as_posix())


def open_text(path: Path) -> BinaryIO:
    """Open a text. MegascopeError where it is not there, is a folder or may not be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise MegascopeError(f"Cannot read the text {path} ({error.strerror}): check data.text.") from error


def read_text(config: DataConfig) -> Text:
    """The whole text, or its first ``limit_bytes``; a file is memory-mapped, so that the ranks of a host share it.

    MegascopeError where a file cannot be read or is empty.
    """
    limit = config.limit_bytes
    text: Text
    if config.text is not None:
        text, where = _map(config.text, limit), str(config.text)
    else:
        parts, size = [], 0
        for path in standard_library_sources():
            parts.append(path.read_bytes())
            size += len(parts[-1])
            if limit is not None and size >= limit:
                break
        text = b"".join(parts)[:limit]
        where = "Python's standard library"
    if not text:
        raise MegascopeError(f"There is no text in {where}: give another with --data.text FILE.")
    return text


def _map(path: Path, limit: int | None) -> Text:
    with open_text(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = size if limit is None else min(size, limit)
        try:
            return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) if length else b""
        except OSError as error:
            raise MegascopeError(f"Cannot read the text {path} ({error.strerror}): check data.text.") from error


def identity_of(text: Text, config: DataConfig, tokenizer: str | None) -> dict[str, Any]:
    """What decides which tokens are drawn, as JSON holds it; checksums are BLAKE2b, 16 bytes in hexadecimal."""
    return _identity(len(text), _checksum(text), tokenizer, config)


def identity_of_tokens(meaning: Meaning, config: DataConfig) -> dict[str, Any]:
    """The same of a token file; of bytes it is that of the text itself."""
    size = meaning.tokens * narrowest(meaning.vocabulary).itemsize
    tokenizer = None if meaning.tokenizer == Tokenizer.BYTES else meaning.tokenizer
    return _identity(size, meaning.checksum, tokenizer, config)


def _identity(size: int, checksum: str, tokenizer: str | None, config: DataConfig) -> dict[str, Any]:
    name = str(Tokenizer.BYTES) if tokenizer is None else f"{Tokenizer.BPE} {_checksum(tokenizer.encode())}"
    return {
        "size_bytes": size,
        "checksum": checksum,
        "tokenizer": name,
        "eval_share": config.eval_share,
        "sampling": str(config.sampling),
    }


def _checksum(content: Text) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def train_tokenizer(text: Text, vocabulary: int) -> str:
    """Train byte-level byte-pair encoding and return it as JSON. UsageError if `tokenizers` is not installed."""
    tokenizer = import_tokenizers().ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(_lines(text), vocab_size=vocabulary, show_progress=False)
    return str(tokenizer.to_str())


def encode(text: Text, config: DataConfig, tokenizer: str | None) -> Tokens:
    """The text as an array of token ids; ``tokenizer`` is the JSON of `train_tokenizer`, for byte-pair encoding."""
    if config.tokenizer is Tokenizer.BYTES:
        return np.frombuffer(text, dtype=np.uint8)
    assert tokenizer is not None
    encoder = import_tokenizers().Tokenizer.from_str(tokenizer)
    ids = [token for part in encoder.encode_batch(list(_lines(text))) for token in part.ids]
    return np.asarray(ids, dtype=np.uint16 if encoder.get_vocab_size() <= 1 << 16 else np.uint32)


def _lines(text: Text) -> Iterator[str]:
    yield from bytes(text).decode("utf-8", "replace").splitlines(keepends=True)


def import_tokenizers() -> Any:
    """The package `tokenizers`. UsageError if it is not installed."""
    try:
        import tokenizers  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise UsageError(NO_TOKENIZERS) from error
    return tokenizers
