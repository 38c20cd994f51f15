"""What hardware says of the ranks and hosts that are accused: further evidence, never an accusation of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..collectors.hardware.evidence import hardware_evidence
from ..collectors.reading.store import Attempt, Store
from .verdict import Culprit, CulpritKind

MOST = 20
"""The costliest culprits, of which hardware is asked."""

_TIMES = """
    SELECT min(start_ns) AS low, max(start_ns + coalesce(duration_ns, 0)) AS high FROM steps
    WHERE list_contains(?, rank) AND step BETWEEN ? AND ?
"""


def with_hardware(store: Store, attempt: Attempt, culprits: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """The culprits; those that accuse machines with what their GPUs, ports and kernels say of the steps affected."""
    if not (store.entries("health", attempt) or store.entries("hardware_events", attempt)):
        return tuple(culprits)
    told = [_with_hardware(store, attempt, one) if place < MOST else one for place, one in enumerate(culprits)]
    return tuple(told)


def _with_hardware(store: Store, attempt: Attempt, one: Culprit) -> Culprit:
    if one.kind in (CulpritKind.JOB, CulpritKind.STAGE) or not one.ranks:
        return one
    (times,) = store.query(_TIMES, [list(one.ranks), *one.steps], attempt).to_pylist()
    if times["low"] is None:
        return one
    has_ports = one.kind in (CulpritKind.LINK, CulpritKind.GROUP)  # their counters are compared with the links already
    between_ns = (int(times["low"]), int(times["high"]))
    found = hardware_evidence(store, attempt, one.ranks, one.hosts, between_ns, with_ports=not has_ports)
    return replace(one, evidence=(*one.evidence, *found)) if found else one
