"""`import_run`: from files of another tool to a run in a store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from ...profiler.errors import FormatError, MegascopeError, UsageError
from .bytedance.bytedance import ByteDanceTrace
from .deepspeed_log import DeepSpeedLog
from .hostile import plain_name
from .imported import Format, Progress, Report, Source, no_progress
from .intake import LONGEST_NAME, intake
from .kineto.kineto import DEFAULT_DEPTH, KinetoTraces
from .megatron_json import MegatronCurves
from .megatron_log import MegatronLog
from .recognise import format_of, recognise


def import_run(
    paths: Sequence[Path],
    root: Path,
    *,
    run: str | None = None,
    format: Format | None = None,
    layout: Path | None = None,
    depth: int = DEFAULT_DEPTH,
    progress: Progress = no_progress,
) -> Report:
    """Import one run into the store at ``root``, which is made where it does not exist.

    ``format`` None: told by the content. ``layout`` is the file that tells the sizes of the axes; it is also found
    beside the trace. ``depth`` is how deep in each other operators of the host are kept (Kineto). Either everything
    is in the store afterwards or nothing. Raises UsageError for a path that is not there, a format that does not fit
    or a run that the store has already, and MegascopeError for damaged files.
    """
    began = time.perf_counter()
    for path in [*paths, *([layout] if layout is not None else [])]:
        if not path.exists():
            raise UsageError(f"There is nothing at {path}: check the path.")
    if not paths:
        raise UsageError("Say what to import: megascope import PATH --to STORE.")
    found = Format(format) if format is not None else recognise(paths)
    with _told_of(paths):
        source = open_source(found, paths, layout, depth)
    name = run if run is not None else source.run[:LONGEST_NAME]
    with intake(root, name) as rows:
        with _told_of(paths):
            done = source.read(rows, progress)
        rows.finish(done)
    return Report(
        root, name, found, len(rows.ranks), done.world_size, len(rows.steps), rows.spans, done.rejected, done.dropped,
        (*done.notes, *_left_out(source.others, found)), round(time.perf_counter() - began, 3),
    )  # fmt: skip


@contextmanager
def _told_of(paths: Sequence[Path]) -> Iterator[None]:
    """Make a sentence of what values break that no tool writes. Raises FormatError instead of what they raise."""
    try:
        yield
    except MegascopeError:
        raise
    except (pa.ArrowException, ValueError, OverflowError, RecursionError, MemoryError) as error:
        told = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise FormatError(
            f"{', '.join(map(str, paths[:3]))} holds values that cannot be true ({told[:200]}): check what wrote it."
        ) from error


def _left_out(others: Sequence[str], format: Format) -> Iterator[str]:
    """A note about files that lay beside those that were imported."""
    if others:
        names = ", ".join(sorted(others)[:5]) + (", ..." if len(others) > 5 else "")
        count = "1 other file is" if len(others) == 1 else f"{len(others):,} other files are"
        yield f"{count} not of format {format} and left out: {names}"


def open_source(format: Format, paths: Sequence[Path], layout: Path | None, depth: int) -> Source:
    """What reads files of a format. Raises UsageError where there are more files than make one run."""
    if format is Format.KINETO:
        return KinetoTraces(paths, depth, layout)
    if layout is not None and format is not Format.BYTEDANCE:
        raise UsageError(f"Files of format {format} tell their layout themselves: leave --layout out.")
    path, others = _single(paths, format)
    if not path.stat().st_size:
        raise FormatError(f"{path} is empty: the tool that should have written it did not come to it.")
    source: Source
    if format is Format.BYTEDANCE:
        source = trace = ByteDanceTrace(path, layout)
        others = [one for one in others if one != trace.layout]
    elif format is Format.MEGATRON_LOG:
        source = MegatronLog(path)
    elif format is Format.DEEPSPEED_LOG:
        source = DeepSpeedLog(path)
    else:
        source = MegatronCurves(path)
    source.others += [plain_name(one) for one in others]
    return source


def _single(paths: Sequence[Path], format: Format) -> tuple[Path, list[Path]]:
    """The one file of a format, and the others that lie in its folder."""
    if len(paths) > 1:
        raise UsageError(f"Files of format {format} are one run each: import them one by one, each with its --run.")
    if not paths[0].is_dir():
        return paths[0], []
    inside = [one for one in sorted(paths[0].rglob("*")) if one.is_file()]
    chosen = [one for one in inside if format_of(one) is format]
    if len(chosen) != 1:
        raise UsageError(f"{paths[0]} has {len(chosen)} files of format {format}, which are one run each: give one.")
    return chosen[0], [one for one in inside if one != chosen[0]]
