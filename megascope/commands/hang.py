"""``megascope hang``: who is stuck, and who waits for whom."""

from __future__ import annotations

from .common import AttemptNumber, Json, Run, StorePath, open_attempt, print_json, print_report, report_damage


def hang(store: StorePath, /, *, run: Run = None, attempt: AttemptNumber = None, json: Json = False) -> int:
    """Say who is stuck and who waits for whom, from heartbeats and from what is in flight.

    Example: megascope hang runs/demo/store --json
    """
    from ..viz3d.hang import diagnose, to_json  # noqa: PLC0415
    from ..viz3d.report import render  # noqa: PLC0415

    opened, chosen = open_attempt(store, run, attempt)
    verdict = diagnose(opened, chosen)
    if json:
        print_json(to_json(verdict))
    else:
        print_report(render(verdict))
    report_damage(opened)
    return 0
