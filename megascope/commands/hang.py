"""``megascope hang``: who is stuck, and who waits for whom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .common import AttemptNumber, Json, Run, StorePath, open_attempt, print_json, print_report, report_damage

Bundle = Annotated[
    Path | None, Parameter(help="Zip file to write: the verdict, what it was read from, and the 3D page.")
]


def hang(
    store: StorePath, /, *, run: Run = None, attempt: AttemptNumber = None, bundle: Bundle = None, json: Json = False
) -> int:
    """Say who is stuck and who waits for whom, from heartbeats and from what is in flight.

    Example: megascope hang runs/demo/store --json
    """
    from ..viz3d.hang import diagnose_with_graph, to_json  # noqa: PLC0415
    from ..viz3d.report import render  # noqa: PLC0415

    opened, chosen = open_attempt(store, run, attempt)
    judged = diagnose_with_graph(opened, chosen)
    if json:
        print_json(to_json(judged.verdict))
    else:
        print_report(render(judged))
    if bundle is not None:
        from ..bundling import bundle as write  # noqa: PLC0415

        sys.stderr.write(f"megascope: {write(bundle, judged, store=opened, attempt=chosen)}\n")
    report_damage(opened)
    return 0
