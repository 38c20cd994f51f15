"""The one place that knows what an offset between clocks means: piecewise linear in time, or not known at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..reading.clock_sql import CLOCK_PIECES
from ..reading.store import Attempt, Store
from .reading import ensure_clock_offsets

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClockPiece:
    """One row of `CLOCK_PIECES`, whose formula it follows; ``slope`` and ``widening`` in ns per ns."""

    from_ns: int
    moment_ns: int
    offset_ns: int
    slope: float
    uncertainty_ns: int
    widening: float


@dataclass(frozen=True, slots=True)
class HostClock:
    """What brings a host's moments to the reference clock: pieces by ``from_ns``, at least one."""

    pieces: tuple[ClockPiece, ...]

    @classmethod
    def at(cls, moment_ns: int, offset_ns: int, drift_ppb: float, uncertainty_ns: int) -> HostClock:
        """A clock of which one offset and its drift are known, equally well at all times."""
        return cls((ClockPiece(-(2**63) + 1, moment_ns, offset_ns, drift_ppb * 1e-9, uncertainty_ns, 0.0),))

    def _piece(self, moment_ns: int) -> ClockPiece:
        after = next((at for at, piece in enumerate(self.pieces) if piece.from_ns > moment_ns), len(self.pieces))
        return self.pieces[max(after - 1, 0)]

    def aligned_ns(self, moment_ns: int) -> int:
        """A moment of the host, UTC ns, as the reference clock has it."""
        piece = self._piece(moment_ns)
        return moment_ns + piece.offset_ns + round(piece.slope * (moment_ns - piece.moment_ns))

    def uncertainty_ns(self, moment_ns: int) -> int:
        """How far `aligned_ns` may be wrong at a moment of the host."""
        piece = self._piece(moment_ns)
        return piece.uncertainty_ns + round(piece.widening * (moment_ns - piece.moment_ns))

    def offsets_ns(self, times_ns: FloatArray, base_ns: int) -> FloatArray:
        """Offsets (any shape) of times after a base on the host's clock; NaN where the time is."""
        starts = np.array([float(piece.from_ns - base_ns) for piece in self.pieces])
        which = np.clip(np.searchsorted(starts, times_ns, side="right") - 1, 0, None)
        moments = np.array([float(piece.moment_ns - base_ns) for piece in self.pieces])[which]
        slopes = np.array([piece.slope for piece in self.pieces])[which]
        levels = np.array([float(piece.offset_ns) for piece in self.pieces])[which]
        offsets: FloatArray = levels + slopes * (times_ns - moments)
        return offsets


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of an attempt's hosts; one that is not in ``known`` cannot be compared with any other."""

    known: Mapping[str, HostClock]

    def aligned_ns(self, host: str | None, moment_ns: int) -> int:
        """A moment on the reference clock; as it is where the host's clock is not known."""
        clock = self.known.get(host or "")
        return moment_ns if clock is None else clock.aligned_ns(moment_ns)

    def unaligned(self, hosts: Iterable[str | None]) -> list[str]:
        """Which of several hosts have a clock that cannot be compared with others; one host alone needs none."""
        names = {host for host in hosts if host is not None}
        return sorted(names - set(self.known)) if len(names) > 1 else []

    def uncertainty_ns(self, one: str | None, other: str | None, moment_ns: int) -> int | None:
        """No order finer than this is claimed between moments of two hosts near one; None: no order at all."""
        if one == other:
            return 0
        clocks = [self.known.get(host or "") for host in (one, other)]
        known = [clock.uncertainty_ns(moment_ns) for clock in clocks if clock is not None]
        return sum(known) if len(known) == 2 else None


NO_CLOCKS = Clocks({})


def load_clocks(store: Store, attempt: Attempt) -> Clocks:
    """The clocks of an attempt's hosts from `clock_offsets`; an offset without its uncertainty is no use.

    Offsets that no writer has left are worked out first: see `ensure_clock_offsets`.
    """
    ensure_clock_offsets(store, attempt)
    rows = store.query(f"SELECT * EXCLUDE (run, attempt) FROM ({CLOCK_PIECES}) ORDER BY from_ns", attempt=attempt)
    return Clocks(_by_host(rows.to_pylist()))


def _by_host(rows: Iterable[Mapping[str, Any]]) -> dict[str, HostClock]:
    pieces: dict[str, list[ClockPiece]] = {}
    for row in rows:
        pieces.setdefault(str(row["host"]), []).append(
            ClockPiece(**{name: value for name, value in row.items() if name != "host"})
        )
    return {host: HostClock(tuple(found)) for host, found in pieces.items()}
