"""What hardware says of the ranks and hosts that hold a job up: further evidence, never an accusation of its own."""

from __future__ import annotations

from dataclasses import replace

from ..collectors.hardware.evidence import hardware_evidence
from ..collectors.reading.store import Attempt, Store
from .verdict import HangCulprit, HangVerdict

MOST = 5
"""The first culprits, of which hardware is asked."""

BEFORE_NS = 1800 * 10**9
"""How far back from the moment that is judged hardware is asked."""


def with_hardware(store: Store, attempt: Attempt, verdict: HangVerdict, now_ns: int | None = None) -> HangVerdict:
    """The verdict, its culprits with what GPUs, ports and kernels of their hosts say. ``now_ns``: a past moment."""
    moment_ns = store.last_moment_ns(attempt) if now_ns is None else now_ns
    if moment_ns is None or not verdict.culprits:
        return verdict
    between_ns = (moment_ns - BEFORE_NS, moment_ns)
    asked = (_with_hardware(store, attempt, one, between_ns) for one in verdict.culprits[:MOST])
    told = (*asked, *verdict.culprits[MOST:])
    return verdict if told == verdict.culprits else replace(verdict, culprits=told)


def _with_hardware(store: Store, attempt: Attempt, one: HangCulprit, between_ns: tuple[int, int]) -> HangCulprit:
    found = hardware_evidence(store, attempt, one.ranks, one.hosts, between_ns)
    return replace(one, evidence=(*one.evidence, *found)) if found else one
