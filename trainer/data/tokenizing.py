"""Makes a token file of texts of any size, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...profiler.errors import MegascopeError, UsageError
from .corpus import import_tokenizers, standard_library_sources, train_tokenizer
from .token_files import Meaning, Tokens, narrowest, write_tokens

PART_BYTES = 1 << 24
"""So much of a text is in memory at a time, or a line if that is longer."""

PIECE_CHARACTERS = 1 << 16
"""Lines that a model's tokenizer sees at once: tokens may reach over the end of a line, but not of such a piece."""

BYTES, BPE = "bytes", "bpe"

Progress = Callable[[int, int], None]


def tokenize(
    texts: Sequence[Path],
    out: Path,
    *,
    tokenizer: str,
    vocabulary: int,
    sample_bytes: int,
    progress: Progress = lambda done, total: None,
) -> Meaning:
    """Write the token file ``out`` of texts, one after another; without any, of Python's own sources.

    ``tokenizer``: "bytes"; "bpe", trained on the first ``sample_bytes`` of the texts to ``vocabulary`` tokens; or the
    tokenizer.json of a model. ``progress`` gets bytes done and of all. Raises UsageError for a tokenizer that is none,
    MegascopeError for a text that cannot be read, and what `write_tokens` raises.
    """
    paths = list(texts) or list(standard_library_sources())
    total = sum(_size(path) for path in paths)
    if tokenizer == BYTES:
        return write_tokens(out, _byte_tokens(_parts(paths, progress, total)), 256, BYTES)
    is_own = tokenizer == BPE
    definition = train_tokenizer(_sample(paths, sample_bytes), vocabulary) if is_own else _read(tokenizer)
    try:
        encoder = import_tokenizers().Tokenizer.from_str(definition)
    except Exception as error:  # the library has no class of its own for it
        raise UsageError(f"{tokenizer} is no tokenizer ({error}): give the tokenizer.json of a model.") from error
    encoder.no_truncation()  # which may be part of a model's file, and would leave text out
    encoder.no_padding()
    size = max(encoder.get_vocab().values()) + 1
    encoded = _encoded(encoder, _parts(paths, progress, total), narrowest(size), 0 if is_own else PIECE_CHARACTERS)
    return write_tokens(out, encoded, size, definition)


def _byte_tokens(parts: Iterable[bytes]) -> Iterator[Tokens]:
    for part in parts:
        yield np.frombuffer(part, dtype=np.uint8)


def _encoded(encoder: Any, parts: Iterable[bytes], dtype: np.dtype[Any], piece: int) -> Iterator[Tokens]:
    """Ids of the text alone, without the marks of its beginning and end that a model's tokenizer may add."""
    for part in parts:
        pieces = _pieces(part.decode("utf-8", "replace").splitlines(keepends=True), piece)
        found = encoder.encode_batch(list(pieces), add_special_tokens=False)
        yield np.array([token for each in found for token in each.ids], dtype=dtype)


def _pieces(lines: Iterable[str], size: int) -> Iterator[str]:
    """Lines, joined until they have so many characters; 0: each for itself."""
    piece: list[str] = []
    length = 0
    for line in lines:
        piece.append(line)
        length += len(line)
        if length >= size:
            yield "".join(piece)
            piece, length = [], 0
    if piece:
        yield "".join(piece)


def _parts(paths: Sequence[Path], progress: Progress, total: int) -> Iterator[bytes]:
    """The texts in parts that end where a line does."""
    done = 0
    for path in paths:
        try:
            with path.open("rb") as file:
                while lines := file.readlines(PART_BYTES):
                    part = b"".join(lines)
                    yield part
                    done += len(part)
                    progress(done, total)
        except OSError as error:
            raise _unreadable(path, error) from error


def _sample(paths: Sequence[Path], size: int) -> bytes:
    """The beginning of the texts."""
    sample = bytearray()
    for path in paths:
        if len(sample) >= size:
            break
        try:
            with path.open("rb") as file:
                sample += file.read(size - len(sample))
        except OSError as error:
            raise _unreadable(path, error) from error
    return bytes(sample)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(tokenizer: str) -> str:
    path = Path(tokenizer)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--tokenizer is {tokenizer}, which is neither bytes nor bpe, nor a tokenizer.json that can be read: "
            "give one of these."
        ) from error


def _unreadable(path: Path, error: OSError) -> MegascopeError:
    return MegascopeError(f"Cannot read the text {path} ({error.strerror}): check its name.")
