"""Responding to an alert: diagnosis, the end of what runs, self-checks, the decision, and its record."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from ..checkpoints.files import set_aside
from .alarming import alarm_of_decision
from .attempt import AttemptState
from .diagnosis import accused_of, ask_hang, check_hosts, end_ranks, refine
from .history import RollBack
from .journal import RECOVERY, Record
from .policy import PLANNED, Accused, Action, Case, Decision, Trigger, applied, decide
from .rolling_back import way_still_there
from .saving import save_and_stop
from .shared import EndAskedError, Shared
from .watching import Alert


class Response:
    """What is done about one alert of an attempt."""

    def __init__(self, shared: Shared, state: AttemptState, alert: Alert) -> None:
        assert alert.trigger is not None
        self._shared, self._state, self._alert = shared, state, alert
        self._trigger: Trigger = alert.trigger
        self._back: RollBack | None = None
        self._gone, self._moved = "", list[str]()
        seen = shared.observer.seen
        self._stalled_at = seen.furthest, seen.stall is not None, len(state.codes)
        opened_ns = seen.furthest_ns or state.began_ns
        self._record = shared.journal.open(state.number, f"{RECOVERY}{alert.trigger}", opened_ns, seen.furthest)

    def run(self) -> Decision | None:
        """Diagnose, end what runs, decide and do it; None where the job turned out to go on."""
        record = self._begin()
        try:
            accused = self._look_closer()
            if accused is None:
                return None
            record.times["diagnosis_s"] = round(record.age_s(), 2)
            self._hold_way()
            self._end_ranks()
            with self._shared.leaving():
                accused = self._checked(accused)
        except EndAskedError:
            self._trigger, accused = Trigger.ASKED, ()
            if not all(self._state.is_still(host) for host in self._state.hosts):
                self._end_ranks()
        case = self._shared.case(self._trigger, accused, self._state, self._way_left())
        decision = self._made_way(self._in_earnest(decide(case, self._shared.history, self._shared.job.limits)))
        self._act(case, decision)
        return decision

    def _begin(self) -> Record:
        shared, state, record = self._shared, self._state, self._record
        shared.say(f"{self._trigger}: {self._alert.sentence}")
        shared.recovery.give_up("another incident came before")
        record.times["detection_s"] = round(max(record.noticed_ns - record.opened_ns, 0) / 1e9, 2)
        record.note("noticed", sentence=self._alert.sentence, ranks=sorted(state.failed), hosts=sorted(state.lost))
        shared.journal.write(state.number)
        return record

    def _look_closer(self) -> tuple[Accused, ...] | None:
        """Whom the verdict accuses; None where what stood still moves again."""
        shared, state, record = self._shared, self._state, self._record
        if self._trigger is Trigger.DIVERGED:
            self._back = shared.way_back(self._trigger)
            if self._back is None:
                self._leave("no-way-back", "no way back is found: the ranks go on")
                return None
            return ()
        if self._trigger in PLANNED:
            record.verdict = self._alert.verdict
            self._trigger = self._save()
            return self._alert.accused
        with shared.leaving():
            accused = self._diagnose()
        if self._trigger is Trigger.STALLED and not accused and self._moves() and not state.lost:
            self._leave("moves-again", "it moves again: nothing is done")
            return None
        return accused

    def _leave(self, what: str, sentence: str) -> None:
        """The job goes on as it is."""
        self._record.note(what)
        self._record.closed_ns = time.time_ns()
        self._shared.journal.write(self._state.number)
        self._shared.say(sentence)

    def _diagnose(self) -> tuple[Accused, ...]:
        shared, state, record = self._shared, self._state, self._record
        if self._trigger is Trigger.REFUSED:
            return ()
        if self._trigger is Trigger.HOST_LOST:
            return self._host_is_lost()
        shared.wait(shared.job.patience.settle_s)
        if state.lost:  # the ranks went because their host did
            return self._host_is_lost()
        verdict = ask_hang(shared.job, state, record, shared.turn, self._moves)
        if state.lost:
            return self._host_is_lost()
        record.verdict = verdict
        accused = accused_of(verdict)
        for one in accused:
            shared.say(f"{one.host} is named: {one.reason} (confidence {one.confidence:.2f})")
        if not accused:
            shared.say("nobody is named")
        with contextlib.suppress(StopIteration):
            record.note("said", text=next(text for text in state.said.values() if text)[-1000:])
        refined = refine(self._trigger, verdict)
        if refined is not self._trigger:
            record.note("understood", trigger=str(refined))
        self._trigger = refined
        return accused

    def _host_is_lost(self) -> tuple[Accused, ...]:
        self._trigger = Trigger.HOST_LOST
        self._record.note("diagnosed", hosts=sorted(self._state.lost), why="the agent of the host does not answer")
        return ()

    def _moves(self) -> bool:
        """Whether what stood still goes on: by itself, or because a rank ended after all."""
        if self._trigger is not Trigger.STALLED:
            return False
        shared, state = self._shared, self._state
        shared.observer.look()
        seen, (furthest, was_noticed, ended) = shared.observer.seen, self._stalled_at
        if state.lost or len(state.codes) > ended:
            return bool(state.lost) or not state.failed
        if not was_noticed and seen.furthest == furthest:  # no agent opened the stall, so that none will close it
            return False
        return seen.stall is None and not state.failed

    def _save(self) -> Trigger:
        shared, state, record = self._shared, self._state, self._record
        saved = save_and_stop(shared.job, state, shared.hub, shared.observer, shared.turn)
        if saved is not None:
            record.note("saved", step=saved)
            record.step = saved - 1
            shared.say(f"saved after step {saved}, and stopped")
            return self._trigger
        record.note("not-saved", why="the ranks did not all save and stop as they were asked to")
        return Trigger.HOST_LOST if state.lost else self._trigger

    def _end_ranks(self) -> None:
        shared, state, record = self._shared, self._state, self._record
        if not end_ranks(shared.job, state, shared.hub, shared.turn):
            stuck = [host for host in state.hosts if not state.is_still(host)]
            record.note("not-ended", hosts=stuck)
            state.give_up(stuck)  # whatever runs there must not meet the next attempt
            shared.say(f"the ranks of {', '.join(stuck)} cannot be ended: not used until they have")
        shared.withhold(state)
        shared.observer.look()
        seen = shared.observer.seen
        if self._trigger not in PLANNED:  # also what was still on its way into the store
            record.step = shared.last_completed()
        if seen.furthest is not None and self._trigger not in PLANNED:
            record.opened_ns = min(seen.furthest_ns or 2**63, record.noticed_ns)
            record.times["detection_s"] = round((record.noticed_ns - record.opened_ns) / 1e9, 2)

    def _checked(self, accused: tuple[Accused, ...]) -> tuple[Accused, ...]:
        shared, state, record = self._shared, self._state, self._record
        accused = check_hosts(shared.job, state, shared.hub, accused, record, shared.turn)
        record.times["check_s"] = round(record.age_s() - record.times["diagnosis_s"], 2)
        for one in accused:
            if one.passed_check is not None:
                shared.say(f"{one.host} {'passes' if one.passed_check else 'fails'} its self-check")
        return accused

    def _hold_way(self) -> None:
        """Set newer checkpoints aside while the ranks still run: one they commit meanwhile would prune the way back."""
        if self._back is not None and self._shared.job.checkpoints is not None:
            with contextlib.suppress(OSError):  # it is done again once they have ended
                self._set_aside(self._shared.job.checkpoints, self._back.to)

    def _set_aside(self, folder: Path, to: int) -> None:
        self._moved += [path.name for path in set_aside(folder, to)]

    def _way_left(self) -> RollBack | None:
        """The way back now that the ranks have ended; None, and why, where it is gone."""
        shared, found = self._shared, self._back
        if found is None or self._trigger is not Trigger.DIVERGED:
            return None
        try:
            left = way_still_there(found, shared.job, shared.observer.seen, shared.history)
            why = "is not there any more"
        except OSError as error:
            left, why = None, f"cannot be read ({error})"
        if left is None:
            self._record.note("no-way-back", to=found.to, set_aside=self._moved)
            self._gone = (
                f"The loss diverges, and the checkpoint of step {found.to} {why}: those that are left in "
                f"{shared.job.checkpoints} may have come after the rise. Choose one before the run is started again."
            )
        return left

    def _in_earnest(self, decision: Decision) -> Decision:
        """What is done once ranks have been ended: their job does not just go on, and never from where it diverged."""
        if self._gone:
            return Decision(Action.STOP, self._gone)
        if decision.action is not Action.WATCH:
            return decision
        reason = f"{decision.reason} Its ranks have been ended for it: restarted as it was."
        return replace(decision, action=Action.RESTART, reason=reason)

    def _made_way(self, decision: Decision) -> Decision:
        """Set the checkpoints aside that are not to be resumed from; where that fails, the run has to stop."""
        job, back = self._shared.job, decision.back
        if back is None or job.checkpoints is None:
            return decision
        try:
            self._set_aside(job.checkpoints, back.to)
        except OSError as error:
            reason = f"The loss diverges, and the checkpoints after step {back.to} cannot be set aside ({error})."
            return Decision(Action.STOP, reason)
        batches = [back.first, back.last]
        self._record.note("rolled-back", to=back.to, batches=batches, set_aside=self._moved)
        return decision

    def _act(self, case: Case, decision: Decision) -> None:
        shared, record, number = self._shared, self._record, self._state.number
        record.note("decided", decision=str(decision.action), why=decision.reason, wait_s=decision.wait_s)
        shared.say(f"{decision.action}: {decision.reason}")
        alarm_of_decision(shared.alarms, shared.job.run, record, case, decision)
        history = applied(decision, replace(case, step=record.step), shared.history)
        for host in decision.fence:
            shared.hub.ban(host)
            record.note("fenced", host=host)
        if decision.action is Action.STOP:
            record.closed_ns = time.time_ns()
        else:
            if decision.skip_batch is not None:
                record.note("skipped", batch=decision.skip_batch)
            shared.recovery.begin(record, record.step)
            record.note("restarting", attempt=number + 1)
        shared.keep(history)
        shared.journal.write(number)
