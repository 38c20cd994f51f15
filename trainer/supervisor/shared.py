"""What the parts of one supervisor share: the job, its nodes, what is seen and written, and what was decided so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...collectors.alarms.teller import Teller
from .attempt import AttemptState
from .fencing import spares_of
from .history import History, RollBack, save_history
from .hub import Hub, Node
from .job import Job
from .journal import Journal
from .observing import Observer
from .policy import Accused, Case, Trigger, against_going_back
from .recovery import Recovery
from .rolling_back import way_back

Say = Callable[[str], None]


class EndAskedError(Exception):
    """Somebody wants the supervisor to end, while it waits for something that can be left."""


@dataclass(slots=True)
class Shared:
    """``turn`` lets a moment pass. ``hosts``: those of the newest attempt, in the order of their ranks.

    ``withheld``: hosts whose agents are there and whose ranks could not be ended, or that do not do what they are told;
    they are not used until that very agent says that its ranks have ended, does late what it was told, or is lost.
    ``may_leave``: whether `EndAskedError` may come out of a turn.
    """

    job: Job
    hub: Hub
    say: Say
    turn: Callable[[float], None]
    history_path: Path
    history: History
    journal: Journal
    observer: Observer
    recovery: Recovery
    alarms: Teller
    hosts: tuple[str, ...] = ()
    withheld: dict[str, Node] = field(default_factory=dict)
    may_leave: bool = False

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Within, waiting ends with `EndAskedError` as soon as the supervisor is asked to end."""
        before, self.may_leave = self.may_leave, True
        try:
            yield
        finally:
            self.may_leave = before

    def wait(self, seconds: float) -> None:
        """Let so much time pass."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.turn(0.2)

    @property
    def barred(self) -> set[str]:
        """Hosts that must not be given ranks."""
        return self.hub.banned | set(self.withheld)

    def spares(self) -> list[str]:
        """Hosts that could step in."""
        present = [host for host, node in self.hub.nodes.items() if node.slots >= self.job.ranks_per_host]
        return spares_of(self.hosts, present, self.barred)

    def withhold(self, state: AttemptState) -> None:
        """Keep hosts out that are of no use although their agents are there: whatever runs there still runs."""
        for host in state.useless:
            is_late = host in state.untold and state.port is not None  # meanwhile it has opened the rendezvous
            if host in self.hub.nodes and not is_late:
                self.withheld[host] = self.hub.nodes[host]

    def release(self, node: Node) -> None:
        """No rank runs on the host of this agent any more."""
        if self.withheld.get(node.host) is node:
            del self.withheld[node.host]

    def last_completed(self) -> int | None:
        """The last step that was completed; where this attempt completed none, the one before it begins."""
        furthest = self.observer.seen.furthest
        resumed = self.job.resumed_step() if furthest is None else 0
        return resumed - 1 if resumed else furthest

    def way_back(self, trigger: Trigger) -> RollBack | None:
        """Where to go back to from a loss that diverges; None where there is no such place, or it is not allowed."""
        if trigger is not Trigger.DIVERGED or against_going_back(self.history, self.job.limits, time.time()):
            return None
        return way_back(self.job, self.observer.seen, self.history)

    def case(self, trigger: Trigger, accused: tuple[Accused, ...], state: AttemptState, back: RollBack | None) -> Case:
        """An incident as it stands now."""
        return Case(
            trigger=trigger,
            moment_s=time.time(),
            step=self.last_completed(),
            accused=accused,
            lost=frozenset(state.lost),
            spares=len(self.spares()),
            skip=self.job.skip,
            back=back,
        )

    def keep(self, history: History) -> None:
        """Take over a new history, and save it."""
        self.history = history
        try:
            save_history(self.history_path, history)
        except OSError as error:
            self.say(f"the history cannot be saved ({error}): a supervisor that is started again would not know it")
