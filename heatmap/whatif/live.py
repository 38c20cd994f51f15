"""What-if of a job that runs: recorded steps are added as they come, the newest are kept, and none is read twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

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

WINDOW = 256
"""Steps that are kept: of a job of 8 ranks with 400 operations each, 30 MB."""


class LiveWhatIf:
    """The newest steps recorded. Added one by one or all at once, they give the same result.

    ``window`` is how many are kept, None for all: memory, and the time of an addition and of a result, grow with it and
    not with the job. New steps are replayed as measured once. What depends on the ideal, which every step moves, is
    replayed for the whole window when `result` is asked for. What runs beside the schedule is placed by what was always
    so in the window (`build_program`), which is looked at again at each addition; where it shows otherwise, or an
    operation is new, the window is replayed as measured anew.
    """

    def __init__(self, actions: Sequence[Action], hosts: Mapping[int, str], *, window: int | None = WINDOW) -> None:
        self._actions, self._hosts, self._window = actions, hosts, window
        self._recording: Recording | None = None
        self._program: Program | None = None
        self._accumulator = Accumulator(hosts)

    def add(self, recording: Recording) -> None:
        """Add steps. Raises CannotReplayError where no step so far can be replayed or all have too many operations,
        ValueError for other ranks, or for a step that was added before."""
        self._recording = self._newest(recording if self._recording is None else joined(self._recording, recording))
        self._replay(self._recording)

    def keep(self, steps: IntArray) -> None:
        """Forget all other steps. Raises CannotReplayError where none of those that remain can be replayed."""
        if self._recording is None:
            return
        chosen = np.isin(self._recording.steps, steps)
        if not chosen.all():
            self._recording = self._recording.of_steps(chosen)
            self._replay(self._recording)

    def _replay(self, recording: Recording) -> None:
        matched = match(self._actions, recording.nodes)
        whole = complete(recording, matched)
        program = build_program(whole, matched)
        if program != self._program:
            self._program, self._accumulator = program, Accumulator(self._hosts)
        self._accumulator.keep(whole.steps)
        new = ~self._accumulator.knows(whole.steps)
        if new.any():
            one_clock = len({self._hosts.get(int(rank)) for rank in whole.places.ranks.reshape(-1)}) == 1
            self._accumulator.add(measure(whole.of_steps(new), program, matched, one_clock=one_clock))

    def _newest(self, recording: Recording) -> Recording:
        if self._window is None or len(recording.steps) <= self._window:
            return recording
        return recording.of_steps(recording.steps >= np.sort(recording.steps)[-self._window])

    @property
    def steps(self) -> IntArray:
        """Steps that can be replayed, of those that were added."""
        return self._accumulator.steps

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that were recorded in them."""
        return frozenset() if self._recording is None else frozenset(self._recording.places.ranks.reshape(-1).tolist())

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Axes of which only one index was recorded."""
        return () if self._recording is None else self._recording.places.unrecorded

    @property
    def measured(self) -> Measured | None:
        """Durations of the operations of those steps."""
        return self._accumulator.measured

    def result(self) -> WhatIf:
        """The ratios of all steps so far. Raises ValueError where there are none."""
        return self._accumulator.result()
