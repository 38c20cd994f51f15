"""Reading a committed checkpoint: its descriptions, and blocks that are checked as they are read."""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from .commit import Commit, parse_commit, read_commit
from .description import Block, Description, Piece, checksum_of, read_description
from .files import DamagedError, commit_path, description_path, shard_path
from .regions import Bits, Span, copy_overlap, overlaps

BITS: Mapping[str, Any] = {
    "float64": np.uint64, "float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16, "int64": np.uint64,
}  # fmt: skip
"""Unsigned integers as wide as torch's formats."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint whose commit file and descriptions are intact; of its shards nothing is known yet."""

    commit: Commit
    descriptions: Sequence[Description]


def read_files(folder: Path, step: int) -> list[bytes]:
    """The contents of a checkpoint's commit file and of its descriptions, rank by rank.

    Raises DamagedError, which names the file, where one is missing, or where a checkpoint that this one builds upon is
    not there; UsageError where another version of this program wrote it.
    """
    commit = read_commit(folder, step)
    for base in commit.bases:
        if not commit_path(folder, base).exists():
            raise DamagedError(f"checkpoint {step} builds upon {base}, but {commit_path(folder, base)} is not there")
    paths = [description_path(folder, step, rank) for rank in range(len(commit.descriptions))]
    contents = []
    for path in (commit_path(folder, step), *paths):
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            raise DamagedError(f"{path} cannot be read ({error.strerror})") from error
    return contents


def parse_saved(folder: Path, step: int, contents: Sequence[bytes]) -> Saved:
    """A checkpoint from what `read_files` gave; DamagedError where one is not what was committed."""
    commit = parse_commit(commit_path(folder, step), contents[0])
    descriptions = []
    for rank, checksum in enumerate(commit.descriptions):
        path, content = description_path(folder, step, rank), contents[1 + rank]
        if checksum_of(content) != checksum:
            raise DamagedError(f"{path} is damaged: its checksum is wrong")
        descriptions.append(read_description(path, content))
    return Saved(commit, descriptions)


def read_saved(folder: Path, step: int) -> Saved:
    """Commit file and descriptions of a checkpoint; errors as of `read_files` and `parse_saved`."""
    return parse_saved(folder, step, read_files(folder, step))


class BlockReader:
    """Reads blocks of shards, checks each, and counts the bytes. A context manager: it holds the shards open.

    ``threads`` read and check at a time: checksums are most of the work, and other threads can run meanwhile.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self._folder, self._threads = folder, threads
        self._files: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="checkpoint-read")
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def read_all(self, wanted: Iterable[tuple[int, Block]]) -> Iterator[bytes]:
        """The contents of these ranks' blocks, in their order, a few of them read ahead; errors as of `read`."""
        ahead: deque[Future[bytes]] = deque()
        try:
            for rank, block in wanted:
                ahead.append(self._pool.submit(self.read, rank, block))
                if len(ahead) > 2 * self._threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    def read(self, rank: int, block: Block) -> bytes:
        """The content of a rank's block; DamagedError where it is not what was written."""
        path = shard_path(self._folder, block.step, rank)
        try:
            content = os.pread(self._opened(path), block.size_bytes, block.place)
        except OSError as error:
            raise DamagedError(f"{path} cannot be read ({error.strerror})") from error
        with self._lock:
            self.size_bytes += len(content)
        if len(content) != block.size_bytes:
            raise DamagedError(f"{path} ends before byte {block.place + block.size_bytes}")
        if checksum_of(content) != block.checksum:
            raise DamagedError(f"{path} is damaged: the checksum of what begins at byte {block.place} is wrong")
        return content

    def _opened(self, path: Path) -> int:
        with self._lock:
            if path not in self._files:
                self._files[path] = os.open(path, os.O_RDONLY)
            return self._files[path]


class Assembler:
    """Puts what is wanted of a checkpoint together, whichever ranks saved it."""

    def __init__(self, saved: Saved, reader: BlockReader) -> None:
        self._step, self._reader = saved.commit.step, reader
        self._pieces: dict[tuple[str, str], list[tuple[int, Piece]]] = defaultdict(list)
        for description in saved.descriptions:
            for piece in description.pieces:
                self._pieces[piece.parameter, piece.state].append((description.rank, piece))

    @property
    def names(self) -> list[str]:
        """All parameters of the checkpoint."""
        return sorted({parameter for parameter, _ in self._pieces})

    def any_piece(self, parameter: str, state: str) -> Piece | None:
        """One of the pieces of a tensor, for its shape and format; None where there is no such tensor."""
        found = self._pieces.get((parameter, state))
        return found[0][1] if found else None

    def fill(self, parameter: str, state: str, wanted: Span, dtype: str, out: Bits) -> None:
        """Read into ``out``, [wanted.length] of the format's width, what is wanted of one state of a parameter.

        Raises DamagedError where a block that is needed is not intact, or where no rank saved some of the elements.
        """
        is_filled = np.zeros(wanted.length, dtype=bool)
        for rank, piece in self._pieces.get((parameter, state), []):
            if piece.dtype != dtype or piece.span.grid != wanted.grid:
                grid = piece.span.grid
                raise DamagedError(
                    f"checkpoint {self._step} holds {state} of {parameter} as {piece.dtype} {list(grid.shape)} cut "
                    f"along {grid.dimension}, where {dtype} {list(wanted.grid.shape)} cut along "
                    f"{wanted.grid.dimension} is wanted"
                )
            if is_filled.all():
                break
            needed = [(span, block) for span, block in _blocks(piece) if overlaps(span, wanted)]
            contents = self._reader.read_all((rank, block) for _, block in needed)
            for (span, _), content in zip(needed, contents, strict=True):
                copy_overlap(span, np.frombuffer(content, BITS[dtype]), wanted, out, is_filled)
        if not is_filled.all():
            raise DamagedError(
                f"checkpoint {self._step} has {is_filled.sum()} of the {wanted.length} elements wanted of {state} of "
                f"{parameter}"
            )


def _blocks(piece: Piece) -> Iterator[tuple[Span, Block]]:
    """The blocks of a piece with what they hold of the tensor."""
    width, begin = np.dtype(BITS[piece.dtype]).itemsize, 0
    for block in piece.blocks:
        length, span = block.size_bytes // width, piece.span
        yield Span(span.grid, span.index, span.count, span.offset + begin, length), block
        begin += length
