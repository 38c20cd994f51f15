"""An agent's own alarms, and those that another process raised and could not tell of: it looks now and then."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from .alarms import AlarmHook
from .memory import FOLDER
from .rules import Alarm, settings_of_environment
from .teller import log_untold

log = logging.getLogger(__name__)

EVERY_S = 30.0


class AlarmPickUp:
    """Tells of what waits in a store for somebody to tell of it, and of what is raised here, by the settings here."""

    def __init__(self, store: Path) -> None:
        self._hook = AlarmHook(settings_of_environment(), store / FOLDER)
        self._due = time.monotonic()

    def raise_alarm(self, alarm: Alarm) -> None:
        """Tell of an alarm of one's own."""
        self._hook.raise_alarm(alarm)

    def poll(self) -> None:
        """Look, if it is time; what comes of an alarm is logged."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY_S
        try:
            self._hook.pick_up()
        except OSError as error:
            log.debug("No look for alarms: %s", error)
        for alarm, told in self._hook.take_results():
            log.info("An alarm (%s of run %s): %s.", alarm.kind, alarm.run, told.outcome)
            log_untold(alarm, told)

    def close(self) -> None:
        """Leave what is not told to others."""
        self._hook.finish(0.0)
