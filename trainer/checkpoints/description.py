"""What a rank's shard holds, where, and with which checksums: the description that lies beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import DamagedError
from .regions import Grid, Span

VERSION = 2

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Block:
    """Some elements of a piece on disk: in this rank's shard of checkpoint ``step``, which may be an earlier one."""

    step: int
    place: int
    size_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Piece:
    """One state of one parameter, as far as a rank has it; its blocks follow each other.

    ``dtype`` is torch's name of the numbers' format, such as "float32".
    """

    parameter: str
    state: str
    dtype: str
    span: Span
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Description:
    """All that a rank has in a checkpoint. ``generators`` are the states of its random numbers, in base64."""

    rank: int
    size_bytes: int
    pieces: tuple[Piece, ...]
    generators: Mapping[str, str]

    @property
    def bases(self) -> set[int]:
        """Steps of the checkpoints whose shards hold blocks of this one, its own included."""
        return {block.step for piece in self.pieces for block in piece.blocks}


def checksum_of(content: Buffer) -> str:
    """BLAKE2b, 16 bytes in hexadecimal."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def write_description(description: Description, step: int) -> bytes:
    """As JSON."""
    value = {
        "version": VERSION,
        "step": step,
        "rank": description.rank,
        "size_bytes": description.size_bytes,
        "generators": dict(description.generators),
        "pieces": [_from_piece(piece) for piece in description.pieces],
    }
    return json.dumps(value, separators=(",", ":")).encode()


def read_description(path: Path, content: bytes) -> Description:
    """The description in a file's content; DamagedError where it is none."""
    try:
        value = json.loads(content)
        pieces = tuple(_to_piece(piece) for piece in value["pieces"])
        return Description(value["rank"], value["size_bytes"], pieces, value["generators"])
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedError(f"{path} cannot be read ({error})") from error


def _from_piece(piece: Piece) -> dict[str, Any]:
    span = piece.span
    return {
        "parameter": piece.parameter,
        "state": piece.state,
        "dtype": piece.dtype,
        "shape": span.grid.shape,
        "dimension": span.grid.dimension,
        "index": span.index,
        "count": span.count,
        "offset": span.offset,
        "length": span.length,
        "blocks": [(block.step, block.place, block.size_bytes, block.checksum) for block in piece.blocks],
    }


def _to_piece(value: Mapping[str, Any]) -> Piece:
    grid = Grid(tuple(value["shape"]), value["dimension"])
    span = Span(grid, value["index"], value["count"], value["offset"], value["length"])
    blocks: Sequence[Sequence[Any]] = value["blocks"]
    return Piece(
        value["parameter"],
        value["state"],
        value["dtype"],
        span,
        tuple(Block(step, place, size, checksum) for step, place, size, checksum in blocks),
    )
