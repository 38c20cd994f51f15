"""Tells the format of a trace by its content."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from ...profiler.errors import UsageError
from .imported import Format

LOOKED_AT = 1 << 20
"""Bytes from the beginning of a file that its format is told by."""

_LOG = re.compile(rb"\biteration\s+\d+/\s*\d+\s*\||-- arguments --|\bsteps: \d+ loss: \S+ iter time")
_DEEPSPEED = re.compile(
    rb"\[logging\.py:\d+:log_dist\]|\[timer\.py:\d+:stop\]|\btime \(ms\) \| (?:fwd|(?:fwd|forward)_microstep):|"
    rb"\[Rank 0\] step=\d+, skipped=\d+,|/global_step=\d+, RunningAvgSamplesPerSec="
)
_ARCHIVES = (".tar", ".tar.gz", ".tgz")


def recognise(paths: Sequence[Path]) -> Format:
    """The format of the files, from the first that tells. Raises UsageError where it is none that can be imported."""
    seen: list[Path] = []
    for path in paths:
        inside = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        seen += inside
        for one in inside[:100]:
            found = format_of(one)
            if found is not None:
                return found
    if not seen:
        raise UsageError(f"There is no file in {paths[0]}: check the path.")
    if not any(one.stat().st_size for one in seen):
        what = f"{seen[0]} is" if len(seen) == 1 else f"All {len(seen)} files in {paths[0]} are"
        raise UsageError(f"{what} empty: the tool that should have written something did not come to it.")
    raise UsageError(f"The format of {paths[0]} is not known: give --format, one of {', '.join(Format)}.")


def format_of(path: Path) -> Format | None:
    """The format of one file; None where its content is none that can be imported."""
    return Format.KINETO if path.name.endswith(_ARCHIVES) else _by_content(_beginning(path))


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(LOOKED_AT)
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return zlib.decompressobj(wbits=31).decompress(data, LOOKED_AT)
    except (zlib.error, gzip.BadGzipFile):
        return b""


def _by_content(data: bytes) -> Format | None:
    text = data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if data[:4] == b"PAR1":
        return Format.BYTEDANCE
    if b'"traceEvents"' in text or (text[:1] == b"[" and b'"ph"' in text):
        return Format.KINETO
    if text[:1] == b"{" and b'"iteration-time"' in text:
        return Format.MEGATRON_JSON
    if _LOG.search(text):
        return Format.MEGATRON_LOG
    return Format.DEEPSPEED_LOG if _DEEPSPEED.search(text) else None
