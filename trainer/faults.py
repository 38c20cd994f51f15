"""Faults put in on purpose, for demonstrations and tests: slow rank, slow link, stop, kill, skipped collective."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..profiler.errors import UsageError
from ..profiler.null import NullRecorder
from ..profiler.recorder import Recorder

SMALLEST_SLEEP_NS = 1_000_000
"""Shorter sleeps overshoot by a good part of themselves; what is owed is carried on instead."""


class FaultKind(StrEnum):
    """What goes wrong."""

    SLOW = "slow"
    SLOW_LINK = "slow-link"
    STOP = "stop"
    KILL = "kill"
    SKIP_COLLECTIVE = "skip-collective"


REQUIRED = {
    FaultKind.SLOW: {"rank", "factor"},
    FaultKind.SLOW_LINK: {"link", "delay_ms"},
    FaultKind.STOP: {"rank", "segment", "step"},
    FaultKind.KILL: {"rank", "step"},
    FaultKind.SKIP_COLLECTIVE: {"rank", "segment", "step"},
}
OPTIONAL = {
    FaultKind.SLOW: {"segment", "from", "to"},
    FaultKind.SLOW_LINK: {"from", "to"},
    FaultKind.STOP: set(),
    FaultKind.KILL: {"segment"},
    FaultKind.SKIP_COLLECTIVE: set(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. ``segments`` empty means forward and backward for slow, the start of the step for kill.

    ``last_step`` is the last step that has it, None for all that follow. ``link`` is (source, destination).
    ``attempt`` None acts in every attempt, so that a restarted job that repeats the step meets it again.
    """

    text: str
    kind: FaultKind
    ranks: tuple[int, ...]
    segments: tuple[str, ...] = ()
    factor: float | None = None
    delay_ms: float | None = None
    link: tuple[int, int] | None = None
    first_step: int = 0
    last_step: int | None = None
    attempt: int | None = None

    def covers(self, step: int) -> bool:
        """Whether the fault acts in a step."""
        return self.first_step <= step and (self.last_step is None or step <= self.last_step)


def parse_fault(text: str) -> Fault:
    """Parse ``KIND key=value ...``; several ranks or segments are joined by commas.

    slow rank=5 factor=1.5 [segment=forward,backward] [from=20] [to=100]; slow-link link=1>5 delay_ms=20 [from=] [to=];
    stop rank=3 segment=forward step=12; kill rank=3 step=12 [segment=backward];
    skip-collective rank=3 segment=dp_all_gather step=12. Each takes attempt=0 too, to act in that attempt alone.
    Raises UsageError for anything else.
    """
    name, *pairs = text.split() or [""]
    if name not in set(FaultKind):
        raise UsageError(f"The fault {text!r} has no known kind: begin it with one of {', '.join(FaultKind)}.")
    kind = FaultKind(name)
    known = REQUIRED[kind] | OPTIONAL[kind] | {"attempt"}
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not value or key not in known or key in values:
            raise UsageError(
                f"The fault {text!r} has {pair!r}, which {kind} does not take: "
                f"use {', '.join(sorted(known))}, as key=value."
            )
        values[key] = value
    if missing := sorted(REQUIRED[kind] - values.keys()):
        raise UsageError(f"The fault {text!r} lacks {', '.join(missing)}: add it as key=value.")
    try:
        fault = _from_values(text, kind, values)
    except ValueError as error:
        raise UsageError(f"The fault {text!r} has a value that cannot be read ({error}): use numbers.") from error
    is_empty = fault.last_step is not None and fault.last_step < fault.first_step
    is_fast = fault.factor is not None and not 1 < fault.factor < 1e6
    is_short = fault.delay_ms is not None and not 0 < fault.delay_ms < 1e9
    if is_empty or is_fast or is_short or min(*fault.ranks, fault.first_step, fault.attempt or 0) < 0:
        raise UsageError(
            f"The fault {text!r} would do nothing: give ranks, steps and attempts from 0, a factor above 1, a delay_ms "
            "above 0, and a to that is not before from."
        )
    return fault


def _from_values(text: str, kind: FaultKind, values: dict[str, str]) -> Fault:
    link = None
    if "link" in values:
        source, destination = (int(rank) for rank in values["link"].split(">"))
        link = source, destination
    first = int(values.get("step", values.get("from", "0")))
    last = values.get("step", values.get("to"))
    return Fault(
        text=text,
        kind=kind,
        ranks=link or tuple(int(rank) for rank in values["rank"].split(",")),
        segments=tuple(values["segment"].split(",")) if "segment" in values else (),
        factor=float(values["factor"]) if "factor" in values else None,
        delay_ms=float(values["delay_ms"]) if "delay_ms" in values else None,
        link=link,
        first_step=first,
        last_step=None if last is None else int(last),
        attempt=int(values["attempt"]) if "attempt" in values else None,
    )


