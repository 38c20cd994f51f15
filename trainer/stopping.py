"""A request, from outside, to save and to stop as soon as all ranks can: how a job is moved without losing a step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CONTROL_VARIABLE = "MEGASCOPE_CONTROL"
"""Path of a file on the rank's host that holds the number of updates before which not to stop."""

DEVICE_LAG = 2
"""On a device the ranks learn so many steps later what they have agreed upon: by then its result is on the host."""


class StopRequest:
    """Looks for a request once a step: one `stat` on the host's own disk, nothing where no file is named.

    The ranks agree: whether one of them has seen the request is summed over all of them with the gradient norm, and all
    stop after the first step in which one had, or ``lag`` steps later. Neither clocks nor how long the request takes to
    a host matter.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, lag: int = 0) -> None:
        given = (os.environ if environment is None else environment).get(CONTROL_VARIABLE)
        self._path, self._lag = Path(given) if given else None, lag
        self._changed_ns: int | None = None
        self._least: int | None = None
        self._agreed: int | None = None

    def is_seen(self, updates: int) -> bool:
        """Whether this rank has seen a request to stop after so many updates, or earlier ones."""
        if self._path is None:
            return False
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                self._changed_ns, self._least = changed_ns, int(self._path.read_text())
        except (OSError, ValueError):
            return False
        return self._least is not None and updates >= self._least

    def agree(self, step: int, seen_by: float) -> None:
        """Take over how many ranks had seen it in a step; steps come in order."""
        if seen_by > 0 and self._agreed is None:
            self._agreed = step

    def settled_by(self, step: int) -> int | None:
        """The step whose sum must be known at the end of ``step``; None where nobody can ask."""
        return None if self._path is None else step - self._lag

    def is_due(self, step: int) -> bool:
        """Whether all ranks stop after this step."""
        return self._agreed is not None and self._agreed <= step - self._lag
