"""Lines of a log as they come: plain or packed files, bounded memory, whatever bytes are in them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

LONGEST = 32_768
"""Bytes of a line that are kept; the rest of a longer one is passed over."""

PIECES = 64
"""A line that a progress bar wrote over is cut at its carriage returns: so many of the last pieces are kept."""

_PACKED = b"\x1f\x8b"


@dataclass(slots=True)
class LineReader:
    """Reads a file line by line. After the end ``lines`` and ``cut_lines`` count, and ``trouble`` says what stopped it.

    A file that cannot be opened, or that ends inside its packing, gives the lines before that and a ``trouble``.
    """

    path: Path
    lines: int = 0
    cut_lines: int = 0
    trouble: str | None = None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """The number of each line, from one, and its bytes without the line's end."""
        try:
            with self._open() as stream:
                yield from self._read(stream)
        except EOFError:
            self.trouble = "it is cut: its end is missing"
        except (gzip.BadGzipFile, zlib.error) as error:
            self.trouble = f"its packing is damaged ({error})"
        except OSError as error:
            self.trouble = f"it cannot be read ({error.strerror or error})"

    def _open(self) -> IO[bytes]:
        stream = self.path.open("rb")
        start = stream.read(2)
        stream.seek(0)
        if start != _PACKED:
            return stream
        stream.close()
        return cast("IO[bytes]", gzip.open(self.path, "rb"))

    def _read(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        while line := stream.readline(LONGEST):
            self.lines += 1
            if not line.endswith(b"\n") and len(line) == LONGEST:
                self._skip(stream)
            line = line.rstrip(b"\r\n")
            if b"\r" not in line:
                yield self.lines, line
                continue
            for piece in line.split(b"\r")[-PIECES:]:
                yield self.lines, piece

    def _skip(self, stream: IO[bytes]) -> None:
        """Pass over the rest of a line that is too long."""
        rest = b"\n"
        while (rest := stream.readline(LONGEST)) and not rest.endswith(b"\n"):
            pass
        self.cut_lines += 1
