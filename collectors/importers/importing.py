"""`import_run`: from files of another tool to a run in a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ...profiler.errors import UsageError
from .bytedance import ByteDanceTrace
from .imported import Format, Progress, Report, Source, no_progress
from .intake import LONGEST_NAME, intake
from .kineto import DEFAULT_DEPTH, KinetoTraces
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
    source = open_source(found, paths, layout, depth)
    name = run if run is not None else source.run[:LONGEST_NAME]
    with intake(root, name) as rows:
        done = source.read(rows, progress)
        rows.finish(done)
    return Report(
        root, name, found, len(rows.ranks), done.world_size, len(rows.steps), rows.spans, done.rejected, done.notes,
        round(time.perf_counter() - began, 3),
    )  # fmt: skip


def open_source(format: Format, paths: Sequence[Path], layout: Path | None, depth: int) -> Source:
    """What reads files of a format. Raises UsageError where there are more files than make one run."""
    if format is Format.BYTEDANCE:
        return ByteDanceTrace(_single(paths, format), layout)
    if format is Format.KINETO:
        return KinetoTraces(paths, depth, layout)
    if layout is not None:
        raise UsageError(f"Files of format {format} tell their layout themselves: leave --layout out.")
    if format is Format.MEGATRON_LOG:
        return MegatronLog(_single(paths, format))
    if format is Format.MEGATRON_JSON:
        return MegatronCurves(_single(paths, format))
    raise UsageError(f"Format {format} cannot be imported: use one of {', '.join(Format)}.")


def _single(paths: Sequence[Path], format: Format) -> Path:
    if len(paths) > 1:
        raise UsageError(f"Files of format {format} are one run each: import them one by one, each with its --run.")
    if not paths[0].is_dir():
        return paths[0]
    inside = [one for one in sorted(paths[0].rglob("*")) if one.is_file() and format_of(one) is format]
    if len(inside) != 1:
        raise UsageError(f"{paths[0]} has {len(inside)} files of format {format}, which are one run each: give one.")
    return inside[0]
