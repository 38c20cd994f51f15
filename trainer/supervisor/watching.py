"""Watching an attempt while it trains: what its nodes say, what the store shows, and what detectors make of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...profiler.exits import exit_words
from .accusing import accused_by_stragglers, network_signs
from .attempt import AttemptState
from .chronic import Chronic
from .detectors import accuses, device_errors, signs_of
from .inquiring import HangInquiry, Judged
from .job import Job
from .observing import Observer
from .policy import Accused, Trigger
from .signs import Detector, Sign
from .straggling import SLOWNESS, StragglerInquiry

USAGE = 2
"""Exit code of a rank that cannot use what it was given."""

LEAST_QUIET_S = 5.0
"""A job that made a step later than that ago, or than three usual ones, is not taken for one that stands still."""


@dataclass(frozen=True, slots=True)
class Alert:
    """What ends the watching of an attempt. Without a trigger the job has finished."""

    trigger: Trigger | None
    sentence: str
    accused: tuple[Accused, ...] = ()
    verdict: Mapping[str, Any] | None = None
    signs: tuple[Sign, ...] = ()


@dataclass(slots=True)
class Watcher:
    """Watches one attempt. ``is_worth`` tells whether the policy would do anything about accused hosts,
    ``against`` why nothing would be done about slow ones (None: it would).

    ``is_asked`` tells whether somebody wants it to end.
    ``hear`` hears of all signs at every look, ``judged`` of verdicts that were asked for because of them.
    """

    job: Job
    state: AttemptState
    observer: Observer
    turn: Callable[[float], None]
    is_worth: Callable[[Trigger, tuple[Accused, ...]], bool]
    hear: Callable[[Sequence[Sign]], None]
    progress: Callable[[], None]
    is_asked: Callable[[], bool] = lambda: False
    judged: Callable[[Judged], None] = lambda _: None
    against: Callable[[tuple[Accused, ...]], str | None] = lambda _: None
    signs: tuple[Sign, ...] = ()
    clock: Callable[[], float] = time.monotonic
    place: tuple[int | None, ...] = ()
    quiet_since: float = 0.0
    looked_at: float = 0.0
    inquiry: HangInquiry = field(init=False)
    stragglers: StragglerInquiry = field(init=False)
    chronic: Chronic = field(init=False)

    def __post_init__(self) -> None:
        """One inquiry of each kind an attempt."""
        self.inquiry = HangInquiry(self.job, self.state.number)
        self.stragglers = StragglerInquiry(self.job, self.state.number, self.clock)
        self.chronic = Chronic(self.job.limits.min_lost_share, self.against)

    def watch(self) -> Alert:
        """Watch until the attempt has ended, or something has to be done about it."""
        look_at = 0.0
        try:
            while True:
                self.turn(0.2)
                found = self._from_nodes()
                if found is None and self.is_asked():
                    return Alert(Trigger.ASKED, "the supervisor is asked to end")
                if found is None and time.monotonic() >= look_at:
                    look_at = time.monotonic() + self.job.patience.look_s
                    self.observer.look()
                    self._note_place()
                    self.progress()
                    found = self._from_store() or self._from_signs()
                if found is not None:
                    return found
        finally:
            self.stragglers.close()
            self.inquiry.close()

    def _from_nodes(self) -> Alert | None:
        state = self.state
        if state.lost:
            return Alert(Trigger.HOST_LOST, f"{', '.join(sorted(state.lost))} does not answer any more")
        if state.failed:
            if set(state.failed.values()) == {USAGE} and self.observer.seen.last_step is None:
                said = next((text for text in state.said.values() if text), "").strip().splitlines()
                return Alert(Trigger.REFUSED, said[-1] if said else "the ranks end with a usage error")
            rank, code = min(state.failed.items(), key=lambda item: (item[1], item[0]))
            return Alert(Trigger.EXITED, f"rank {rank} {exit_words(code)}")
        if state.has_ended_well:
            return Alert(None, "all ranks have ended in order")
        return None

    def _note_place(self) -> None:
        """How far the job has come, and since when it has stood there by this process's clock; a rank's may be another.

        Time in which nobody could see does not count, and as much after it neither: what was made then comes late.
        """
        seen, now = self.observer.seen, self.clock()
        place = seen.last_step, seen.furthest, len(self.state.codes)
        if place != self.place:
            self.place, self.quiet_since = place, now
        elif self.observer.is_blind:
            self.quiet_since = min(now, self.quiet_since + 2 * (now - self.looked_at))
        self.looked_at = now

    def _from_store(self) -> Alert | None:
        seen, state, patience = self.observer.seen, self.state, self.job.patience
        stall = seen.stall
        if stall is not None:
            return Alert(Trigger.STALLED, f"an agent says that nothing moves ({stall['incident']})")
        if self.observer.is_blind:  # who cannot see does not know that nothing moves
            return None
        quiet_s = self.looked_at - self.quiet_since
        if seen.moved_ns is None:
            if quiet_s <= patience.start_s:
                return None
            problem = "" if self.observer.problem is None else f" (the store: {self.observer.problem})"
            return Alert(Trigger.NOT_STARTED, f"no step was made within {patience.start_s:g} s{problem}")
        if quiet_s <= max(patience.stall_s, 20 * self._usual_s()):
            return None
        left = f", and {state.world_size - len(state.codes)} ranks do not end" if state.codes else ""
        return Alert(Trigger.STALLED, f"no step was made for {quiet_s:.0f} s{left}")

    def _usual_s(self) -> float:
        """The median step, in seconds; 0 before any."""
        times = [step.duration_ns for step in self.observer.seen.steps if step.duration_ns is not None]
        return statistics.median(times) / 1e9 if times else 0.0

    def _from_inquiry(self) -> Alert | None:
        """A job of which a sign says that something stands still, a verdict that it does, and that makes no step."""
        found = self.inquiry.look(self.signs)
        if found is None:
            return None
        self.judged(found)
        quiet_s = self.looked_at - self.quiet_since
        if not found.is_firm or self.observer.is_blind or quiet_s < max(LEAST_QUIET_S, 3 * self._usual_s()):
            return None
        return Alert(Trigger.STALLED, found.sign.sentence, signs=self.signs)

    def _from_signs(self) -> Alert | None:
        seen = self.observer.seen
        readings = [
            one for one in seen.readings if one.host in self.state.hosts and one.moment_ns >= self.state.began_ns
        ]
        self.signs = tuple(signs_of(seen.settled, seen.beats, readings, self.job.thresholds))
        self.hear(self.signs)
        found = {sign.detector for sign in self.signs}
        if Detector.NOT_FINITE in found:
            sign = next(sign for sign in self.signs if sign.detector is Detector.NOT_FINITE)
            return Alert(Trigger.NOT_FINITE, sign.sentence, signs=self.signs)
        if Detector.DIVERGENCE in found and self.is_worth(Trigger.DIVERGED, ()):
            sign = next(sign for sign in self.signs if sign.detector is Detector.DIVERGENCE)
            return Alert(Trigger.DIVERGED, sign.sentence, signs=self.signs)
        broken = device_errors([one for one in readings if accuses(one)], self.job.thresholds)
        if broken:
            by_host: dict[str, Accused] = {}
            for host, sentence in ((host, sign.sentence) for sign in broken for host in sign.hosts):
                by_host.setdefault(host, Accused(host, 0.9, True, sentence))
            accused = tuple(by_host.values())
            if self.is_worth(Trigger.DEVICE_ERROR, accused):
                return Alert(Trigger.DEVICE_ERROR, broken[0].sentence, accused, signs=self.signs)
        return self._from_inquiry() or self._from_stragglers()

    def _from_stragglers(self) -> Alert | None:
        told = self.stragglers.look(self.signs, self.observer.seen)
        if told is None or told.answer.verdict is None:
            return None
        verdict = told.answer.verdict
        if told.is_due:
            return self._from_due(verdict)
        self.hear(network_signs(verdict))
        slow = next((sign for sign in self.signs if sign.detector in SLOWNESS), None)
        accused = accused_by_stragglers(verdict)
        if slow is None or not accused or not self.is_worth(Trigger.SLOW, accused):
            return None
        return Alert(Trigger.SLOW, slow.sentence, accused, verdict, self.signs)

    def _from_due(self, verdict: Mapping[str, Any]) -> Alert | None:
        """What a verdict that was asked for without a sign leads to."""
        accused, is_open, told = self.chronic.judge(verdict)
        self.hear(told)
        if is_open:
            self.stragglers.ask_again(self.observer.seen)
        if not accused:
            return None
        return Alert(Trigger.SLOW, self.chronic.sentence(verdict, accused), accused, verdict, self.signs)
