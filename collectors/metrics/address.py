"""Where an agent's metrics are to be had, and who may have them."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...profiler.errors import UsageError

log = logging.getLogger(__name__)

VARIABLE, TOKEN_VARIABLE = "MEGASCOPE_METRICS", "MEGASCOPE_METRICS_TOKEN"
SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """An address to listen on; with a ``token``, only who sends it as ``Authorization: Bearer`` is answered."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, token: str | None = None) -> MetricsAddress:
        """``9477`` or ``0.0.0.0:9477``; UsageError for nonsense, and for an open address without a token."""
        host, _, port = text.strip().rpartition(":")
        if not port.isascii() or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"--metrics {text} is no [HOST:]PORT: give a port such as 9477, or 0.0.0.0:9477.")
        host = host.strip("[]") or "127.0.0.1"
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise UsageError(f"${TOKEN_VARIABLE} has {len(token)} characters: use at least {SHORTEST_TOKEN}.")
        if not is_loopback(host) and token is None:
            raise UsageError(
                f"Metrics on {host} can be read from other machines: set ${TOKEN_VARIABLE}, which Prometheus then "
                "sends (authorization: credentials), or give a port alone."
            )
        return cls(host, int(port), token)


def metrics_address(given: str | None, environment: Mapping[str, str] = os.environ) -> MetricsAddress | None:
    """The address that is given, else that of the environment, else None.

    UsageError for one that is given and wrong. The agent is worth more than a word of the environment, so one that is
    wrong there is warned of, and nothing listens.
    """
    token = environment.get(TOKEN_VARIABLE) or None
    if given is not None:
        return MetricsAddress.parse(given, token)
    text = environment.get(VARIABLE)
    try:
        return MetricsAddress.parse(text, token) if text else None
    except UsageError as error:
        log.warning("$%s is not used: %s", VARIABLE, error)
        return None


def is_loopback(host: str) -> bool:
    """Whether an address or a name can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
