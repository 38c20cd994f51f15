"""``megascope hang``: who is stuck, and who waits for whom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .common import AttemptNumber, Json, Run, open_attempt, print_json, print_report, progress_of, report_damage

Bundle = Annotated[
    Path | None, Parameter(help="Zip file to write: the verdict, what it was read from, and the 3D page.")
]
Paths = Annotated[list[Path], Parameter(help="A store, folders of Flight Recorder dumps, logs, or all together.")]


def hang(
    paths: Paths, /, *, run: Run = None, attempt: AttemptNumber = None, bundle: Bundle = None, json: Json = False
) -> int:
    """Say who is stuck and who waits for whom, from whatever is left: a store, Flight Recorder dumps, logs.

    Example: megascope hang runs/demo/store dumps/ job.log --json
    """
    from ..viz3d.hang import to_json  # noqa: PLC0415
    from ..viz3d.paths import diagnose_paths, files_of, sort_paths  # noqa: PLC0415
    from ..viz3d.report import render  # noqa: PLC0415

    sources = sort_paths([Path(path) for path in paths])
    opened = open_attempt(sources.stores[0], run, attempt) if sources.stores else None
    with progress_of("reading") as progress:
        judged = diagnose_paths(sources, opened, progress)
    if json:
        print_json(to_json(judged.verdict))
    else:
        print_report(render(judged))
    if bundle is not None:
        from ..bundling import bundle as write  # noqa: PLC0415

        store, chosen = opened if opened is not None else (None, None)
        told = write(bundle, judged, store=store, attempt=chosen, files=files_of(sources))
        sys.stderr.write(f"megascope: {told}\n")
    if opened is not None:
        report_damage(opened[0])
    return 0
