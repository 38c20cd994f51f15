"""A request, from outside, to save after a given step and to stop: how a job is moved without losing a step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CONTROL_VARIABLE = "MEGASCOPE_CONTROL"
"""Path of a file on the rank's host that holds the number of updates after which to save and stop."""


class StopRequest:
    """Looks for a request once a step: one `stat` on the host's own disk, nothing where no file is named."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        given = (os.environ if environment is None else environment).get(CONTROL_VARIABLE)
        self._path = Path(given) if given else None
        self._seen: int | None = None
        self._step: int | None = None

    def is_due(self, updates: int) -> bool:
        """Whether to save and stop after so many updates.

        Whoever asks chooses a step far enough ahead for all ranks to see it in time. One that sees it too late goes
        on, waits for the others in vain, and is ended from outside: then the checkpoint before is used.
        """
        if self._path is None:
            return False
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._seen:
                self._seen, self._step = changed, int(self._path.read_text())
        except (OSError, ValueError):
            return False
        return updates == self._step
