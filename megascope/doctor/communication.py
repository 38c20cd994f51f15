"""Checks of torch's and NCCL's settings that decide what is left to read after a hang."""

from __future__ import annotations

from pathlib import Path

from . import torch_variables as of_torch
from .finding import Answer, advice, ok, problem
from .machine import Machine, nearest_folder
from .torch_variables import Variable, chosen

DUMP_BYTES = 3 * 10**6
"""A dump of 2,000 entries with Python frames."""

FEW_ENTRIES = 400
"""What is dumped on request; fewer may not reach back to what hangs."""

VERDICT_S = 30.0
"""What an agent may take from a stall to its verdict: two looks, dumps, and the analysis."""

USUAL_STALL_S = 6.0
"""What agents take for a stall (`AgentSettings.stall_s`)."""

START_TIMES = 5
"""So many times the stall limit passes before a job that starts counts as stalled."""

SHORT_DUMP_WAIT_MS = 1000


def flight_recorder(machine: Machine) -> Answer:
    """Whether torch records collectives. NCCL's groups ask the older name alone whether to dump, whatever the newer."""
    looked_at = ", ".join(of_torch.BUFFER)
    found = [one for name in of_torch.BUFFER if (one := chosen(machine.env, (name,)))]
    if not found:
        return ok(looked_at, "not set: megascope.init() records the newest 2000 operations of each rank")
    value = ", ".join(map(str, found))
    if wrong := next((one for one in found if one.integer is None), None):
        return problem(looked_at, value, f"unset {wrong.name}: torch takes it for no number and raises")
    if off := next((one for one in found if (one.integer or 0) <= 0), None):
        return problem(looked_at, value, f"unset {off.name}, or give 2000: with it there is no dump of a hang")
    if (few := found[0]).integer is not None and few.integer < FEW_ENTRIES:
        return advice(looked_at, value, f"unset {few.name}, or give 2000: so few may not reach back to what hangs")
    return ok(looked_at, value)


def dump_on_timeout(machine: Machine) -> Answer:
    """Whether NCCL leaves a dump when a collective times out, and is given the time for it."""
    looked_at = ", ".join((*of_torch.DUMP_ON_TIMEOUT, *of_torch.DUMP_WAIT))
    dumps, wait = chosen(machine.env, of_torch.DUMP_ON_TIMEOUT), chosen(machine.env, of_torch.DUMP_WAIT)
    value = ", ".join(str(one) for one in (dumps, wait) if one) or "not set: megascope.init() turns dumps on"
    if dumps is not None and dumps.boolean is None:
        return _no_boolean(looked_at, dumps)
    if wait is not None and wait.integer is None:
        return problem(looked_at, value, f"give milliseconds in {wait.name}, or unset it: torch raises")
    if dumps is not None and not dumps.boolean:
        return advice(looked_at, value, f"unset {dumps.name}: a rank that cannot answer its agent leaves no dump")
    if wait is not None and (wait.integer or 0) < SHORT_DUMP_WAIT_MS:
        return advice(
            looked_at, value, f"unset {wait.name} (default {of_torch.DEFAULT_DUMP_WAIT_MS}): dumps may be cut off"
        )
    return ok(looked_at, value)


def dump_place(machine: Machine) -> Answer:
    """Whether dumps can be written where they are led, and are found there."""
    place = chosen(machine.env, of_torch.PLACE)
    if place is None:
        return ok(", ".join(of_torch.PLACE), "not set: megascope.init() leads dumps to the spool")
    folder = Path(place.text).parent
    looked_at, value = f"{place.name}, {folder}", str(place)
    if not folder.is_dir():
        return problem(looked_at, f"{value}: no such folder", f"mkdir -p {folder}: torch does not make it")
    if reason := machine.write(folder).reason:
        return problem(looked_at, f"{value}: cannot be written ({reason})", f"unset {place.name}, or name another")
    ranks, _ = machine.ranks()
    free = machine.room(nearest_folder(folder)).free_bytes
    if free < ranks * DUMP_BYTES:
        return problem(
            looked_at,
            f"{value}: {free / 1e6:.0f} MB free",
            f"make room for {ranks} dumps of {DUMP_BYTES / 1e6:.0f} MB each, or unset {place.name}",
        )
    return advice(
        looked_at, value, f"unset {place.name} so that agents gather the dumps, or name {folder} to megascope hang"
    )


