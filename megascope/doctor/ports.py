"""Checks of the ports that a server and an agent listen on. Each is bound for a moment, and nobody is answered."""

from __future__ import annotations

import errno
import os

from ..profiler.errors import UsageError
from .finding import Answer, advice, not_checked, ok, problem
from .machine import Machine

DASHBOARDS = ("127.0.0.1", 8321)
"""Where `megascope serve` listens unless it is told otherwise."""


def dashboards(machine: Machine) -> Answer:
    """Whether the dashboards' port is free."""
    host, port = DASHBOARDS
    looked_at = f"port {port} of {host}"
    error = machine.bind(host, port)
    if error is None:
        return ok(looked_at, "free")
    if error.errno == errno.EADDRINUSE:
        return advice(looked_at, "in use", f"see whether it is a server of yours, or megascope serve --port {port + 1}")
    return not_checked(looked_at, _words(error))


def metrics(machine: Machine) -> Answer:
    """Whether the agent's metrics can be had where the environment says."""
    from ..collectors.metrics.address import TOKEN_VARIABLE, VARIABLE, MetricsAddress  # noqa: PLC0415

    text = machine.env.get(VARIABLE)
    if not text:
        return ok(VARIABLE, "not set: agents show no metrics")
    try:
        address = MetricsAddress.parse(text, machine.env.get(TOKEN_VARIABLE) or None)
    except UsageError as error:
        return problem(f"{VARIABLE}, {TOKEN_VARIABLE}", "cannot be used", str(error))
    looked_at = f"{VARIABLE}, port {address.port} of {address.host}"
    error_of_port = machine.bind(address.host, address.port)
    if error_of_port is None:
        return ok(looked_at, "free")
    if error_of_port.errno == errno.EADDRINUSE:
        return advice(looked_at, "in use", f"give another port in {VARIABLE}, unless an agent of this host has it")
    return problem(looked_at, _words(error_of_port), f"give an address of this host in {VARIABLE}, or a port alone")


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
