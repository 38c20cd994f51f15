"""Faults of devices that the driver logged: whose device it is, and whether they can be what a job waits for."""

from __future__ import annotations

from ..verdict import CulpritKind
from .cause import Cause
from .facts import DumpSignal, GpuFault, LogEvidence, Timeout
from .groups import key_of, process_ranks
from .nccl import same_bus

OF_DEVICES = frozenset({48, 62, 74, 79, 94, 95, 119, 120})
"""Xids after which a device does not go on: memory errors, halts, a lost link or bus, a GSP that does not answer."""

FAULT_BEFORE_NS = 10 * 60 * 10**9
"""A fault of a device longer than this before the first alarm was got over."""

ZONES_NS = 26 * 3600 * 10**9
"""So much two clocks may differ of which one shows another zone's time: the zones of the world are -12 to +14 h."""


def device_faults(evidence: LogEvidence) -> tuple[list[Cause], list[str]]:
    """Faults of devices that the driver logged, by the rank whose device it is; else as notes."""
    ranks = process_ranks(evidence.members)
    owner = [(one, ranks[one.host, one.pid]) for one in evidence.members if (one.host, one.pid) in ranks]
    causes, notes = [], []
    for fault in evidence.gpu_faults:
        where = f"device {fault.bus_id}" + (f" of {fault.host}" if fault.host else "")
        told = f"Xid {fault.xid} on {where}: {fault.text}"
        mine = {rank for one, rank in owner if _is_on(fault, one.host, one.bus_id)}
        if fault.xid not in OF_DEVICES or len(mine) != 1:
            notes.append(f"{told} ({fault.place})")
            continue
        causes.append(
            Cause(tuple(mine), fault.host, CulpritKind.DEVICE_STUCK, 0.7, told, None, fault.moment_ns, fault.place,
                  ("xid", str(fault.xid)))
        )  # fmt: skip
    return causes, notes


def _is_on(fault: GpuFault, host: str, bus_id: str | None) -> bool:
    named = fault.host is None or fault.host.split(".")[0] == host.split(".", maxsplit=1)[0]
    return named and bus_id is not None and same_bus(fault.bus_id, bus_id)


def is_timely(fault: Cause, evidence: LogEvidence) -> bool:
    """Whether a device's fault is not so long before the first alarm, or the log's end, that the job went on after.

    Lines of the kernel often have local times without a zone, or none but since it booted: then only a fault that is
    older by any zone was got over.
    """
    alarms: list[Timeout | DumpSignal] = [*evidence.timeouts, *evidence.signals]
    known = [(one.moment_ns, evidence.same_clock(one.place, fault.place)) for one in alarms]
    moments = [moment - (0 if is_same else ZONES_NS) for moment, is_same in known if moment is not None]
    limits = [one.limit_ms for one in evidence.timeouts if one.limit_ms is not None]
    if any(one.reason == "finished" for one in evidence.endings):
        return False
    if fault.moment_ns is None or not moments:
        return True
    return fault.moment_ns >= min(moments) - FAULT_BEFORE_NS - max(limits, default=0) * 10**6


def ranks_behind(evidence: LogEvidence) -> set[int]:
    """Ranks whose last enqueued operation lies before one that others of the same group wait in."""
    waited: dict[str, int] = {}
    marked = [(one, key_of(one.label)) for one in evidence.watermarks if one.label is not None]
    for one, group in marked:
        if group is not None and one.failed is not None:
            waited[group] = min(one.failed, waited.get(group, one.failed))
    return {
        one.rank
        for one, group in marked
        if group is not None and one.rank is not None and one.enqueued < waited.get(group, 0)
    }
