"""The faults that one rank carries, and the moments at which they act."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ...profiler.null import NullRecorder
from ...profiler.recorder import Recorder
from .acts import act
from .kinds import ACTS, ALTERING, ENDING, LATE, OF_ALL, SKIPPING, Fault, FaultKind, parse_fault

SMALLEST_SLEEP_NS = 1_000_000
"""Shorter sleeps overshoot by a good part of themselves; what is owed is carried on instead."""


def miss_rendezvous(texts: Sequence[str], rank: int, recorder: Recorder | NullRecorder, attempt: int = 0) -> None:
    """Come back, unless this rank is to miss the rendezvous: then never."""
    for fault in map(parse_fault, texts):
        if fault.kind is FaultKind.NO_RENDEZVOUS and rank in fault.ranks and fault.attempt in (None, attempt):
            recorder.fault(as_row(fault, time.monotonic_ns(), None))
            act(FaultKind.STOP, fault.text)


class FaultSwitches:
    """The faults that one rank carries, and the moments at which they act."""

    def __init__(
        self, faults: Sequence[Fault], rank: int, recorder: Recorder | NullRecorder, *, attempt: int = 0
    ) -> None:
        faults = [fault for fault in faults if fault.attempt in (None, attempt)]
        self._faults = [fault for fault in faults if _carries(fault, rank)]
        self._rank = rank
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
        """Begin a step; what befalls the rank outside of any segment acts here, and faults whose last step is over end.

        Raises InjectedError for a fault of kind raise.
        """
        self._step = number
        self._end(fault for fault in self._faults if fault.last_step is not None and fault.last_step < number)
        for fault in self._acting(*ACTS):
            if not fault.segments:
                self._act(fault)

    def enter(self, segment: str) -> None:
        """A segment of the rank's own work begins; called inside its span. Raises as `step` does."""
        for fault in self._acting(*ACTS):
            if segment in fault.segments:
                self._act(fault)
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
        return self._first_time(SKIPPING, segment) is not None

    def alters(self, segment: str) -> FaultKind | None:
        """In which wrong way to call the next collective, if any: the first of the named segment in the step."""
        return self._first_time(ALTERING, segment)

    def swaps_order(self) -> bool:
        """Whether to reduce over the other axes, this step, before the gradients are reduced over dp."""
        return self._is_acting(FaultKind.SWAP_ORDER)

    def receives_first(self) -> bool:
        """Whether to wait, this step, for the gradient of an activation before the activation is sent."""
        return self._is_acting(FaultKind.RECEIVE_FIRST)

    def poisons(self) -> bool:
        """Whether the loss of this step is not a number."""
        return self._is_acting(FaultKind.NAN)

    def stretch(self) -> float:
        """How many times as long the update of the weights is, this step, as it should be."""
        acting = self._acting(FaultKind.DIVERGE)
        for fault in acting:
            self._note(fault)
        return math.prod((fault.factor or 1.0 for fault in acting), start=1.0)

    def repeats(self, step: int) -> bool:
        """Whether a step that has just ended is to be run once more; the second time is not the fault's any more."""
        for fault in self._acting(FaultKind.REPEAT_STEP):
            if fault.covers(step) and fault.text not in self._acted:
                self._note(fault)
                return True
        return False

    def _first_time(self, kinds: frozenset[FaultKind], segment: str) -> FaultKind | None:
        for fault in self._acting(*kinds):
            if segment in fault.segments and fault.text not in self._acted:
                self._note(fault)
                return fault.kind
        return None

    def _is_acting(self, kind: FaultKind) -> bool:
        acting = self._acting(kind)
        for fault in acting:
            self._note(fault)
        return bool(acting)

    def slows_link(self, ranks: Sequence[int]) -> bool:
        """Whether a slow link, or a slow network card, lies between some of the given ranks, of which this is one."""
        return any(fault.kind in LATE and _lies_between(fault, ranks) for fault in self._faults)

    def link_delay_s(self, ranks: Sequence[int], destination: int | None) -> float:
        """Delay of an operation that begins now; a point-to-point one is held back where it is sent.

        ``destination`` is None for a collective, and this rank itself for what it receives.
        """
        delay_s = 0.0
        for fault in self._acting(*LATE):
            assert fault.delay_ms is not None
            if not _lies_between(fault, ranks) or not self._holds_back(fault, destination):
                continue
            if self._rank in fault.ranks:
                self._note(fault)
            delay_s += fault.delay_ms / 1000
        return delay_s

    def _holds_back(self, fault: Fault, destination: int | None) -> bool:
        if fault.link is not None:
            return destination in (None, fault.link[1])
        is_own = self._rank in fault.ranks
        return is_own if destination is None else is_own != (destination in fault.ranks)

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

    def _act(self, fault: Fault) -> None:
        self._note(fault)
        act(fault.kind, fault.text)

    def _acting(self, *kinds: FaultKind) -> list[Fault]:
        return [fault for fault in self._faults if fault.kind in kinds and fault.covers(self._step)]

    def close(self) -> None:
        """The run ends, and what acts until then."""
        self._end(self._faults)

    def _note(self, fault: Fault) -> None:
        """Record that a fault acts for the first time; a kill has no later moment for its end."""
        if fault.text not in self._acted:
            now = self._acted[fault.text] = time.monotonic_ns()
            self._recorder.fault(as_row(fault, now, now if fault.kind in ENDING else None))

    def _end(self, faults: Iterable[Fault]) -> None:
        """Record once more, under the same id, those that have acted and now act no longer."""
        for fault in faults:
            if fault.text in self._acted and fault.text not in self._ended:
                self._ended.add(fault.text)
                self._recorder.fault(as_row(fault, self._acted[fault.text], time.monotonic_ns()))


def _carries(fault: Fault, rank: int) -> bool:
    """Whether a rank does something for a fault: what is sent to a slow card is held back by whoever sends it."""
    if fault.kind is FaultKind.SLOW_NIC or fault.kind in OF_ALL:
        return True
    return rank in (fault.link[:1] if fault.link else fault.ranks)


def _lies_between(fault: Fault, ranks: Sequence[int]) -> bool:
    if fault.link is not None:
        return set(fault.link) <= set(ranks)
    return not set(ranks).isdisjoint(fault.ranks) and not set(ranks) <= set(fault.ranks)


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
