"""The supervisor: starts attempts, watches them, and does what keeps the job going, or stops it for good."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from ...collectors.alarms.teller import Teller as AlarmTeller
from ...collectors.goodput import Goodput
from .alarming import alarm_of_stop
from .attempt import AttemptState
from .diagnosis import end_ranks
from .history import History, first_attempt, load_history, run_folder
from .hub import Hub, Node
from .inquiring import Judged
from .job import Job
from .journal import SIGN, Journal, Record
from .lease import Lease, LeaseLostError
from .observing import Observer
from .pinging import pinging
from .policy import Accused, Action, Decision, Trigger, decide
from .recovery import Recovery
from .responding import Response
from .saving import stopped_by
from .shared import EndAskedError, Say, Shared
from .signs import Sign
from .starting import StartError, await_hosts, start_attempt
from .telling import Teller
from .watching import Alert, Watcher
from .wire import Message

REST_S = 5.0
UNREADABLE_S = 30.0
ASKED = "the supervisor was asked to end: start the same run again to go on"


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
    """Runs one job to its end. `run` returns how it ended; what befalls the job raises nothing.

    ``unused``: the first attempt that ranks have recorded nothing of. ``lease``: that of the run, where it has one;
    nothing is started while it is not fresh, nor once it is lost.
    """

    def __init__(self, job: Job, hub: Hub, say: Say, unused: int = 0, lease: Lease | None = None) -> None:
        self.job, self.hub, self._say, self._lease = job, hub, say, lease
        path = run_folder(job.store, job.run) / "history.json"
        journal, observer = Journal(job.store, job.run), Observer(job.store, job.run)
        history, recovery = load_history(path), Recovery(journal)
        alarms = AlarmTeller(job.store)
        self.shared = Shared(job, hub, say, self._turn, path, history, journal, observer, recovery, alarms)
        self.hub.banned |= history.fenced
        self.state: AttemptState | None = None
        self._next, self._attempts = first_attempt(job.store, job.run, history, unused), 0
        self._is_asked = False
        self._readable_at, self._told_problem = time.monotonic(), ""

    @property
    def history(self) -> History:
        """What has been decided so far."""
        return self.shared.history

    def ask_to_end(self) -> None:
        """Have the ranks save as soon as they can, and end; for a signal's handler."""
        self._is_asked = True

    def turn(self, patience_s: float) -> None:
        """Let a moment pass, and take over what the nodes say. LeaseLostError, EndAskedError where they are due."""
        for node, message in self.hub.turn(patience_s):
            self._take(node, message)
        if self._lease is not None and self._lease.is_lost:
            raise LeaseLostError("another supervisor has taken over this run")
        if self._is_asked and self.shared.may_leave:
            raise EndAskedError

    def _turn(self, patience_s: float) -> None:
        self.turn(patience_s)  # whoever overrides it is heard by all parts

    def _take(self, node: Node, message: Message) -> None:
        what = message.get("say")
        if what in ("stopped", "port"):  # who is withheld and opens a rendezvous was only late with it
            self.shared.release(node)
        elif what == "lost":
            self.shared.release(node)  # it ends its ranks, and may come back as any host that was lost
            self._say(f"{node.host} is lost")
        if self.state is not None:
            self.state.take(node.host, message)

    def run(self) -> Outcome:
        """Keep the job going until it has finished, or a decision stops it."""
        shared = self.shared
        shared.history = replace(shared.history, began_s=shared.history.began_s or time.time())
        try:
            with pinging(self.hub.ping, self._is_sure):
                outcome = self._run_leased()
        finally:
            for node in self.hub.nodes.values():
                node.tell({"do": "end"})
            shared.journal.close()
            shared.alarms.close()
        shared.observer.look()
        outcome.goodput = shared.observer.goodput(int(1e9 * (self.history.began_s or 0.0)), time.time_ns())
        shared.observer.close()
        return outcome

    def _is_sure(self) -> bool:
        """Whether nobody else can have taken over the run."""
        return self._lease is None or self._lease.is_fresh

    def _run_leased(self) -> Outcome:
        try:
            return self._run()
        except EndAskedError:
            if self.state is not None and not all(map(self.state.is_still, self.state.hosts)):
                end_ranks(self.job, self.state, self.hub, self.turn)
            return self._stopped(ASKED)
        except LeaseLostError as error:
            return self._stopped(str(error))

    def _run(self) -> Outcome:
        while True:
            try:
                with self.shared.leaving():
                    state = self._start()
            except StartError as error:
                return self._stopped(str(error))
            decision = None
            while decision is None:  # what stood still may move again
                alert = self._watch(state)
                if alert.trigger is None:
                    self._await_rest()
                    self.shared.recovery.give_up("the job has finished")
                    return self._outcome(True, "the job has finished")
                decision = self._respond(state, alert)
            if decision.action is Action.STOP:
                return self._stopped(decision.reason)
            if decision.wait_s > 0:
                self._say(f"waiting {decision.wait_s:.0f} s before the next restart")
                with self.shared.leaving():
                    self.shared.wait(decision.wait_s)

    def _await_rest(self) -> None:
        """Let the last steps arrive in the store, where a recovery is still to be seen in them."""
        until = time.monotonic() + REST_S
        while self.shared.recovery.is_open and time.monotonic() < until:
            self.shared.wait(0.5)
            self.shared.observer.look()
            self._progress()

    def _stopped(self, reason: str) -> Outcome:
        self.shared.recovery.give_up(reason)
        if not self._is_asked:  # whoever asked for it knows
            alarm_of_stop(self.shared.alarms, self.job.run, max(self._next - 1, 0), reason)
        return self._outcome(False, reason)

    def _outcome(self, finished: bool, reason: str) -> Outcome:
        return Outcome(finished, reason, self._attempts, self.history, self.shared.journal.records)

    # -- one attempt --------------------------------------------------------------------------------------------

    def _start(self) -> AttemptState:
        shared = self.shared
        while True:
            hosts = await_hosts(self.job, self.hub, shared.hosts, lambda: shared.barred, self.turn)
            if self._is_sure():
                break
            self.turn(0.5)  # somebody else may be about to start this run
        shared.hosts = hosts
        state = AttemptState(self._next, shared.hosts, self.job.ranks_per_host, time.time_ns())
        self.state, self._next, self._attempts = state, self._next + 1, self._attempts + 1
        shared.keep(replace(self.history, next_attempt=self._next))
        shared.observer.begin(state.number)
        self._readable_at = time.monotonic()
        spares = shared.spares()
        waiting = f"; {', '.join(spares)} in reserve" if spares else ""
        self._say(f"attempt {state.number} starts on {', '.join(state.hosts)}{waiting}")
        start_attempt(self.job, self.hub, state, self.history.passed_over, self.turn)
        return state

    def _watch(self, state: AttemptState) -> Alert:
        return Watcher(
            self.job,
            state,
            self.shared.observer,
            self.turn,
            lambda trigger, accused: self._is_worth(trigger, accused, state),
            Teller(self._tell_sign).hear,
            self._progress,
            lambda: self._is_asked,
            self._note_verdict,
            lambda accused: self._against(Trigger.SLOW, accused, state),
        ).watch()

    def _is_worth(self, trigger: Trigger, accused: tuple[Accused, ...], state: AttemptState) -> bool:
        """Whether anything would be done about hosts that are accused while the job trains."""
        return self._against(trigger, accused, state) is None

    def _against(self, trigger: Trigger, accused: tuple[Accused, ...], state: AttemptState) -> str | None:
        """Why nothing would be done about them; None where something would."""
        last = stopped_by(self.job, self.shared.observer.seen)
        in_time = last is not None and last < self.job.steps
        if trigger is not Trigger.DIVERGED and not in_time:
            return "The training is over before it could save and stop."
        case = self.shared.case(trigger, accused, state, self.shared.way_back(trigger))
        decision = decide(case, self.history, self.job.limits)
        return decision.reason if decision.action is Action.WATCH else None

    def _progress(self) -> None:
        """After a look: whether a recovery is over, and whether the store can be read."""
        observer = self.shared.observer
        self.shared.alarms.poll()
        caught_up = self.shared.recovery.look(observer.seen)
        if caught_up is not None:
            times = ", ".join(f"{name.removesuffix('_s')} {value:g} s" for name, value in caught_up.times.items())
            self._say(f"caught up at step {observer.seen.last_step}: {times}")
        now = time.monotonic()
        if observer.problem is None:
            self._readable_at = now
        elif now - self._readable_at > UNREADABLE_S and observer.problem != self._told_problem:
            self._told_problem = observer.problem
            self._say(f"the store has told nothing for {now - self._readable_at:.0f} s: {observer.problem}")

    def _tell_sign(self, sign: Sign) -> None:
        """A sign is told and noted; what follows from it is for the verdicts to say."""
        self._say(f"sign {sign.detector}: {sign.sentence}")
        number, journal = self._next - 1, self.shared.journal
        last_ns = self.shared.observer.seen.furthest_ns or time.time_ns()
        record = journal.open(number, f"{SIGN}{sign.detector}", last_ns, sign.step)
        record.note("sign", sentence=sign.sentence, threshold=sign.threshold, ranks=list(sign.ranks))
        record.closed_ns = record.noticed_ns
        journal.write(number)

    def _note_verdict(self, judged: Judged) -> None:
        """What `megascope hang` says of a sign, beside the sign; a sign that is told no more has no place for it."""
        number, journal, answer = self._next - 1, self.shared.journal, judged.answer
        kind = f"{SIGN}{judged.sign.detector}"
        record = next((one for one in reversed(journal.records) if (one.attempt, one.kind) == (number, kind)), None)
        if record is None:
            return
        if answer.verdict is None:
            record.note("not-diagnosed", problem=answer.problem, took_s=round(answer.took_s, 2))
        else:
            record.verdict = answer.verdict
            record.note("asked-hang", verdict=answer.verdict["verdict"], took_s=round(answer.took_s, 2))
        journal.write(number)

    def _respond(self, state: AttemptState, alert: Alert) -> Decision | None:
        return Response(self.shared, state, alert).run()
