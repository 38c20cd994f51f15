"""``megascope export``: what other tools read, Grafana and Prometheus, and backends of OpenTelemetry."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ..profiler.errors import MegascopeError, UsageError
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

export = App(
    help="""Write or send what other tools read.

    Example: megascope export grafana monitoring
    """,
    help_flags=["--help", "-h"],
    version_flags=[],
)


@export.command
def grafana(
    folder: Annotated[Path, Parameter(help="Folder to write to; it is made where there is none.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Write the Grafana dashboard (megascope.json) and the alert rules for Prometheus (megascope-rules.yaml).

    The metrics come from `megascope collect --metrics PORT` and from /metrics of `megascope serve`.

    Example: megascope export grafana monitoring
    """
    from ..dashboards.grafana_files import write_grafana  # noqa: PLC0415

    try:
        written = write_grafana(local_path(folder, "The folder"))
    except OSError as error:
        raise MegascopeError(f"Cannot write to {folder} ({error.strerror}): give another folder.") from error
    if json:
        print_json({"files": [str(path) for path in written]})
    else:
        sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


@export.command
def otlp(
    store: StorePath,
    /,
    *,
    endpoint: Annotated[
        str, Parameter(help="Where OTLP over HTTP is taken; without a path, /v1/traces is added.")
    ] = "http://localhost:4318",
    run: Run = None,
    attempt: AttemptNumber = None,
    steps: Steps = None,
    since: Since = None,
    until: Until = None,
    ranks: Ranks = None,
    timeout: Annotated[
        float, Parameter(help="Seconds that one request may take, tries included.", validator=Number(gt=0))
    ] = 10.0,
    json: Json = False,
) -> int:
    """Send the spans of chosen steps to a backend of OpenTelemetry: a trace a step, below it the ranks.

    Headers and certificates are taken from $OTEL_EXPORTER_OTLP_HEADERS, $OTEL_EXPORTER_OTLP_CERTIFICATE and the like.

    Example: megascope export otlp runs/demo/store --steps 30:32 --endpoint http://collector:4318
    """
    try:
        from ..collectors.otlp.exporting import export_otlp  # noqa: PLC0415
        from ..collectors.otlp.sending import Sender  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MegascopeError(
            f"Sending traces needs {error.name}, which is not installed: pip install 'megascope[otel]'."
        ) from None
    sender = Sender(endpoint, timeout)
    opened, chosen = open_attempt(store, run, attempt)
    between = choose_steps(opened, chosen, steps, since, until)
    if between is None:
        raise UsageError("A whole run is more than a backend of traces takes: choose --steps, --since or --until.")
    with progress_of("spans") as progress:
        sent = export_otlp(opened, chosen, sender, steps=between, ranks=parse_ranks(ranks), progress=progress)
    sender.close()
    report_damage(opened)
    if json:
        print_json({"schema": 1, **asdict(sent)})
        return 0
    rejected = f", {sent.spans_rejected} more were rejected" if sent.spans_rejected else ""
    sys.stdout.write(f"{sent.spans_sent} spans in {sent.traces} traces sent to {sent.endpoint}{rejected}\n")
    if sent.hosts_on_a_clock_of_their_own:
        hosts = ", ".join(sent.hosts_on_a_clock_of_their_own[:5])
        sys.stderr.write(f"megascope: on clocks of their own, since nothing aligns them: {hosts}\n")
    return 0
