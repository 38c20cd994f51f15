"""``megascope hang``: who is stuck, and who waits for whom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..profiler.errors import UsageError
from .common import (
    AttemptNumber,
    Json,
    RacksPath,
    Run,
    open_attempt,
    print_json,
    print_report,
    progress_of,
    report_damage,
)

Bundle = Annotated[
    Path | None, Parameter(help="Zip file to write: the verdict, what it was read from, and the 3D page.")
]
Paths = Annotated[
    list[Path], Parameter(help="A store, folders of Flight Recorder dumps, logs, or all together; or a bundle of them.")
]


def hang(
    paths: Paths,
    /,
    *,
    run: Run = None,
    attempt: AttemptNumber = None,
    bundle: Bundle = None,
    racks: RacksPath = None,
    json: Json = False,
) -> int:
    """Say who is stuck and who waits for whom, from whatever is left: a store, Flight Recorder dumps, logs.

    Example: megascope hang runs/demo/store dumps/ job.log --json
    """
    from ..profiler.racks import read_racks  # noqa: PLC0415
    from ..viz3d.bundle.reading import unpacked  # noqa: PLC0415
    from ..viz3d.hang import to_json  # noqa: PLC0415
    from ..viz3d.paths import diagnose_paths, sort_paths  # noqa: PLC0415
    from ..viz3d.report import render  # noqa: PLC0415

    if racks is not None and bundle is None:
        raise UsageError("--racks is for the 3D page of a bundle: give --bundle FILE.zip too.")
    known_racks = read_racks(racks)
    with unpacked([Path(path) for path in paths]) as given:
        sources = sort_paths(given.paths)
        opened = open_attempt(sources.stores[0], run, attempt, given.open_store) if sources.stores else None
        with progress_of("reading") as progress:
            judged = given.told(diagnose_paths(sources, opened, progress))
        if json:
            print_json(to_json(judged.verdict))
        else:
            print_report(render(judged))
        if bundle is not None:
            from ..bundling import bundle as write  # noqa: PLC0415

            told = write(bundle, judged, sources=sources, opened=opened, racks=known_racks)
            sys.stderr.write(f"megascope: {told}\n")
        if opened is not None:
            report_damage(opened[0])
    return 0
