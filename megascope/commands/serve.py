"""``megascope serve``: the dashboards."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import MegascopeError
from .common import RacksPath, StorePath

PORT = Number(gte=0, lte=65535)


def serve(
    store: StorePath,
    /,
    *,
    host: Annotated[str, Parameter(help="Address to listen on; one that is not local wants --token.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes a free one.", validator=PORT)] = 8321,
    token: Annotated[str | None, Parameter(help="Secret that a visitor must give once, as ?token=...")] = None,
    racks: RacksPath = None,
) -> int:
    """Serve the dashboards of a store, also while it is being written.

    Example: megascope serve runs/demo/store
    """
    require_dashboards()
    from ..dashboards.server import serve as start  # noqa: PLC0415
    from ..profiler.racks import read_racks  # noqa: PLC0415

    start(store, host=host, port=port, token=token, racks=read_racks(racks), on_open=_say_where)
    return 0


def require_dashboards() -> None:
    """One sentence where what the pages need is not installed."""
    try:
        importlib.import_module("..dashboards.server", __package__)
    except ModuleNotFoundError as error:
        raise MegascopeError(
            f"The dashboards need {error.name}, which is not installed: pip install 'megascope[dashboards]'."
        ) from None


def _say_where(url: str) -> None:
    sys.stdout.write(f"Dashboards: {url} (Ctrl-C ends them)\n")
    sys.stdout.flush()
