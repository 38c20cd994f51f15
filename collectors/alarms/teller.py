"""Raising alarms from a process that only has something to say now and then: a supervisor, an agent, a script."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from .alarms import AlarmHook
from .delivery import Told
from .memory import FOLDER
from .rules import Alarm, AlarmSettings, settings_of_environment

log = logging.getLogger(__name__)

FINISH_S = 10.0
"""A process that ends gives alarms on their way so long; what is not told then waits in the store."""

_UNTOLD = {
    "retrying": "was not told yet, and is tried again",
    "failed": "was not told",
    "left": "was not told yet, and waits in the store",
}


def log_untold(alarm: Alarm, told: Told) -> None:
    """Log what came of an alarm, if it was not told."""
    if told.outcome in _UNTOLD:
        log.warning("An alarm of run %s (%s) %s: %s.", alarm.run, alarm.kind, _UNTOLD[told.outcome], told.detail)


class Teller:
    """The alarm hook of a store, by the settings of this process. Nothing waits and nothing raises, except `close`'s
    wait for alarms that are on their way.

    The same alarm (run, attempt, kind, and ranks or else hosts) is told once within the window by all processes that
    share the store, so that ``kind`` should name what happened: ``recovery-gave-up``, ``hardware-xid-79``.
    """

    def __init__(self, store: Path, settings: AlarmSettings | None = None) -> None:
        self._hook = AlarmHook(settings or settings_of_environment(), store / FOLDER)

    def tell(
        self,
        kind: str,
        sentence: str,
        run: str,
        attempt: int,
        *,
        ranks: Sequence[int] = (),
        hosts: Sequence[str] = (),
        severity: str = "medium",
        moment_ns: int | None = None,
    ) -> None:
        """Raise an alarm in words; ``severity`` is high or medium, ``moment_ns`` UTC and now if None."""
        moment = time.time_ns() if moment_ns is None else moment_ns
        self.raise_alarm(Alarm(kind, severity, run, attempt, tuple(sorted(ranks)), tuple(hosts), sentence, moment))

    def raise_alarm(self, alarm: Alarm) -> None:
        """Raise an alarm, and log what came of earlier ones."""
        try:
            self._hook.raise_alarm(alarm)
        except Exception as error:  # whoever raises an alarm is never harmed by it
            log.warning("An alarm of run %s (%s) was not raised: %s", alarm.run, alarm.kind, error)
        self.poll()

    def poll(self) -> None:
        """Log what came of the alarms since the last time."""
        for alarm, told in self._hook.take_results():
            log_untold(alarm, told)

    def close(self, patience_s: float = FINISH_S) -> None:
        """Give alarms that are on their way a moment; what is not told then waits in the store for another process."""
        self._hook.finish(patience_s)
        self.poll()
