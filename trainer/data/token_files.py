"""Token files: a text as token ids, written once and memory-mapped by every rank that reads it.

`NAME.npy` is a NumPy array of one dimension; `NAME.json` beside it says what the tokens mean, and is written last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...collectors.storage.durable import make_folders, write_durably
from ...profiler.errors import FormatError, MegascopeError, UsageError

Tokens = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids, as narrow as they can be."""

FORMAT = "megascope-tokens 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What the tokens of a file are. ``vocabulary``: ids are below it; ``tokenizer``: "bytes", or JSON as the package

    `tokenizers` reads it; ``checksum``: BLAKE2b of all ids as they lie in the file, 16 bytes in hexadecimal.
    """

    tokens: int
    vocabulary: int
    tokenizer: str
    checksum: str
    format: str = FORMAT


def narrowest(vocabulary: int) -> np.dtype[Any]:
    """The smallest type for ids below ``vocabulary``."""
    return np.min_scalar_type(vocabulary - 1)


def write_tokens(path: Path, parts: Iterable[Tokens], vocabulary: int, tokenizer: str) -> Meaning:
    """Write a token file of parts of any length, one after another. An interrupted one leaves nothing that can be read.

    Raises UsageError where the name is taken or wrong, MegascopeError where it cannot be written or is empty.
    """
    if path.suffix != ".npy":
        raise UsageError(f"A token file's name ends in .npy, and {path.name} does not: choose another.")
    for taken in (path, _meaning_path(path)):
        if taken.exists():
            raise UsageError(f"There is a file {taken} already: choose another name, or remove it.")
    digest, count = hashlib.blake2b(digest_size=16), 0

    def write(temporary: Path) -> None:
        nonlocal count
        with temporary.open("wb") as file:
            count = _write_array(file, parts, narrowest(vocabulary), digest.update)
        if not count:
            raise MegascopeError(f"There is no text to make {path} of: give another.")

    try:
        make_folders(path.absolute().parent)
        write_durably(path, write)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        meaning = Meaning(tokens=count, vocabulary=vocabulary, tokenizer=tokenizer, checksum=digest.hexdigest())
        text = json.dumps(asdict(meaning))
        write_durably(_meaning_path(path), lambda temporary: _put(temporary, text))
    except BaseException as error:
        path.unlink(missing_ok=True)
        raise _unwritable(path, error) if isinstance(error, OSError) else error from error
    return meaning


def read_meaning(path: Path) -> Meaning:
    """What a token file says of itself. FormatError where it is none or not whole, MegascopeError if unreadable."""
    beside = _meaning_path(path)
    try:
        meaning = Meaning(**json.loads(beside.read_text(encoding="utf-8")))
    except OSError as error:
        raise MegascopeError(
            f"Cannot read {beside} ({error.strerror}), without which {path.name} is no token file: "
            "make one with `megascope tokenize`, and check data.tokens."
        ) from error
    except (ValueError, TypeError) as error:
        raise FormatError(f"{beside} does not describe a token file: make one with `megascope tokenize`.") from error
    kinds = {"tokens": int, "vocabulary": int, "tokenizer": str, "checksum": str, "format": str}
    if any(type(getattr(meaning, name)) is not kind for name, kind in kinds.items()) or meaning.vocabulary < 1:
        raise FormatError(f"{beside} does not describe a token file: make one with `megascope tokenize`.")
    if meaning.format != FORMAT:
        raise FormatError(f"{beside} is of the format {meaning.format!r}, not {FORMAT!r}: make it anew.")
    return meaning


def open_tokens(path: Path) -> tuple[Tokens, Meaning]:
    """All ids of a token file, memory-mapped, and their meaning; errors as `read_meaning`."""
    meaning = read_meaning(path)
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise MegascopeError(f"Cannot read the token file {path} ({error.strerror or error}): check it.") from error
    except (ValueError, EOFError) as error:
        raise FormatError(f"{path} is cut or is no token file ({error}): make it anew.") from error
    if not isinstance(tokens, np.ndarray):  # an archive of several
        raise FormatError(f"{path} is no NumPy array: make it anew.")
    if tokens.shape != (meaning.tokens,) or tokens.dtype != narrowest(meaning.vocabulary):
        raise FormatError(
            f"{path} holds {tokens.dtype} of shape {tokens.shape}, but {_meaning_path(path).name} tells of "
            f"{meaning.tokens} ids below {meaning.vocabulary}: make both anew."
        )
    return tokens, meaning


def _write_array(file: BinaryIO, parts: Iterable[Tokens], dtype: np.dtype[Any], note: Callable[[bytes], None]) -> int:
    """An array whose length is known only at its end: NumPy keeps room in the header for the length to grow."""
    count = 0
    _write_header(file, dtype, count)
    begun = file.tell()
    for part in parts:
        content = part.astype(dtype, copy=False).tobytes()
        note(content)
        file.write(content)
        count += len(part)
    file.seek(0)
    _write_header(file, dtype, count)
    if file.tell() != begun:
        raise AssertionError("the header has another length than was kept for it")
    return count


def _write_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _unwritable(path: Path, error: OSError) -> MegascopeError:
    return MegascopeError(f"Cannot write the token file {path} ({error.strerror}): choose another place.")


def _meaning_path(path: Path) -> Path:
    return path.with_suffix(".json")
