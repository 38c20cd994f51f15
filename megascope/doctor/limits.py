"""Checks of what the machine, or the container, grants the ranks: memory and processors."""

from __future__ import annotations

from ..profiler.box.box import BoxLayout
from . import control_groups
from .finding import Answer, advice, not_checked, ok, problem
from .machine import USUAL_RANKS, Machine

SPARE_BYTES = 2**28
"""What an agent and its analyses need beside the boxes."""

MUCH_HELD_BACK = 0.05


def memory(machine: Machine) -> Answer:
    """Whether boxes and agent fit into what is left; files in shared memory count against a container's limit."""
    looked_at = "control group, /proc/meminfo"
    ranks, _ = machine.ranks()
    needed = ranks * BoxLayout().total_bytes + SPARE_BYTES
    found = control_groups.memory(machine)
    if found is not None:
        limit, used = found
        left, seen = limit - used, f"limit {_gib(limit)}, {_gib(used)} in use"
    else:
        told = {}
        for line in (machine.text("proc/meminfo") or "").splitlines():
            name, _, rest = line.partition(":")
            if (number := rest.split()[:1]) and number[0].isdecimal():
                told[name] = int(number[0]) * 1024
        if "MemAvailable" not in told:
            return not_checked(looked_at, "neither tells how much there is")
        left, seen = told["MemAvailable"], f"{_gib(told['MemAvailable'])} of {_gib(told.get('MemTotal', 0))} available"
    if left < needed:
        to_do = f"make {_gib(needed - left)} more free: {ranks} boxes, which count as memory in /dev/shm, and an agent"
        return problem(looked_at, seen, to_do)
    if killed := control_groups.kills(machine):
        return advice(
            looked_at, f"{seen}; the kernel has killed {killed} processes of it", "raise the limit, or use less memory"
        )
    return ok(looked_at, seen)


def processors(machine: Machine) -> Answer:
    """Whether each rank has a core, and whether the container is held back by its limit."""
    looked_at = "processor affinity, control group"
    cores, share = machine.cores(), control_groups.processors(machine)
    ranks, source = machine.ranks()
    seen = f"{cores} cores" + ("" if share is None else f", limited to {share:g} cores' worth of time")
    usable = min(float(cores), share if share is not None else float(cores))
    held = control_groups.held_back(machine)
    if held is not None and held[0] > MUCH_HELD_BACK * held[1]:
        return advice(
            looked_at,
            f"{seen}; held back in {held[0]} of {held[1]} periods",
            "raise the container's limit of processors: ranks that are held back look like stragglers",
        )
    if ranks > usable and not (ranks == USUAL_RANKS and source == "assumed"):
        return advice(looked_at, f"{seen} for {ranks} ranks", "give each rank a core: those that share one take turns")
    return ok(looked_at, seen)


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.1f} GiB"
