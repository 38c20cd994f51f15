"""``megascope timeline``: spans for Perfetto."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..profiler.errors import MegascopeError
from .common import (
    AttemptNumber,
    Json,
    Ranks,
    Run,
    Since,
    Steps,
    StorePath,
    Until,
    choose_steps,
    local_path,
    open_attempt,
    parse_ranks,
    print_json,
    progress_of,
    report_damage,
)


def timeline(
    store: StorePath,
    /,
    *,
    out: Annotated[Path, Parameter(help="File to write, in the Chrome trace format; .gz compresses it.")],
    run: Run = None,
    attempt: AttemptNumber = None,
    steps: Steps = None,
    since: Since = None,
    until: Until = None,
    ranks: Ranks = None,
    json: Json = False,
) -> int:
    """Export spans as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

    Example: megascope timeline runs/demo/store --steps 30:32 --ranks 0-7 --out trace.json
    """
    from ..collectors.timeline import export_chrome  # noqa: PLC0415

    local_path(out, "--out")
    opened, chosen = open_attempt(store, run, attempt)
    between = choose_steps(opened, chosen, steps, since, until)
    try:
        with progress_of("spans") as progress:
            written = export_chrome(opened, chosen, out, ranks=parse_ranks(ranks), steps=between, progress=progress)
    except OSError as error:
        raise MegascopeError(f"Cannot write {out} ({error.strerror}): give another --out.") from error
    report_damage(opened)
    if json:
        print_json({"spans": written, "file": str(out)})
    else:
        sys.stdout.write(f"{written} spans written to {out}\n")
    return 0
