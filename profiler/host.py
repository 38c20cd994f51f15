"""The name of this host: the system's, or one that the environment gives, where names repeat or hosts are simulated."""

from __future__ import annotations

import os
import socket

from .identity import is_run_name

HOST_VARIABLE = "MEGASCOPE_HOST"


def host_name() -> str:
    """``$MEGASCOPE_HOST``, where it can be a name, else what the system says. All of a host have to see the same."""
    given = os.environ.get(HOST_VARIABLE, "")
    return given if is_run_name(given) else socket.gethostname()