class FaultSwitches:
    """The faults that one rank carries, and the moments at which they act."""

    def __init__(
        self, faults: Sequence[Fault], rank: int, recorder: Recorder | NullRecorder, *, attempt: int = 0
    ) -> None:
        faults = [fault for fault in faults if fault.attempt in (None, attempt)]
        self._faults = [fault for fault in faults if rank in (fault.link[:1] if fault.link else fault.ranks)]
        self.active = bool(self._faults)
        self._recorder = recorder
        self._step = -1
        self._acted: dict[str, int] = {}
        self._ended: set[str] = set()
        self._factors: list[float | None] = []
        self._thread = threading.get_ident()
        self._held_ns: list[int] = []  # what the outer segments owe: not slept in an inner one, which would look slow
        self._busy_since_ns = self._owed_ns = 0

    def step(self, number: int) -> None:
        """Begin a step; a kill without a segment acts here, and faults whose last step is over end."""
        self._step = number
        self._end(fault for fault in self._faults if fault.last_step is not None and fault.last_step < number)
        for fault in self._acting(FaultKind.KILL):
            if not fault.segments:
                self._kill(fault)

    def enter(self, segment: str) -> None:
        """A segment of the rank's own work begins; called inside its span."""
        for fault in self._acting(FaultKind.KILL, FaultKind.STOP):
            if segment in fault.segments:
                self._kill(fault) if fault.kind is FaultKind.KILL else self._stop(fault)
        if threading.get_ident() != self._thread:  # a checkpoint that is written beside training
            return
        self.pause()
        factor = self._factors[-1] if self._factors else None  # what lies inside a slow segment is slow too
        for fault in self._acting(FaultKind.SLOW):
            if segment in (fault.segments or ("forward", "backward")):
                self._note(fault)
                factor = fault.factor
        self._factors.append(factor)
        self._held_ns.append(max(self._owed_ns, 0))
        self._owed_ns = min(self._owed_ns, 0)
        self.resume()

    def leave(self) -> None:
        """The innermost segment ends; what its slowness still owes is slept inside its span."""
        if threading.get_ident() == self._thread:
            self._settle(smallest_ns=1)
            self._factors.pop()
            self._owed_ns += self._held_ns.pop()
            self.resume()

    def pause(self) -> None:
        """The rank is about to communicate or to wait: sleep what is owed, so that it arrives late, as if slow."""
        self._settle(smallest_ns=SMALLEST_SLEEP_NS)

    def resume(self) -> None:
        """The rank's own work goes on: waiting for others is not part of its busy time."""
        self._busy_since_ns = time.monotonic_ns()

    def skips(self, segment: str) -> bool:
        """Whether to leave out the next operation: the first of the named segment in the step."""
        for fault in self._acting(FaultKind.SKIP_COLLECTIVE):
            if segment in fault.segments and fault.text not in self._acted:
                self._note(fault)
                return True
        return False

    def slows_link(self, ranks: Sequence[int]) -> bool:
        """Whether a slow link that this rank sends on joins two of the given ranks."""
        return any(fault.link is not None and set(fault.link) <= set(ranks) for fault in self._faults)

    def link_delay_s(self, ranks: Sequence[int], destination: int | None) -> float:
        """Delay of an operation that begins now; a point-to-point one is held back only in the link's direction."""
        delay_s = 0.0
        for fault in self._acting(FaultKind.SLOW_LINK):
            assert fault.link is not None
            assert fault.delay_ms is not None
            if set(fault.link) <= set(ranks) and destination in (None, fault.link[1]):
                self._note(fault)
                delay_s += fault.delay_ms / 1000
        return delay_s

    def _settle(self, smallest_ns: int) -> None:
        """Sleep (factor - 1) x the rank's own busy time, less what earlier sleeps overshot, in this segment or before.

        Busy is wall time outside of waits, not CPU time: an analysis sees wall time without waits too, so that
        the factor put in is the factor to be found.
        """
        factor = self._factors[-1] if self._factors else None
        if factor is None:
            return
        now = time.monotonic_ns()
        self._owed_ns += int((factor - 1) * (now - self._busy_since_ns))
        self._busy_since_ns = now
        if self._owed_ns >= smallest_ns:
            time.sleep(self._owed_ns / 1e9)
            self._busy_since_ns = time.monotonic_ns()
            self._owed_ns -= self._busy_since_ns - now

    def _kill(self, fault: Fault) -> None:
        self._note(fault)
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self, fault: Fault) -> None:
        self._note(fault)
        while True:
            time.sleep(3600)

    def _acting(self, *kinds: FaultKind) -> list[Fault]:
        return [fault for fault in self._faults if fault.kind in kinds and fault.covers(self._step)]

    def close(self) -> None:
        """The run ends, and what acts until then."""
        self._end(self._faults)

    def _note(self, fault: Fault) -> None:
        """Record that a fault acts for the first time; a kill has no later moment for its end."""
        if fault.text not in self._acted:
            now = self._acted[fault.text] = time.monotonic_ns()
            self._recorder.fault(as_row(fault, now, now if fault.kind is FaultKind.KILL else None))

    def _end(self, faults: Iterable[Fault]) -> None:
        """Record once more, under the same id, those that have acted and now act no longer."""
        for fault in faults:
            if fault.text in self._acted and fault.text not in self._ended:
                self._ended.add(fault.text)
                self._recorder.fault(as_row(fault, self._acted[fault.text], time.monotonic_ns()))


def as_row(fault: Fault, first_ns: int, last_ns: int | None) -> dict[str, Any]:
    """A row of the table ``faults``; moments are on the monotonic clock, as all times of the metadata."""
    return {
        "fault": fault.text,
        "kind": str(fault.kind),
        "ranks": list(fault.ranks),
        "host": None,
        "link": f"{fault.link[0]}>{fault.link[1]}" if fault.link else None,
        "segment": ",".join(fault.segments) or None,
        "factor": fault.factor,
        "first_step": fault.first_step,
        "last_step": fault.last_step,
        "first_ns": first_ns,
        "last_ns": last_ns,
    }
