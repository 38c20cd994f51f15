"""``megascope doctor``: checks of the installation and of the machine."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .common import Json, print_report


def doctor(
    store: Annotated[
        Path | None, Parameter(help="Folder or URL of the store; $MEGASCOPE_STORE by default, else ./megascope-store.")
    ] = None,
    /,
    *,
    json: Json = False,
) -> int:
    """Check the installation and this machine, and say what to change: versions, settings, spool, store, clocks.

    Give it the environment of the job, on a host of the job. It changes nothing, writes nothing that stays, and does
    not import torch. Each check says what it looked at. The exit code is 1 where there is a problem, else 0.

    Example: megascope doctor /data/store --json
    """
    from ..doctor.machine import Machine  # noqa: PLC0415
    from ..doctor.report import examine, render  # noqa: PLC0415

    report = examine(Machine(given=store))
    if json:
        sys.stdout.write(json_text.dumps(report.as_json()) + "\n")
    else:
        print_report(render(report))
    return report.exit_code