def watchdog(machine: Machine) -> Answer:
    """Whether torch's watchdog runs, and ends ranks whose collectives failed."""
    looked_at = ", ".join((*of_torch.BLOCKING_WAIT, *of_torch.ERROR_HANDLING))
    blocking, handling = chosen(machine.env, of_torch.BLOCKING_WAIT), chosen(machine.env, of_torch.ERROR_HANDLING)
    value = ", ".join(str(one) for one in (blocking, handling) if one) or "not set: failed ranks end (mode 3)"
    if blocking is not None and blocking.boolean is None:
        return _no_boolean(looked_at, blocking)
    if handling is not None and handling.integer not in range(4):
        return problem(looked_at, value, f"unset {handling.name}: torch knows the modes 0 to 3")
    if blocking is not None and blocking.boolean:
        return advice(
            looked_at, value, f"unset {blocking.name}: with it there is no watchdog, and no dump at a timeout"
        )
    if handling is not None and handling.integer == 0:
        return problem(
            looked_at, value, f"unset {handling.name}: after an error or a timeout the job would stand for ever"
        )
    if handling is not None and handling.integer == 2:
        return advice(
            looked_at, value, f"unset {handling.name}: in mode 2 a failed rank goes on without its communicators"
        )
    return ok(looked_at, value)


def heartbeat(machine: Machine) -> Answer:
    """Whether torch ends a rank with a stuck watchdog, and only after the agent has judged the stall."""
    looked_at = ", ".join((*of_torch.HEARTBEAT, *of_torch.MONITORING, "MEGASCOPE_STALL_S"))
    beat, monitoring = chosen(machine.env, of_torch.HEARTBEAT), chosen(machine.env, of_torch.MONITORING)
    needed_s = START_TIMES * stall_limit_s(machine) + VERDICT_S
    value = ", ".join(str(one) for one in (beat, monitoring) if one) or f"not set: {of_torch.DEFAULT_HEARTBEAT_S} s"
    beat_s = of_torch.DEFAULT_HEARTBEAT_S if beat is None else beat.integer
    if monitoring is not None and monitoring.boolean is None:
        return _no_boolean(looked_at, monitoring)
    if beat_s is None or beat_s <= 0 or (beat is not None and not beat.text.strip().lstrip("+").isdecimal()):
        taken = "it raises" if beat_s is None else f"it reads {beat_s}"
        return problem(looked_at, value, f"give plain seconds in {of_torch.HEARTBEAT[0]}, or unset it: torch wants a "
                       f"whole number, and {taken}")  # fmt: skip
    if monitoring is not None and not monitoring.boolean:
        return advice(looked_at, value, f"unset {monitoring.name}: a rank whose watchdog is stuck would never end")
    if beat_s < needed_s:
        to_do = f"give {of_torch.HEARTBEAT[0]} at least {needed_s:g}: before that an agent may not have judged a stall"
        return problem(looked_at, value, to_do)
    return ok(looked_at, f"{value}; an agent has judged a stall within {needed_s:g} s")


def stall_limit(machine: Machine) -> Answer:
    """Whether an agent notices a stall before NCCL ends the job for it."""
    looked_at = f"MEGASCOPE_STALL_S, beside NCCL's timeout of {of_torch.COLLECTIVE_TIMEOUT_S} s by default"
    stall_s = stall_limit_s(machine)
    seen = f"{stall_s:g} s, and {START_TIMES * stall_s:g} s as a job starts"
    if START_TIMES * stall_s + VERDICT_S > of_torch.COLLECTIVE_TIMEOUT_S:
        return advice(looked_at, seen, "lower MEGASCOPE_STALL_S: NCCL may end the job before an agent has judged it")
    return ok(looked_at, seen)


def stall_limit_s(machine: Machine) -> float:
    """What the agent takes for a stall, in seconds, where the job's own steps are not longer."""
    try:
        given = float(machine.env.get("MEGASCOPE_STALL_S", ""))
    except ValueError:
        return USUAL_STALL_S
    return given if 0 < given < float("inf") else USUAL_STALL_S


def _no_boolean(looked_at: str, variable: Variable) -> Answer:
    return problem(looked_at, str(variable), f"give 0 or 1 in {variable.name}: torch raises on anything else")
