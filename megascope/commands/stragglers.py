"""``megascope stragglers``: who is slow; what got slower than before; who is slow again and again."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..profiler.errors import UsageError
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
    open_attempt,
    parse_ranks,
    parse_steps,
    print_json,
    print_report,
    progress_of,
    report_damage,
)

if TYPE_CHECKING:
    from ..collectors.reading.store import Attempt, Store


def stragglers(
    store: StorePath,
    /,
    *,
    run: Run = None,
    attempt: AttemptNumber = None,
    steps: Steps = None,
    since: Since = None,
    until: Until = None,
    ranks: Ranks = None,
    against: Annotated[
        str | None,
        Parameter(help="Say what got slower than in RUN, RUN/ATTEMPT, another STORE or STORE:RUN."),
    ] = None,
    against_steps: Annotated[
        str | None,
        Parameter(help="Steps FIRST:LAST to compare with: of --against, else of the same attempt."),
    ] = None,
    fleet: Annotated[
        bool, Parameter(negative="", help="Judge all runs and attempts: which hosts are slow again and again.")
    ] = False,
    also: Annotated[tuple[Path, ...], Parameter(negative="", help="A further store for --fleet (repeatable).")] = (),
    json: Json = False,
) -> int:
    """Say which rank or host is slow, with the evidence; or what is missing to tell.

    Example: megascope stragglers runs/demo/store --steps 20:

    Example: megascope stragglers runs/demo/store --steps 60: --against-steps 10:50
    """
    chosen_ranks = parse_ranks(ranks)
    if chosen_ranks is not None and (fleet or against is not None or against_steps is not None):
        raise UsageError("--ranks is for the verdict alone: leave it out, or --fleet and --against.")
    if fleet:
        _only_stores(run, attempt, steps, since, until, against, against_steps)
        return _fleet([store, *also], json=json)
    if also:
        raise UsageError("--also names further stores for --fleet: add --fleet, or leave it out.")
    opened, chosen = open_attempt(store, run, attempt)
    between = choose_steps(opened, chosen, steps, since, until)
    if against is not None or against_steps is not None:
        return _against(opened, chosen, between, against, _against_steps(against_steps), json=json)
    from ..heatmap.report import render  # noqa: PLC0415
    from ..heatmap.stragglers import find_stragglers  # noqa: PLC0415
    from ..heatmap.verdict import to_json  # noqa: PLC0415

    with progress_of("judging") as progress:
        verdict = find_stragglers(opened, chosen, steps=between, ranks=chosen_ranks, progress=progress)
    if json:
        print_json(to_json(verdict))
    else:
        print_report(render(verdict))
    report_damage(opened)
    return 0


def _against(
    store: Store,
    attempt: Attempt,
    steps: tuple[int, int] | None,
    against: str | None,
    other_steps: tuple[int, int] | None,
    *,
    json: bool,
) -> int:
    from ..heatmap.against.analysis import compare_runs  # noqa: PLC0415
    from ..heatmap.against.report import render  # noqa: PLC0415
    from ..heatmap.against.result import to_json  # noqa: PLC0415
    from .other_run import find_other  # noqa: PLC0415

    other_store, other = (store, attempt) if against is None else find_other(against, store)
    is_same_store = other_store.root.resolve() == store.root.resolve()
    if is_same_store and (other.run, other.attempt) == (attempt.run, attempt.attempt):
        _check_apart(steps, other_steps)
    found = compare_runs(store, attempt, other_store, other, steps=steps, other_steps=other_steps)
    if json:
        print_json(to_json(found))
    else:
        print_report(render(found))
    for one in {store.root.resolve(): store, other_store.root.resolve(): other_store}.values():
        report_damage(one)
    return 0


def _against_steps(text: str | None) -> tuple[int, int] | None:
    try:
        return parse_steps(text)
    except UsageError as error:
        raise UsageError(str(error).replace("--steps", "--against-steps")) from None


def _check_apart(steps: tuple[int, int] | None, other: tuple[int, int] | None) -> None:
    """Raise UsageError where two windows of one attempt share steps, which would be compared with themselves."""
    if other is None:
        raise UsageError("The run would be compared with itself: give --against-steps, or another run with --against.")
    if steps is None or (steps[0] <= other[1] and other[0] <= steps[1]):
        raise UsageError(
            f"The steps to compare overlap those of --against-steps {other[0]}:{other[1]}: give --steps FIRST:LAST "
            "apart from them."
        )


def _only_stores(
    run: str | None,
    attempt: int | None,
    steps: str | None,
    since: datetime | None,
    until: datetime | None,
    against: str | None,
    against_steps: str | None,
) -> None:
    given = {
        "--run": run, "--attempt": attempt, "--steps": steps, "--since": since, "--until": until, "--against": against,
        "--against-steps": against_steps,
    }  # fmt: skip
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise UsageError(f"--fleet looks at all runs and steps: leave out {', '.join(named)}.")


def _fleet(paths: list[Path], *, json: bool) -> int:
    from ..collectors.reading.store import Store as Opened  # noqa: PLC0415
    from ..heatmap.fleet.analysis import find_offenders  # noqa: PLC0415
    from ..heatmap.fleet.report import render  # noqa: PLC0415
    from ..heatmap.fleet.result import to_json  # noqa: PLC0415

    stores = [Opened(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    with progress_of("attempts") as progress:
        found = find_offenders(stores, progress=progress)
    if json:
        print_json(to_json(found))
    else:
        print_report(render(found))
    for store in stores:
        report_damage(store)
    return 0
