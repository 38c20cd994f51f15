"""The supervisor: starts attempts, watches them, and does what keeps the job going, or stops it for good."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .attempt import AttemptState
from .diagnosis import accused_of, ask_hang, check_hosts, end_ranks, refine
from .fencing import spares_of
from .goodput import Goodput, goodput_of
from .history import History, load_history, run_folder, save_history
from .hub import Hub
from .job import Job
from .journal import RECOVERY, SIGN, Journal, Record
from .observing import Observer
from .policy import PLANNED, Accused, Action, Case, Decision, Trigger, applied, decide
from .recovery import Recovery
from .saving import save_and_stop, stop_step
from .signs import DeviceReading, Sign
from .starting import StartError, await_hosts, start_attempt
from .watching import Alert, Watcher

Say = Callable[[str], None]

REST_S = 5.0


@dataclass(slots=True)
class Outcome:
    """How a supervised run ended. ``finished`` is False where the supervisor stopped it; ``reason`` says why."""

    finished: bool
    reason: str
    attempts: int
    history: History
    records: list[Record] = field(default_factory=list)
    goodput: Goodput | None = None


class Supervisor:
    """Runs one job to its end. `run` returns how it ended; what befalls the job raises nothing."""

    def __init__(self, job: Job, hub: Hub, say: Say, first_attempt: int = 0) -> None:
        self.job, self.hub, self._say = job, hub, say
        self._history_path = run_folder(job.store, job.run) / "history.json"
        self.history = load_history(self._history_path)
        self.hub.banned |= self.history.fenced
        self.journal = Journal(job.store, job.run)
        self._observer = Observer(job.store, job.run)
        self._recovery = Recovery(self.journal)
        self._state: AttemptState | None = None
        self._readings: list[DeviceReading] = []
        self._stalled_at: tuple[int | None, bool] = (None, False)
        self._hosts: tuple[str, ...] = ()
        self._next, self._attempts = first_attempt, 0
        self._is_asked = False

    def ask_to_end(self) -> None:
        """Have the ranks save as soon as they can, and end; for a signal's handler."""
        self._is_asked = True

    def turn(self, patience_s: float) -> None:
        """Let a moment pass, and take over what the nodes say."""
        for node, message in self.hub.turn(patience_s):
            what = message.get("say")
            if what == "xid":
                device, xid = message.get("device"), float(message["xid"])
                self._readings.append(DeviceReading(node.host, device, time.time_ns(), "xid", xid))
            if self._state is not None:
                self._state.take(node.host, message)
            if what == "lost":
                self._say(f"{node.host} is lost")

    def run(self) -> Outcome:
        """Keep the job going until it has finished, or a decision stops it."""
        began = time.monotonic()
        try:
            outcome = self._run()
        finally:
            for node in self.hub.nodes.values():
                node.tell({"do": "end"})
            self.journal.close()
        self._observer.look()
        outcome.goodput = goodput_of(self._observer.executions(), time.monotonic() - began)
        self._observer.close()
        return outcome

    def _run(self) -> Outcome:
        while True:
            try:
                state = self._start()
            except StartError as error:
                self._recovery.give_up(str(error))
                return self._outcome(False, str(error))
            decision = None
            while decision is None:  # what stood still may move again
                alert = self._watch(state)
                if alert.trigger is None:
                    self._await_rest()
                    self._recovery.give_up("the job has finished")
                    return self._outcome(True, "the job has finished")
                decision = self._respond(state, alert)
            if decision.action is Action.STOP:
                self._recovery.give_up(decision.reason)
                return self._outcome(False, decision.reason)
            if decision.wait_s > 0:
                self._say(f"waiting {decision.wait_s:.0f} s before the next restart")
                self._wait(decision.wait_s)

    def _await_rest(self) -> None:
        """Let the last steps arrive in the store, where a recovery is still to be seen in them."""
        until = time.monotonic() + REST_S
        while self._recovery.is_open and time.monotonic() < until:
            self._wait(0.5)
            self._observer.look()
            self._progress()

    def _outcome(self, finished: bool, reason: str) -> Outcome:
        return Outcome(finished, reason, self._attempts, self.history, self.journal.records)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.turn(0.2)

    # -- one attempt --------------------------------------------------------------------------------------------

    def _start(self) -> AttemptState:
        self._hosts = await_hosts(self.job, self.hub, self._hosts, self.hub.banned, self.turn)
        state = AttemptState(self._next, self._hosts, self.job.ranks_per_host, time.time_ns())
        self._state, self._next, self._attempts = state, self._next + 1, self._attempts + 1
        self._observer.begin(state.number)
        spares = self._spares()
        waiting = f"; {', '.join(spares)} in reserve" if spares else ""
        self._say(f"attempt {state.number} starts on {', '.join(state.hosts)}{waiting}")
        start_attempt(self.job, self.hub, state, self.history.skipped, self.turn)
        return state

    def _watch(self, state: AttemptState) -> Alert:
        return Watcher(
            self.job,
            state,
            self._observer,
            self.turn,
            lambda trigger, accused: self._is_worth(trigger, accused, state),
            self._tell_sign,
            self._progress,
            lambda: self._is_asked,
            self._readings,
        ).watch()

    def _is_worth(self, trigger: Trigger, accused: tuple[Accused, ...], state: AttemptState) -> bool:
        """Whether anything would be done about hosts that are accused while the job trains."""
        target = stop_step(self.job, self._observer.seen)
        in_time = target is not None and target < self.job.steps
        case = self._case(trigger, accused, state)
        return in_time and decide(case, self.history, self.job.limits).action is not Action.WATCH

    def _progress(self) -> None:
        caught_up = self._recovery.look(self._observer.seen)
        if caught_up is not None:
            times = ", ".join(f"{name.removesuffix('_s')} {value:g} s" for name, value in caught_up.times.items())
            self._say(f"caught up at step {self._observer.seen.last_step}: {times}")

    def _tell_sign(self, sign: Sign) -> None:
        """A sign is told and noted; what follows from it is for the verdicts to say."""
        self._say(f"sign {sign.detector}: {sign.sentence}")
        last_ns = self._observer.seen.furthest_ns or time.time_ns()
        record = self.journal.open(self._number, f"{SIGN}{sign.detector}", last_ns, sign.step)
        record.note("sign", sentence=sign.sentence, threshold=sign.threshold, ranks=list(sign.ranks))
        record.closed_ns = record.noticed_ns
        self.journal.write(self._number)

    @property
    def _number(self) -> int:
        return self._next - 1

    # -- responding ---------------------------------------------------------------------------------------------

    def _respond(self, state: AttemptState, alert: Alert) -> Decision | None:
        """Diagnose, end what runs, decide and do it; None where the job turned out to go on."""
        assert alert.trigger is not None
        self._say(f"{alert.trigger}: {alert.sentence}")
        self._recovery.give_up("another incident came before")
        seen = self._observer.seen
        self._stalled_at = seen.furthest, seen.stall is not None
        record = self.journal.open(
            state.number, f"{RECOVERY}{alert.trigger}", seen.furthest_ns or state.began_ns, seen.furthest
        )
        record.times["detection_s"] = round(max(record.noticed_ns - record.opened_ns, 0) / 1e9, 2)
        record.note("noticed", sentence=alert.sentence, ranks=sorted(state.failed), hosts=sorted(state.lost))
        self.journal.write(state.number)
        trigger, accused = alert.trigger, alert.accused
        if trigger in PLANNED:
            record.verdict = alert.verdict
            trigger = self._save(state, record, trigger)
        else:
            trigger, accused = self._diagnose(state, record, trigger)
            if trigger is Trigger.STALLED and not accused and self._moves(trigger, state) and not state.lost:
                record.note("moves-again")
                record.closed_ns = time.time_ns()
                self.journal.write(state.number)
                self._say("it moves again: nothing is done")
                return None
        record.times["diagnosis_s"] = round(record.age_s(), 2)
        if not end_ranks(self.job, state, self.hub, self.turn):
            stuck = [host for host in state.hosts if not state.is_still(host)]
            record.note("not-ended", hosts=stuck)
            state.lost.update(stuck)  # whatever runs there must not meet the next attempt
        self._observer.look()
        if seen.furthest is not None and trigger not in PLANNED:  # also what was still on its way into the store
            record.step, record.opened_ns = seen.furthest, min(seen.furthest_ns or 2**63, record.noticed_ns)
            record.times["detection_s"] = round((record.noticed_ns - record.opened_ns) / 1e9, 2)
        accused = check_hosts(self.job, state, self.hub, accused, record, self.turn)
        record.times["check_s"] = round(record.age_s() - record.times["diagnosis_s"], 2)
        for one in accused:
            if one.passed_check is not None:
                self._say(f"{one.host} {'passes' if one.passed_check else 'fails'} its self-check")
        case = self._case(trigger, accused, state)
        decision = decide(case, self.history, self.job.limits)
        self._act(state, record, case, decision)
        return decision

    def _diagnose(self, state: AttemptState, record: Record, trigger: Trigger) -> tuple[Trigger, tuple[Accused, ...]]:
        if trigger is Trigger.REFUSED:
            return trigger, ()
        if trigger is Trigger.HOST_LOST:
            record.note("diagnosed", hosts=sorted(state.lost), why="the agent of the host does not answer")
            return trigger, ()
        self._wait(self.job.patience.settle_s)
        if state.lost:  # the ranks went because their host did
            return self._diagnose(state, record, Trigger.HOST_LOST)
        verdict = ask_hang(self.job, state, record, self.turn, lambda: self._moves(trigger, state))
        if state.lost:
            return self._diagnose(state, record, Trigger.HOST_LOST)
        record.verdict = verdict
        accused = accused_of(verdict)
        for one in accused:
            self._say(f"{one.host} is named: {one.reason} (confidence {one.confidence:.2f})")
        if not accused:
            self._say("nobody is named")
        with contextlib.suppress(StopIteration):
            record.note("said", text=next(text for text in state.said.values() if text)[-1000:])
        refined = refine(trigger, verdict)
        if refined is not trigger:
            record.note("understood", trigger=str(refined))
        return refined, accused

    def _moves(self, trigger: Trigger, state: AttemptState) -> bool:
        """Whether what stood still goes on: by itself, or because a rank ended after all."""
        if trigger is not Trigger.STALLED:
            return False
        self._observer.look()
        seen, (furthest, was_noticed) = self._observer.seen, self._stalled_at
        if not was_noticed and seen.furthest == furthest:  # no agent opened the stall, so that none will close it
            return bool(state.lost)
        return bool(state.lost) or (seen.stall is None and not state.failed)

    def _save(self, state: AttemptState, record: Record, trigger: Trigger) -> Trigger:
        saved = save_and_stop(self.job, state, self.hub, self._observer, self.turn)
        if saved is not None:
            record.note("saved", step=saved)
            record.step = saved - 1
            self._say(f"saved after step {saved}, and stopped")
            return trigger
        record.note("not-saved", why="the ranks did not all stop at the step that was asked for")
        return Trigger.HOST_LOST if state.lost else trigger

    def _case(self, trigger: Trigger, accused: tuple[Accused, ...], state: AttemptState) -> Case:
        return Case(
            trigger=trigger,
            moment_s=time.time(),
            step=self._observer.seen.furthest,
            accused=accused,
            lost=frozenset(state.lost),
            spares=len(self._spares()),
        )

    def _spares(self) -> list[str]:
        present = [host for host, node in self.hub.nodes.items() if node.slots >= self.job.ranks_per_host]
        return spares_of(self._hosts, present, self.hub.banned)

    def _act(self, state: AttemptState, record: Record, case: Case, decision: Decision) -> None:
        record.note("decided", decision=str(decision.action), why=decision.reason, wait_s=decision.wait_s)
        self._say(f"{decision.action}: {decision.reason}")
        self.history = applied(decision, replace(case, step=record.step), self.history)
        for host in decision.fence:
            self.hub.ban(host)
            record.note("fenced", host=host)
        if decision.action is Action.STOP:
            record.closed_ns = time.time_ns()
        else:
            if decision.skip_batch is not None:
                record.note("skipped", batch=decision.skip_batch)
            self._recovery.begin(record, record.step)
            record.note("restarting", attempt=state.number + 1)
        try:
            save_history(self._history_path, self.history)
        except OSError as error:
            self._say(f"the history cannot be saved ({error}): a supervisor that is started again would not know it")
        self.journal.write(state.number)
