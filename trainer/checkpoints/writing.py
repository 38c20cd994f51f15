"""Writing a rank's shard: all blocks, or, between whole checkpoints, those that have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...collectors.storage.durable import make_folders, write_durably
from .description import Block, Description, Piece, checksum_of, write_description
from .files import commit_path, description_path, shard_path

BLOCK_BYTES = 2**20
"""A block is the least that is read, checked, or left out because it has not changed."""

Stage = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Written:
    """What a rank reports of its shard: ``checksum`` is its description's; ``bases`` are steps with blocks of it."""

    size_bytes: int
    state_bytes: int
    checksum: str
    bases: Sequence[int]


class ShardWriter:
    """Writes one rank's shards one after the other, and remembers the blocks of the last."""

    def __init__(self, folder: Path, rank: int, *, whole_every: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._folder, self._rank = folder, rank
        self._whole_every, self._block_bytes = whole_every, block_bytes
        self._last: Sequence[Piece] = ()
        self._last_step = -1
        self._since_whole = 0

    def write(
        self, step: int, pieces: Sequence[tuple[Piece, memoryview]], generators: Mapping[str, str], stage: Stage
    ) -> Written:
        """Write the shard and then its description; ``pieces`` come without blocks, with their bytes.

        ``stage`` gives the context of each of "write", "sync" and "rename". Raises OSError.
        """
        is_whole = not self._may_refer()
        known = {} if is_whole else _by_content(self._last)
        described, contents, place = [], list[memoryview](), 0
        for piece, content in pieces:
            blocks = []
            for index, part in enumerate(_cut(content, self._block_bytes)):
                checksum = checksum_of(part)
                block = known.get((piece.parameter, piece.state, piece.span.offset, index, len(part), checksum))
                if block is None:
                    block = Block(step, place, len(part), checksum)
                    contents.append(part)
                    place += len(part)
                blocks.append(block)
            described.append(replace(piece, blocks=tuple(blocks)))
        description = Description(self._rank, place, tuple(described), generators)
        path = shard_path(self._folder, step, self._rank)
        make_folders(path.parent)
        write_durably(path, lambda file: _fill(file, contents), stage=stage)
        text = write_description(description, step)
        write_durably(description_path(self._folder, step, self._rank), lambda file: _fill(file, [text]), stage=stage)
        self._last, self._last_step = described, step
        self._since_whole = 1 if is_whole else self._since_whole + 1
        size = sum(len(content) for _, content in pieces)
        return Written(place, size, checksum_of(text), sorted(description.bases - {step}))

    def _may_refer(self) -> bool:
        """Whether this shard may leave blocks to the one before, which must be committed: else it may yet go."""
        is_due = self._since_whole >= self._whole_every
        return not is_due and self._last_step >= 0 and commit_path(self._folder, self._last_step).exists()


def _by_content(pieces: Sequence[Piece]) -> dict[tuple[str, str, int, int, int, str], Block]:
    return {
        (piece.parameter, piece.state, piece.span.offset, index, block.size_bytes, block.checksum): block
        for piece in pieces
        for index, block in enumerate(piece.blocks)
    }


def _cut(content: memoryview, size: int) -> Iterator[memoryview]:
    for begin in range(0, len(content), size):
        yield content[begin : begin + size]


def _fill(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
