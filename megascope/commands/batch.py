"""``megascope batch``: questions over a run's whole raw archive, by DuckDB here or by a Spark cluster."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import UsageError
from .common import AttemptNumber, Json, Run, Steps, StorePath, parse_steps, print_json, print_report, report_damage


class Job(StrEnum):
    """What is asked."""

    ROLLUPS = "rollups"
    ALIGN = "align"
    WORST = "worst"
    CHANGED = "changed"
    WHATIF = "whatif"


class EngineChoice(StrEnum):
    """Who answers."""

    DUCKDB = "duckdb"
    SPARK = "spark"


def batch(
    job: Annotated[Job, Parameter(help="What is asked of all raw spans.")],
    store: StorePath,
    /,
    *,
    engine: Annotated[EngineChoice, Parameter(help="DuckDB on this machine, or Spark.")] = EngineChoice.DUCKDB,
    master: Annotated[
        str | None, Parameter(help="Spark cluster, such as spark://HOST:7077; this machine's cores by default.")
    ] = None,
    run: Run = None,
    attempt: AttemptNumber = None,
    steps: Steps = None,
    before: Annotated[str | None, Parameter(help="Steps FIRST:LAST that `changed` compares with.")] = None,
    after: Annotated[str | None, Parameter(help="Steps FIRST:LAST that `changed` looks at.")] = None,
    stretch: Annotated[
        int | None, Parameter(help="Steps that `whatif` replays together.", validator=Number(gte=1))
    ] = None,
    limit: Annotated[int, Parameter(help="Rows of ranks to show.", validator=Number(gte=1))] = 20,
    out: Annotated[Path | None, Parameter(help="New folder for the rows of `rollups` or `align`, as Parquet.")] = None,
    json: Json = False,
) -> int:
    """Ask a question of every raw span of a run, through all its attempts: what outgrows the pages and their rollups.

    rollups: make the windows again, and hold them against the store's. align: align the clocks of all hosts again.
    worst: the ranks whose own work costs the most beside their peers'. changed: what takes longer in one stretch of
    steps than in another. whatif: how fast each stretch would be with every operation at its ideal.

    Example: megascope batch worst /data/store --engine spark --master spark://head:7077 --json
    """
    from ..batch.engines import EngineName, open_engine  # noqa: PLC0415
    from ..batch.report import render  # noqa: PLC0415
    from ..batch.scope import find_scope  # noqa: PLC0415
    from ..collectors.reading.store import Store  # noqa: PLC0415

    _check(job, before, after, stretch, out)
    opened = Store(store)
    scope = find_scope(opened, run, attempt, parse_steps(steps))
    began = time.monotonic()
    chosen = open_engine(EngineName(engine.value), scope, master)
    try:
        with _waiting(f"{job}: about {scope.about_spans:,} spans, by {engine}"):
            result = _ask(job, scope, chosen, before, after, stretch, limit, out)
    finally:
        chosen.close()
    answer = {
        "schema": 1,
        "job": job.value,
        "engine": engine.value,
        "run": scope.run,
        "attempts": [one.attempt for one in scope.attempts],
        "spans_about": scope.about_spans,
        "seconds": time.monotonic() - began,
        "result": result,
    }
    if json:
        print_json(answer)
    else:
        print_report(render(job.value, answer))
    report_damage(opened)
    return 0


def _ask(
    job: Job,
    scope: Any,
    engine: Any,
    before: str | None,
    after: str | None,
    stretch: int | None,
    limit: int,
    out: Path | None,
) -> Any:
    if job == Job.WORST:
        from ..batch.worst import find_worst  # noqa: PLC0415

        return find_worst(scope, engine, limit)
    if job == Job.CHANGED:
        from ..batch.changed import find_changed, sides_of  # noqa: PLC0415

        return find_changed(scope, engine, sides_of(scope, parse_steps(before), parse_steps(after)), limit)
    if job == Job.ROLLUPS:
        from ..batch.rollups import find_rollups  # noqa: PLC0415

        return find_rollups(scope, engine, out)
    if job == Job.ALIGN:
        from ..batch.align import find_alignment  # noqa: PLC0415

        return find_alignment(scope, engine, out)
    from ..batch.whatif import find_whatif_over  # noqa: PLC0415

    return find_whatif_over(scope, engine, stretch)


def _check(job: Job, before: str | None, after: str | None, stretch: int | None, out: Path | None) -> None:
    """What does not belong to the job is refused before hours of work."""
    from ..batch.folders import refuse_existing  # noqa: PLC0415

    if (before or after) and job != Job.CHANGED:
        raise UsageError("--before and --after are for the job `changed`: leave them out.")
    if stretch is not None and job != Job.WHATIF:
        raise UsageError("--stretch is for the job `whatif`: leave it out.")
    if out is not None:
        if job not in {Job.ROLLUPS, Job.ALIGN}:
            raise UsageError("--out is for the jobs `rollups` and `align`: redirect --json for the others.")
        refuse_existing(out)


def _waiting(what: str) -> Any:
    """A spinner on stderr where that is a terminal."""
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True).status(what)
