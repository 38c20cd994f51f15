"""Which of several troubles came first, by moments of clocks that agree, and by lines of one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..verdict import CulpritKind
from .cause import EXIT, Cause
from .facts import DumpSignal, Ending, LogEvidence, Timeout

TOGETHER_NS = 2 * 10**9
"""Troubles within this time are taken for one: logs of several hosts are no finer."""


def not_later(evidence: LogEvidence, causes: Iterable[Cause]) -> list[Cause]:
    """Without what came after the first alarm of a watchdog, or after the job was asked to end: that is what ends look
    like. Nor does what came before a finish count: it was got over.
    """
    asked = [one for one in evidence.endings if one.reason == "interrupted"]
    alarms: list[Timeout | DumpSignal | Ending] = [*evidence.timeouts, *evidence.signals, *asked]
    finished = {one.place.file: one.place.line for one in evidence.endings if one.reason == "finished"}
    lines: dict[str, int] = {}
    for one in alarms:
        lines[one.place.file] = min(one.place.line, lines.get(one.place.file, one.place.line))
    kept = []
    for cause in causes:
        if cause.place.line < finished.get(cause.place.file, 0):
            continue
        moments = [
            one.moment_ns for one in alarms if one.moment_ns is not None and evidence.same_clock(one.place, cause.place)
        ]
        is_report = cause.alike[:1] == (EXIT,)  # launchers report when all is over, dead processes died before
        if cause.moment_ns is not None and moments:
            late = cause.moment_ns > min(moments) + TOGETHER_NS and not (is_report and cause.kind == CulpritKind.DEAD)
        else:
            late = cause.place.line > lines.get(cause.place.file, cause.place.line) and not is_report
        if not late:
            kept.append(cause)
    return kept


def first_of(evidence: LogEvidence, causes: Sequence[Cause]) -> list[Cause]:
    """The troubles that no other surely came before, and all of the same kind as those: they have one reason."""
    first = [one for one in causes if not any(_is_before(evidence, other, one) for other in causes)]
    alike = {one.alike for one in first}
    return [one for one in causes if one in first or one.alike in alike]


def _is_before(evidence: LogEvidence, one: Cause, other: Cause) -> bool:
    if one.moment_ns is not None and other.moment_ns is not None:
        return evidence.same_clock(one.place, other.place) and one.moment_ns + TOGETHER_NS < other.moment_ns
    is_report = EXIT in (one.alike[:1] + other.alike[:1])
    return one.place.file == other.place.file and one.place.line < other.place.line and not is_report
