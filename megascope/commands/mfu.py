"""``megascope mfu``: MFU over time, and what explains its decline."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import MegascopeError
from .common import (
    Json,
    Run,
    Since,
    Steps,
    StorePath,
    Until,
    choose_steps,
    local_path,
    open_attempt,
    print_json,
    print_report,
    report_damage,
)

if TYPE_CHECKING:
    from ..collectors.reading.store import Attempt, Store


def mfu(
    store: StorePath,
    /,
    *,
    run: Run = None,
    attempt: Annotated[
        int | None, Parameter(name="--attempt", help="Attempt of the run; all of the run by default.")
    ] = None,
    steps: Steps = None,
    since: Since = None,
    until: Until = None,
    bins: Annotated[int, Parameter(help="Stretches of steps that are told apart.", validator=Number(gte=2))] = 12,
    csv: Annotated[Path | None, Parameter(help="File to write the stretches to, one row each.")] = None,
    json: Json = False,
) -> int:
    """Show MFU over time, and which part of a step explains what was lost; restarts and repeated steps too.

    Where no MFU was recorded, tokens a second or the step time against the reference stretch stand for it.

    Example: megascope mfu runs/demo/store --steps 100: --csv mfu.csv
    """
    from ..heatmap.mfu.analysis import find_mfu  # noqa: PLC0415
    from ..heatmap.mfu.report import render, write_csv  # noqa: PLC0415
    from ..heatmap.mfu.result import to_json  # noqa: PLC0415

    if csv is not None:
        local_path(csv, "--csv")
    opened, newest = open_attempt(store, run, attempt)
    chosen = [one for one in opened.attempts() if one.run == newest.run] if attempt is None else [newest]
    chosen, between = _in_time(opened, chosen, steps, since, until)
    report = find_mfu(opened, chosen, steps=between, bins=bins)
    if csv is not None:
        write_csv(report, csv)
    if json:
        print_json(to_json(report))
    else:
        print_report(render(report))
    report_damage(opened)
    return 0


def _in_time(
    store: Store, attempts: list[Attempt], steps: str | None, since: datetime | None, until: datetime | None
) -> tuple[list[Attempt], dict[int, tuple[int, int]] | None]:
    """The attempts that have steps in the given time, and from which step to which in each; None for all."""
    between: dict[int, tuple[int, int]] = {}
    missing: MegascopeError | None = None
    for one in attempts:
        try:
            chosen = choose_steps(store, one, steps, since, until)
        except MegascopeError as error:
            missing = error
        else:
            if chosen is None:
                return attempts, None
            between[one.attempt] = chosen
    if not between and missing is not None:
        raise missing
    return [one for one in attempts if one.attempt in between], between
