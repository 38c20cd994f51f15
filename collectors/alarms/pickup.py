"""Alarms that another process raised and could not tell of: every agent looks for them now and then."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from .alarms import AlarmHook
from .memory import FOLDER
from .rules import settings_of_environment

log = logging.getLogger(__name__)

EVERY_S = 30.0


class AlarmPickUp:
    """Tells of what waits in a store for somebody to tell of it, by the settings of this process."""

    def __init__(self, store: Path) -> None:
        self._hook = AlarmHook(settings_of_environment(), store / FOLDER)
        self._due = time.monotonic()

    def poll(self) -> None:
        """Look, if it is time; what comes of an alarm is logged."""
        if time.monotonic() < self._due or not self._hook.settings.tells_anybody:
            return
        self._due = time.monotonic() + EVERY_S
        try:
            self._hook.pick_up()
        except OSError as error:
            log.debug("No look for alarms: %s", error)
        for alarm, told in self._hook.take_results():
            log.info("An alarm that waited (%s of run %s): %s.", alarm.kind, alarm.run, told.outcome)

    def close(self) -> None:
        """Leave what is not told to others."""
        self._hook.finish(0.0)
