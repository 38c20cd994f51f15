"""Offset, drift and uncertainty of every host in one window of time, from the ends of what the hosts did together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .fit import fit_lines
from .graph import HostLines, solve_hosts
from .pairs import Ends, FloatArray, pair_up

MOST_PASSES = 4
STILL_NS = 1_000_000
"""Times that are known so well put an offset that drifts by 50 ppm off by 50 ns at most."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Offsets of hosts over a window, [H] each; NaN where a host cannot be aligned with the reference, host 0.

    On the reference clock the window goes from ``begin_ns`` to ``end_ns``; the offset at t is ``offset_ns`` (a whole
    number of ns, at ``begin_ns``) + ``drift`` * (t - begin_ns). Uncertainties hold at the two ends of the window; in
    between, what lies between them. ``pairs`` is the number of pairs of hosts that were compared.
    """

    begin_ns: int
    end_ns: int
    offset_ns: FloatArray
    drift: FloatArray
    begin_uncertainty_ns: FloatArray
    end_uncertainty_ns: FloatArray
    pairs: int

    def offset_at_ns(self, moment_ns: int) -> FloatArray:
        """Offsets at a moment of the reference clock."""
        offsets: FloatArray = self.offset_ns + self.drift * float(moment_ns - self.begin_ns)
        return offsets

    def within(self, begin_ns: int, end_ns: int) -> Alignment:
        """The same, for the part of the window that lies in [begin, end)."""
        first = min(max(self.begin_ns, begin_ns), end_ns - 1)
        last = max(min(self.end_ns, end_ns - 1), first)
        return replace(self, begin_ns=first, end_ns=last, offset_ns=self.offset_at_ns(first))


def align_hosts(ends: Ends, hosts: int) -> Alignment | None:
    """Align ``hosts`` hosts by the ends of their shared operations within one window; None without any pair.

    An offset changes with the reference clock's time, which is known only once offsets are: the first pass takes each
    pair's own time for it, and those that follow correct that until the times stand still.
    """
    if not len(ends):
        return None
    base_ns = int(ends.end_ns.min())
    found = _solve(ends, hosts, base_ns, None)
    rough = np.zeros(len(ends))
    for _ in range(MOST_PASSES - 1):
        if found is None:
            break
        finer = _at_rows(found, ends)
        kept = np.isfinite(finer)
        if not (np.abs(finer - rough)[kept] > STILL_NS).any():
            break
        rough = finer
        found = _solve(ends.chosen(kept), hosts, base_ns, finer[kept])
    return found


def _at_rows(alignment: Alignment, ends: Ends) -> FloatArray:
    """The offset of each row's host at the row's end."""
    since = (ends.end_ns - alignment.begin_ns).astype(np.float64)
    drift = alignment.drift[ends.host]  # over the reference's time, which is the row's plus the offset
    offsets: FloatArray = (alignment.offset_ns[ends.host] + drift * since) / (1.0 - drift)
    return offsets


def _solve(ends: Ends, hosts: int, base_ns: int, host_offset_ns: FloatArray | None) -> Alignment | None:
    streams = pair_up(ends, base_ns, host_offset_ns)
    if not len(streams.first):
        return None
    begin, end = float(np.nanmin(streams.at_ns)), float(np.nanmax(streams.at_ns))
    middle = float(np.nanmedian(streams.at_ns))
    lines = fit_lines(streams, middle)
    if not len(lines.first):
        return None
    found: HostLines = solve_hosts(lines, hosts, middle)
    return Alignment(
        base_ns + round(begin),
        base_ns + round(end),
        found.value_ns + found.slope * (begin - middle),
        found.slope,
        found.uncertainty_ns(lines.uncertainty_ns(begin)),
        found.uncertainty_ns(lines.uncertainty_ns(end)),
        len(lines.first),
    )
