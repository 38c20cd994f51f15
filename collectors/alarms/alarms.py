"""The one alarm hook of the toolkit: whoever raises an alarm never waits and never fails."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from .delivery import Delivery, Told
from .memory import AlarmMemory
from .rules import Alarm, AlarmSettings, Silence, checked_webhook, utc

MOST_LEFT = 8
"""Alarms of others that one process takes care of at a time."""

LEFT_AFTER_S = 20.0
"""What has waited for less is on its way."""

AFTER_END_S = 1.0
"""A thread that does not end within so long after it was told to is in a target, which it ends by itself."""


class AlarmHook:
    """Gives alarms to the targets, each on a thread of its own, and tries again until it is told.

    What waits and what was told is in ``memory``, a folder of the store: all agents and `megascope watch` share it, so
    that a hang of a thousand hosts is one alarm, also after a restart, and that another process tells of it where the
    one that raised it is gone.
    """

    def __init__(self, settings: AlarmSettings, memory: Path) -> None:
        self.settings, self._memory = settings, AlarmMemory(memory, settings.window_s)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._results: list[tuple[Alarm, Told]] = []

    @property
    def is_telling(self) -> bool:
        """Whether an alarm is on its way."""
        return any(thread.is_alive() for thread in self._threads.values())

    def raise_alarm(self, alarm: Alarm) -> None:
        """Tell of it, unless it is silenced or was told already; what came of it is in `take_results` later."""
        self._raise(alarm, is_kept=False)

    def _raise(self, alarm: Alarm, *, is_kept: bool) -> None:
        if not self.settings.tells_anybody:
            self._keep(alarm, Told("nobody"))
        elif self._is_silenced(alarm):
            self._keep(alarm, Told("silenced"))
        elif self._is_under_way(alarm):
            self._keep(alarm, Told("duplicate"))
        else:
            delivery = Delivery(alarm, self.settings, self._memory, self._ending, self._keep, is_kept)
            thread = threading.Thread(target=delivery.run, name="megascope-alarm", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread can be had: an alarm never ends an agent
                self._memory.keep(alarm)
                self._keep(alarm, Told("left", str(error)))
                return
            self._threads = {key: one for key, one in self._threads.items() if one.is_alive()}
            self._threads[alarm.key] = thread

    def pick_up(self) -> int:
        """Take care of what waits in the store and is not told by whoever raised it; how many of them."""
        if not self.settings.tells_anybody:
            return 0
        count = sum(thread.is_alive() for thread in self._threads.values())
        taken = 0
        for alarm in self._memory.left(LEFT_AFTER_S):
            if count + taken >= MOST_LEFT:
                break
            if not self._is_under_way(alarm) and not self._is_silenced(alarm):
                self._raise(alarm, is_kept=True)
                taken += 1
        return taken

    def _is_silenced(self, alarm: Alarm) -> bool:
        return any(rule.covers(alarm, time.time_ns()) for rule in self.settings.silences)

    def _is_under_way(self, alarm: Alarm) -> bool:
        thread = self._threads.get(alarm.key)
        return thread is not None and thread.is_alive()

    def take_results(self) -> list[tuple[Alarm, Told]]:
        """What came of the alarms since the last time."""
        with self._lock:
            results, self._results = self._results, []
        return results

    def finish(self, patience_s: float = 15.0) -> None:
        """Wait for alarms that are on their way. What is not told by then waits in the store for another process."""
        deadline = time.monotonic() + patience_s
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        self._ending.set()
        for thread in self._threads.values():
            thread.join(AFTER_END_S if thread.is_alive() else None)
        self._ending = threading.Event()

    def _keep(self, alarm: Alarm, told: Told) -> None:
        with self._lock:
            self._results.append((alarm, told))


__all__ = ["Alarm", "AlarmHook", "AlarmSettings", "Silence", "Told", "checked_webhook", "utc"]
