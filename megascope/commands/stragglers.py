"""``megascope stragglers``: who is slow."""

from __future__ import annotations

from .common import (
    AttemptNumber,
    Json,
    Run,
    Since,
    Steps,
    StorePath,
    Until,
    choose_steps,
    open_attempt,
    print_json,
    print_report,
    report_damage,
)


def stragglers(
    store: StorePath,
    /,
    *,
    run: Run = None,
    attempt: AttemptNumber = None,
    steps: Steps = None,
    since: Since = None,
    until: Until = None,
    json: Json = False,
) -> int:
    """Say which rank or host is slow, with the evidence; or what is missing to tell.

    Example: megascope stragglers runs/demo/store --steps 20:
    """
    from ..heatmap.report import render  # noqa: PLC0415
    from ..heatmap.stragglers import find_stragglers  # noqa: PLC0415
    from ..heatmap.verdict import to_json  # noqa: PLC0415

    opened, chosen = open_attempt(store, run, attempt)
    verdict = find_stragglers(opened, chosen, steps=choose_steps(opened, chosen, steps, since, until))
    if json:
        print_json(to_json(verdict))
    else:
        print_report(render(verdict))
    report_damage(opened)
    return 0
