"""What-if of a job that runs: recorded steps are added as they come, and nothing is read or replayed twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..peers import IntArray
from .accumulator import Accumulator
from .building import build_program, complete
from .durations import measure
from .joining import joined
from .measured import Measured
from .program import Program
from .recording import Recording
from .result import WhatIf
from .schedule import Action, match


class LiveWhatIf:
    """Steps recorded so far. Added one by one or all at once, they give the same result.

    What runs beside the schedule is placed by what was always so (`build_program`); where new steps show otherwise, or
    hold an operation that was not there before, those that are kept are replayed anew, but never read again.
    """

    def __init__(self, actions: Sequence[Action], hosts: Mapping[int, str]) -> None:
        self._actions, self._hosts = actions, hosts
        self._recording: Recording | None = None
        self._program: Program | None = None
        self._accumulator = Accumulator(hosts)

    def add(self, recording: Recording) -> None:
        """Add steps. Raises CannotReplayError where no step so far can be replayed, ValueError for other ranks, or for
        a step that was added before."""
        self._recording = recording if self._recording is None else joined(self._recording, recording)
        matched = match(self._actions, self._recording.nodes)
        whole = complete(self._recording, matched)
        program = build_program(whole, matched)
        if program != self._program:
            self._program, self._accumulator = program, Accumulator(self._hosts)
        new = ~self._accumulator.knows(whole.steps)
        if new.any():
            one_clock = len({self._hosts.get(int(rank)) for rank in whole.places.ranks.reshape(-1)}) == 1
            self._accumulator.add(measure(whole.of_steps(new), program, matched, one_clock=one_clock))

    @property
    def steps(self) -> IntArray:
        """Steps that can be replayed, of those that were added."""
        return self._accumulator.steps

    @property
    def measured(self) -> Measured | None:
        """Durations of the operations of those steps."""
        return self._accumulator.measured

    def result(self) -> WhatIf:
        """The ratios of all steps so far. Raises ValueError where there are none."""
        return self._accumulator.result()
