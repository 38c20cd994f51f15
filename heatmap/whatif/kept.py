"""Replays that are kept from one look at a store to the next: of an attempt that grows, only new steps are read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from ...collectors.reading.store import Attempt
from ..peers import Placement
from .live import LiveWhatIf
from .reasons import CannotReplayError
from .recording import load_recording
from .schedule import Action, load_schedule, scheduled_names
from .tables import Tables

MOST = 2
"""Attempts that are kept: of a million spans, one takes 60 MB."""


class KeptReplay:
    """The replay of an attempt, and how many spans each of its steps had when it was read.

    A step that has another number of spans by now is read again. What cannot be added to what is kept (ranks that were
    not there, another schedule, too many operations) is read anew as a whole, so that a look gives what a first look
    would give. For one thread at a time.
    """

    def __init__(self) -> None:
        self.steps_read = 0
        self._live: LiveWhatIf | None = None
        self._spans: dict[int, int] = {}
        self._actions: Sequence[Action] = ()
        self._hosts: dict[int, str] = {}

    def look(self, store: Tables, attempt: Attempt, placement: Placement, spans: Mapping[int, int]) -> LiveWhatIf:
        """The replay of the steps in ``spans``, which are given with their number of spans.

        Raises CannotReplayError where they cannot be replayed. ``steps_read`` tells how many were read for it.
        """
        actions, hosts = load_schedule(store, attempt), hosts_of(placement)
        if (actions, hosts) != (self._actions, self._hosts):
            self._actions, self._hosts, self._spans, self._live = actions, hosts, {}, None
        same = {step for step, count in self._spans.items() if spans.get(step) == count}
        try:
            self._add(store, attempt, placement, spans, same)
        except (CannotReplayError, ValueError):
            if self._live is None:
                raise
            self._live = None
            self._add(store, attempt, placement, spans, set())
        assert self._live is not None
        return self._live

    def _add(
        self, store: Tables, attempt: Attempt, placement: Placement, spans: Mapping[int, int], same: set[int]
    ) -> None:
        """Forget all steps but the ``same``, and read the others."""
        live, known = self._live if same else None, len(self._spans)
        self._spans = {}  # nothing is known of what an error leaves behind
        if live is None:
            live = LiveWhatIf(self._actions, self._hosts, window=None)
        elif len(same) < known:
            live.keep(np.array(sorted(same), np.int64))
        new = sorted(step for step in spans if step not in same)
        if new:
            names = scheduled_names(self._actions)
            live.add(load_recording(store, attempt, placement, new, names, known=live.ranks))
        self._live, self._spans, self.steps_read = live, dict(spans), len(new)


class KeptReplays:
    """The replays of the attempts that were looked at last; for one thread at a time."""

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[str, int], KeptReplay] = OrderedDict()

    def of(self, attempt: Attempt) -> KeptReplay:
        """That of an attempt; an empty one where there is none."""
        key = (attempt.run, attempt.attempt)
        found = self._of.setdefault(key, KeptReplay())
        self._of.move_to_end(key)
        while len(self._of) > MOST:
            self._of.popitem(last=False)
        return found


def hosts_of(placement: Placement) -> dict[int, str]:
    """Host of every rank that is known."""
    return {int(rank): host for rank, host in zip(placement.ranks, placement.hosts, strict=True)}
