"""``megascope import``: other tools' traces and logs, made into a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import UsageError
from ..profiler.store_address import store_url
from .common import Json, print_json, print_report, progress_of

if TYPE_CHECKING:
    from ..collectors.importers.imported import Report


def import_traces(
    paths: Annotated[list[Path], Parameter(help="Files or folders of one run.", negative="")],
    /,
    *,
    to: Annotated[Path, Parameter(help="Folder of the store to write to; made if it does not exist.")],
    run: Annotated[str | None, Parameter(help="Name of the run; from the trace by default.")] = None,
    format: Annotated[
        str | None,
        Parameter(
            help="bytedance, kineto, megatron-log, megatron-json or deepspeed-log; told by the content by default."
        ),
    ] = None,
    layout: Annotated[
        Path | None, Parameter(help="File with the sizes of the axes; the one beside the trace by default.")
    ] = None,
    depth: Annotated[
        int, Parameter(help="Kineto: levels of nested CPU operators to keep, 0 for none.", validator=Number(gte=0))
    ] = 1,
    json: Json = False,
) -> int:
    """Import a run of another tool: what-if traces, Kineto traces of many ranks, logs of Megatron or DeepSpeed.

    Afterwards every verb and page works on the store. Either the whole run is in the store or nothing of it.

    Example: megascope import trace-AR.parquet --to runs/imported
    """
    from ..collectors.importers.imported import Format  # noqa: PLC0415
    from ..collectors.importers.importing import import_run  # noqa: PLC0415
    from ..collectors.importers.stopping import StoppedError, terminated_as_interrupted  # noqa: PLC0415

    if format is not None and format not in list(Format):
        raise UsageError(f"There is no format {format!r}: choose one of {', '.join(Format)}.")
    if (url := store_url(to)) is not None:
        raise UsageError(f"An import is written to a folder, not to {url}: give one, and copy it there as it is.")
    chosen = None if format is None else Format(format)
    report: Report | None = None
    try:
        with terminated_as_interrupted(), progress_of("importing") as progress:
            report = import_run(paths, to, run=run, format=chosen, layout=layout, depth=depth, progress=progress)
    except KeyboardInterrupt:
        if report is None:
            raise StoppedError("Stopped: nothing was imported.") from None
        raise StoppedError(f"Stopped when the import was done: run {report.run!r} is in {to}.") from None
    _show(report, json=json)
    return 0


def _show(report: Report, *, json: bool) -> None:
    from ..collectors.importers.imported import tables_of  # noqa: PLC0415

    if json:
        values: dict[str, Any] = {name: getattr(report, name) for name in type(report).__slots__}
        print_json(values | {"store": str(report.store), "format": str(report.format), "notes": list(report.notes)})
        return
    print_report(
        f"imported into {report.store}: " + ", ".join(f"{label} {value}" for label, value in tables_of(report))
    )
    for note in report.notes:
        sys.stdout.write(f"  - {note}\n")
