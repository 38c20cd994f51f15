"""Where an agent's metrics begin: only then is the library loaded that they need."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from .address import MetricsAddress

if TYPE_CHECKING:
    from .agent_metrics import AgentMetrics

log = logging.getLogger(__name__)


def open_metrics(address: MetricsAddress | None, spool: Path) -> AgentMetrics | None:
    """The metrics of the agent of a spool; None without an address, and where the library is missing, which is said."""
    if address is None:
        return None
    try:
        from .agent_metrics import AgentMetrics  # noqa: PLC0415
    except ModuleNotFoundError as error:
        log.warning("No metrics: they need %s, which is not installed: pip install 'megascope[metrics]'.", error.name)
        return None
    return AgentMetrics(address, spool)
