"""``megascope node``: offers this host to a supervised job."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import UsageError

NOT_NEGATIVE = Number(gte=0)


def node(
    supervisor: Annotated[str, Parameter(help="Where the supervisor listens, as HOST:PORT.")],
    /,
    *,
    nproc: Annotated[int, Parameter(help="Ranks that this host takes: one a GPU.")] = 1,
    address: Annotated[
        str | None, Parameter(help="Where other hosts reach this one; the address it joins from if absent.")
    ] = None,
    wait: Annotated[float, Parameter(help="Seconds to try until the supervisor answers.", validator=NOT_NEGATIVE)] = 0,
) -> int:
    """Serve a supervisor as one of its hosts: train when it says so, wait as a spare otherwise.

    The token that both have to know is in MEGASCOPE_TOKEN; MEGASCOPE_HOST gives the host another name.

    Example: megascope node head:29400 --nproc 8
    """
    from ..trainer.supervisor.node import NodeSettings, checked_slots, run_node  # noqa: PLC0415
    from ..trainer.supervisor.wire import TOKEN_VARIABLE  # noqa: PLC0415

    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise UsageError(f"{TOKEN_VARIABLE} is not set: give the token that the supervisor was started with.")
    place = parse_address(supervisor)
    return run_node(
        NodeSettings(supervisor=place, token=token, slots=checked_slots(nproc), address=address, wait_s=wait)
    )


def parse_address(text: str) -> tuple[str, int]:
    """``"head:29400"`` to a host and a port. UsageError for anything else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is not HOST:PORT: give where the supervisor listens, such as head:29400.")
    return host.strip("[]"), int(port)
