"""``megascope collect``: this host's agent."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.opening import default_spool

log = logging.getLogger(__name__)

STALL_VARIABLE = "MEGASCOPE_STALL_S"


def collect(
    spool: Annotated[Path | None, Parameter(help="Folder with the ranks' black boxes.")] = None,
    /,
    *,
    store: Annotated[Path, Parameter(help="Folder to write the tables to.")],
    idle_exit: Annotated[
        float | None, Parameter(help="End when nothing was left for so many seconds.", validator=Number(gte=0))
    ] = None,
    quota_gib: Annotated[
        float | None,
        Parameter(
            help="Most that the store may grow to: by default 20, or a tenth of the disk.", validator=Number(gt=0)
        ),
    ] = None,
    stall: Annotated[
        float | None,
        Parameter(
            help="Seconds without any movement that are a stall, at least; $MEGASCOPE_STALL_S, else 6. Longer where "
            "the job's steps are, and where it starts, evaluates or saves a checkpoint.",
            validator=Number(gt=0),
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        Parameter(help="[HOST:]PORT where Prometheus finds metrics; $MEGASCOPE_METRICS, else none. 127.0.0.1 alone."),
    ] = None,
) -> int:
    """Run this host's agent: it turns black boxes into tables, and samples what is in flight.

    One agent serves a spool; a second one waits a moment for it to end, and then ends itself. `megascope.init()` and
    `megascope train` start it by themselves; start it by hand where a job is launched with ``agent=False``, or to save
    what a dead job left.

    Example: megascope collect --store /data/store
    """
    from ..collectors.agent.agent import AgentSettings, run_agent  # noqa: PLC0415
    from ..collectors.metrics.address import metrics_address  # noqa: PLC0415

    stall_s = stall if stall is not None else _stall_of_environment()
    settings = AgentSettings(
        spool=spool or default_spool(store),
        store=store,
        idle_exit_s=idle_exit,
        quota_bytes=None if quota_gib is None else int(quota_gib * 2**30),
        metrics=metrics_address(metrics),
    )
    return run_agent(settings if stall_s is None else replace(settings, stall_s=stall_s))


def _stall_of_environment() -> float | None:
    """What ``$MEGASCOPE_STALL_S`` says; the agent is worth more than the word in it, so nonsense is only warned of."""
    text = os.environ.get(STALL_VARIABLE)
    try:
        seconds = float(text) if text else None
    except ValueError:
        seconds = 0.0
    if seconds is not None and not 0 < seconds < float("inf"):
        log.warning("%s is %r: give seconds, such as 6. The default is taken.", STALL_VARIABLE, text)
        return None
    return seconds
