"""``megascope collect``: this host's agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.opening import default_spool


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
) -> int:
    """Run this host's agent: it turns black boxes into tables, and samples what is in flight.

    One agent serves a spool; a second one waits a moment for it to end, and then ends itself. `megascope.init()` and
    `megascope train` start it by themselves; start it by hand where a job is launched with ``agent=False``, or to save
    what a dead job left.

    Example: megascope collect --store /data/store
    """
    from ..collectors.agent import AgentSettings, run_agent  # noqa: PLC0415

    settings = AgentSettings(
        spool=spool or default_spool(store),
        store=store,
        idle_exit_s=idle_exit,
        quota_bytes=None if quota_gib is None else int(quota_gib * 2**30),
    )
    return run_agent(settings)
