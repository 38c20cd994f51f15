"""``megascope score``: how often the analysers are right, over simulated jobs whose faults are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from .common import Json, print_json, print_report, progress_of

if TYPE_CHECKING:
    from ..scoring.scoring import AnalyserScore, Score

POSITIVE = Number(gte=1)

QUICK_RANKS, QUICK_TRIALS = 64, 58
"""Twice each kind, in jobs so small that a trial takes a second."""


def score(
    *,
    ranks: Annotated[int | None, Parameter(help="Ranks of each job; 512 by default.", validator=POSITIVE)] = None,
    trials: Annotated[
        int | None,
        Parameter(help="Number of jobs, the kinds of faults by turns; 116 by default.", validator=POSITIVE),
    ] = None,
    kinds: Annotated[str | None, Parameter(help="Kinds of faults, such as slow-gpu,host-stuck,healthy; all.")] = None,
    seeds: Annotated[
        Literal["tune", "report"], Parameter(help="Set of seeds and magnitudes: thresholds may be tuned on tune only.")
    ] = "report",
    noise: Annotated[
        str, Parameter(help="none, builtin, or a what-if trace in Parquet to draw noise from.")
    ] = "builtin",
    in_flight: Annotated[
        int,
        Parameter(
            help="Of hangs: operations that a rank may have under way; 1: it waits for each.", validator=POSITIVE
        ),
    ] = 20,
    missing: Annotated[
        float, Parameter(help="Of hangs: share of the evidence that is lost.", validator=Number(gte=0, lt=1))
    ] = 0.01,
    processes: Annotated[int, Parameter(help="Trials at a time.", validator=POSITIVE)] = 2,
    minutes: Annotated[
        float | None,
        Parameter(help="Begin no trial after so long, and report those that were done.", validator=Number(gt=0)),
    ] = None,
    quick: Annotated[
        bool, Parameter(negative="", help="A short campaign: two trials of each kind at 64 ranks.")
    ] = False,
    json: Json = False,
) -> int:
    """Say how often the analysers are right: simulate jobs, put one fault into each, ask, and compare.

    A fault is found if its ranks and its kind are named; an abstention lowers recall, a wrong accusation precision.
    The exit code is 1 if every trial failed.

    Example: megascope score --ranks 512 --trials 48 --kinds slow-gpu,slow-host,healthy
    """
    from ..scoring.kinds import SeedSet  # noqa: PLC0415
    from ..scoring.scoring import as_json, outcomes_json  # noqa: PLC0415
    from ..scoring.scoring import score as run_campaign  # noqa: PLC0415

    with progress_of("simulating and judging") as progress:
        result = run_campaign(
            ranks=ranks or (QUICK_RANKS if quick else 512),
            trials=trials or (QUICK_TRIALS if quick else 116),
            kinds=[part.strip() for part in kinds.split(",")] if kinds else [],
            seeds=SeedSet(seeds),
            noise=noise,
            in_flight=in_flight,
            missing=missing,
            processes=processes,
            within_s=None if minutes is None else minutes * 60,
            progress=progress,
        )
    if json:
        print_json({**as_json(result), "outcomes": outcomes_json(result)})
    else:
        print_report(render(result))
    return 1 if result.has_failed else 0


def render(result: Score) -> Any:
    """The score as a table."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from ..scoring.claims import Answer  # noqa: PLC0415
    from ..scoring.scoring import describe  # noqa: PLC0415

    table = Table(
        title=f"{result.trials} jobs of {result.ranks} ranks, seed set {result.seeds}, {result.seconds:.0f} s"
    )
    headings = ("kind", "trials", "recall", "precision", "right place", "called fine", "accusations", *Answer)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for one in result.kinds:
        numbers = (one.recall, one.precision, one.recall_of_place)
        shares = ["-" if number is None else f"{number:.0%}" for number in numbers]
        answers = [one.share_of(answer) for answer in Answer]
        exact = ["-" if number is None else f"{number:.0%}" for number in answers]
        table.add_row(one.kind, str(one.trials), *shares, str(one.called_fine), str(one.claims), *exact)
    healthy = f"False alarms: {result.false_alarms} of {result.healthy_trials} healthy jobs."
    asked = [_asked(verb, one) for verb, one in result.analysers().items()]
    failed = [f"Failed: {describe(one.trial)}: {one.failure}" for one in result.outcomes if one.failure is not None]
    return Group(table, healthy, *asked, *failed)


def _asked(verb: str, one: AnalyserScore) -> str:
    """What a verb's trials came to, in words."""
    took = (
        "" if one.median_s is None else f"; a verdict took {one.median_s:.2f} s (median), {one.worst_s:.2f} s (worst)"
    )
    return f"{verb}: {one.trials} jobs, {one.healthy_trials} of them healthy, {one.false_alarms} false alarms{took}."
