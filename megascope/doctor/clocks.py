"""Checks of the clocks: what a reading costs, and whether somebody keeps the host on UTC."""

from __future__ import annotations

import errno

from .finding import Answer, advice, not_checked, ok
from .machine import Machine

SLOW_READ_NS = 500.0
"""A reading that goes through the kernel's slow ways takes longer. A span has two."""

LARGE_ERROR_US = 100_000

KEEPERS = frozenset({"chronyd", "ntpd", "ntpsec", "openntpd", "ptp4l", "phc2sys", "systemd-timesyn"})
"""Names of processes that keep clocks, as the kernel cuts them."""


def clock_source(machine: Machine) -> Answer:
    """What the kernel reads time from, and what one reading costs."""
    looked_at = "/sys/devices/system/clocksource, and some readings"
    source = machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource") or "not told"
    cost_ns = machine.clock_read_ns()
    seen = f"{source}, {cost_ns:.0f} ns a reading"
    if cost_ns > SLOW_READ_NS:
        return advice(
            looked_at, seen, "see why the processor's own counter (tsc) is not used (dmesg): every span costs more"
        )
    return ok(looked_at, seen)


def synchronised(machine: Machine) -> Answer:
    """Whether the host's clock is kept on UTC. Spans of hosts are aligned by their collectives in any case."""
    looked_at = "the kernel's clock status (adjtimex), and processes that keep clocks"
    try:
        status = machine.clock()
    except OSError as error:
        return not_checked(looked_at, f"the kernel does not say ({errno.errorcode.get(error.errno or 0, error)})")
    keepers = _keepers(machine)
    if status.is_steered:
        seen = f"kept on UTC to within {status.maximum_error_us / 1000:,.0f} ms"
        if status.maximum_error_us > LARGE_ERROR_US:
            return advice(looked_at, seen, "see whether its servers answer (chronyc tracking): UTC times may be off")
        return ok(looked_at, seen)
    if keepers:
        return ok(looked_at, f"{', '.join(keepers)} runs; the kernel does not say so (chrony without rtcsync)")
    return advice(
        looked_at, "nobody seen to keep it on UTC", "run chrony or another NTP client on the host: UTC times may be off"
    )


def _keepers(machine: Machine) -> list[str]:
    try:
        folders = [one for one in machine.under("proc").iterdir() if one.name.isdecimal()]
    except OSError:
        return []
    names = {machine.text(f"proc/{one.name}/comm") for one in folders}
    return sorted(KEEPERS.intersection(name for name in names if name))
