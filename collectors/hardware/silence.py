"""How long each host has been silent beside the others, by aligned clocks, or so that one alone shifts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_high

from ..clocks.clocks import NO_CLOCKS, Clocks


@dataclass(frozen=True, slots=True)
class Now:
    """The moment for which machines are judged, and what is looked at before it, UTC ns.

    ``window_ns`` (from, to) is in the hosts' own clocks, ``reference_ns`` on the reference clock where that is known.
    """

    window_ns: tuple[int, int]
    reference_ns: int
    clocks: Clocks = NO_CLOCKS

    @classmethod
    def at(cls, moment_ns: int, window_ns: int) -> Now:
        """A moment by each host's own clock."""
        return cls((moment_ns - window_ns, moment_ns), moment_ns)

    @classmethod
    def newest(cls, newest_ns: Mapping[str, int], clocks: Clocks, window_ns: int) -> Now:
        """The newest moment of which anything is known, from that of each host by its own clock (at least one).

        A host that cannot be aligned has no say of its own, as its clock may be ahead: half of all hosts must be so
        far. The window reaches back far enough for those whose clock is behind.
        """
        aligned = {host: clocks.aligned_ns(host, moment_ns) for host, moment_ns in newest_ns.items()}
        known = [host for host in aligned if host in clocks.known]
        reference = max([median_high(aligned.values()), *(aligned[host] for host in known)])
        live = [newest_ns[host] for host in known if reference - aligned[host] <= window_ns]
        first = min([median_high(newest_ns.values()), *live])
        return cls((first - window_ns, max(newest_ns.values())), reference, clocks)

    def age_s(self, host: str, moment_ns: int) -> float:
        """How long ago a moment of a host's clock was; negative where it is ahead of the reference."""
        return (self.reference_ns - self.clocks.aligned_ns(host, moment_ns)) / 1e9
