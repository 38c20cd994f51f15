"""``megascope stragglers``: who is slow."""

from __future__ import annotations

from .common import (
    AttemptNumber,
    Json,
    Run,
    Steps,
    StorePath,
    open_attempt,
    parse_steps,
    print_json,
    print_report,
    report_damage,
)


def stragglers(
    store: StorePath, /, *, run: Run = None, attempt: AttemptNumber = None, steps: Steps = None, json: Json = False
) -> int:
    """Say which rank, host or stage is slow, with the evidence; or what is missing to tell.

    Example: megascope stragglers runs/demo/store --steps 20:
    """
    from ..heatmap.report import render  # noqa: PLC0415
    from ..heatmap.stragglers import find_stragglers  # noqa: PLC0415
    from ..heatmap.verdict import to_json  # noqa: PLC0415

    opened, chosen = open_attempt(store, run, attempt)
    verdict = find_stragglers(opened, chosen, steps=parse_steps(steps))
    if json:
        print_json(to_json(verdict))
    else:
        print_report(render(verdict))
    report_damage(opened)
    return 0
