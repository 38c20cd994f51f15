"""The text to train on: Python's own standard-library sources, or a file; as bytes, or byte-pair encoded."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..profiler.errors import MegascopeError, UsageError
from .config import DataConfig, Tokenizer

Tokens = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids, as narrow as they can be."""

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


def read_text(config: DataConfig) -> bytes:
    """The whole text, or its first ``limit_bytes``. MegascopeError where a file cannot be read or is empty."""
    limit = config.limit_bytes
    if config.text is not None:
        with open_text(config.text) as file:
            text = file.read() if limit is None else file.read(limit)
        where = str(config.text)
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


def identity_of(text: bytes, config: DataConfig, tokenizer: str | None) -> dict[str, Any]:
    """What decides which tokens are drawn, as JSON holds it; checksums are BLAKE2b, 16 bytes in hexadecimal."""
    return {
        "size_bytes": len(text),
        "checksum": _checksum(text),
        "tokenizer": str(config.tokenizer)
        if tokenizer is None
        else f"{config.tokenizer} {_checksum(tokenizer.encode())}",
        "eval_share": config.eval_share,
    }


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def train_tokenizer(text: bytes, vocabulary: int) -> str:
    """Train byte-level byte-pair encoding and return it as JSON. UsageError if `tokenizers` is not installed."""
    tokenizer = _import_tokenizers().ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(_lines(text), vocab_size=vocabulary, show_progress=False)
    return str(tokenizer.to_str())


def encode(text: bytes, config: DataConfig, tokenizer: str | None) -> Tokens:
    """The text as an array of token ids; ``tokenizer`` is the JSON of `train_tokenizer`, for byte-pair encoding."""
    if config.tokenizer is Tokenizer.BYTES:
        return np.frombuffer(text, dtype=np.uint8)
    assert tokenizer is not None
    encoder = _import_tokenizers().Tokenizer.from_str(tokenizer)
    ids = [token for part in encoder.encode_batch(list(_lines(text))) for token in part.ids]
    return np.asarray(ids, dtype=np.uint16 if encoder.get_vocab_size() <= 1 << 16 else np.uint32)


def _lines(text: bytes) -> Iterator[str]:
    yield from text.decode("utf-8", "replace").splitlines(keepends=True)


def _import_tokenizers() -> Any:
    try:
        import tokenizers  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise UsageError(NO_TOKENIZERS) from error
    return tokenizers
