"""``megascope health``: the machines of a run, and what is wrong with them."""

from __future__ import annotations

from .common import AttemptNumber, Json, Run, StorePath, open_attempt, print_json, print_report, report_damage


def health(store: StorePath, /, *, run: Run = None, attempt: AttemptNumber = None, json: Json = False) -> int:
    """Show the machines of a run, the worst first: GPUs, network ports, hosts, and the kernel's log.

    Newest values are those of the last ten minutes before the newest sample; errors are counted over the attempt.

    Example: megascope health runs/demo/store --json
    """
    from ..collectors.hardware.printing import render  # noqa: PLC0415
    from ..collectors.hardware.report import health_report, sentence  # noqa: PLC0415
    from ..collectors.verdicts import to_json  # noqa: PLC0415

    opened, chosen = open_attempt(store, run, attempt)
    report = health_report(opened, chosen)
    if json:
        print_json({**to_json(report), "sentence": sentence(report)})
    else:
        print_report(render(report))
    report_damage(opened)
    return 0
